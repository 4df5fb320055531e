"""The inputs that verification makes: other initializers, and extents that differ where symbols do."""

from __future__ import annotations

from pathlib import Path

import irc
import numpy as np
import onnx
import pytest
from irc.backends.verify.compare import Comparison
from irc.backends.verify.inputs import Stimulus, read_inputs
from irc.cli import main
from irc.ir.errors import VerifyError
from onnx import ModelProto, TensorProto, helper
from verification import text, verdict, verified

ADD = """g (float[2] x) => (float[2] y) <float[2] k = {1, 2}, int64[1] a = {0}> {
    h = ReduceSum(x, a) t = Abs(x) y = Add(x, k) }"""


def overridable(body: str = ADD, names: str = "k") -> ModelProto:
    model = text(body)
    kinds = {"k": (TensorProto.FLOAT, [2]), "a": (TensorProto.INT64, [1])}
    model.graph.input.extend(helper.make_tensor_value_info(name, *kinds[name]) for name in names)
    return model


def test_initializers_that_callers_may_override_get_other_values() -> None:
    """A model that only keeps the input, and computes with the value that stands in the file, is accused."""
    model, wrong = overridable(), overridable(ADD.replace("int64[1] a", "float[2] o = {1, 2}, int64[1] a"))
    wrong.graph.node[-1].input[1] = "o"
    names = [stimulus.name for stimulus in Comparison(model).inputs]
    assert names[-1] == "normal 2, other initializers"
    assert len(names) == 7
    assert verified(model).verdicts[-1].inputs == 7
    comparison = Comparison(model)
    rows = [row for row, _ in comparison.rows(wrong) if row.deviates]
    assert {(row.tensor, row.inputs) for row in rows} == {("y", names[-1])}


def test_integers_keep_their_values_where_others_do_not_run() -> None:
    """There is no second axis to sum over."""
    (last,) = [s for s in Comparison(overridable(names="ka")).inputs if s.name.endswith("other initializers")]
    assert set(last.feeds) == {"x", "k"}
    assert not np.array_equal(last.feeds["k"], [1, 2])
    assert not [s for s in Comparison(overridable(names="a")).inputs if s.name.endswith("other initializers")]


def test_a_frozen_initializer_is_told_unless_that_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, frozen = overridable(), text(ADD)
    with pytest.raises(VerifyError, match="the initializer 'k' cannot be overridden any more"):
        verdict(model, frozen)
    assert not verdict(model, frozen, frozen=True)
    source = str(tmp_path / "in.onnx")
    onnx.save(model, source)
    output = str(tmp_path / "out.onnx")
    assert main(["compile", source, "-o", output, "--freeze-initializers", "--verify", "-q"]) == 0
    assert [info.name for info in onnx.load(output).graph.input] == ["x"]
    assert main(["align", source, output, "-q"]) == 0
    assert main(["bisect", source, "--freeze-initializers", "-q"]) == 0
    assert main(["compile", source, "-o", output, "--passes", "FreezeInitializers,default", "--verify=end", "-q"]) == 0
    assert capsys.readouterr().err == ""


def test_before_version_four_initializers_are_no_inputs() -> None:
    model = overridable()
    model.ir_version = 3
    model.graph.input.add().CopyFrom(helper.make_tensor_value_info("a", TensorProto.INT64, [1]))
    assert len(Comparison(model).inputs) == 6
    assert irc.compile(model).model.ir_version == 3


def test_initializers_of_ones_own(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.ones(2, np.float32), k=np.array([5, 6], np.float32))
    (stimulus,) = read_inputs([tmp_path / "x.npz"], overridable())
    assert set(stimulus.feeds) == {"x", "k"}
    assert [s.name for s in Comparison(overridable(), inputs=[stimulus]).inputs] == ["x.npz"]
    given = Stimulus("given", {"x": np.ones(2, np.float32)})
    assert len(Comparison(overridable(), inputs=[given]).inputs) == 2
    np.savez(tmp_path / "y.npz", x=np.ones(2, np.float32), k=np.array([5, 6]))
    with pytest.raises(VerifyError, match="the input 'k' is int64, and float32 is needed"):
        read_inputs([tmp_path / "y.npz"], overridable())
