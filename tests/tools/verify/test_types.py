"""What onnxruntime does not give to numpy is compared all the same, or said not to be."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import irc
import ml_dtypes
import numpy as np
import onnx
import pytest
from exporter_graphs import export
from harness import session
from irc.support.errors import VerifyError
from irc.tools.cli.main import main
from irc.tools.verify.comparison import Comparison
from irc.tools.verify.runner import IncrementalRun, Runner
from onnx import ModelProto, TensorProto
from random_graphs import with_functions
from verification import deviation, text, verdict, verified

NARROW = {"bfloat16": 16, "float8e4m3fn": 17, "float8e5m2": 19, "int4": 22, "uint4": 21}


def narrow(kind: str, step: str, opset: int = 21) -> ModelProto:
    """A result in a narrow type, beside one that is not."""
    return text(
        f"""g (float[4] x) => (float[4] y, {kind}[4] h) {{
        z = Abs(x) q = {step}(z) r = Clip(q) h = Cast<to={NARROW[kind]}>(r) y = Neg(z) }}""",
        opset,
    )


@pytest.mark.parametrize("kind", NARROW)
def test_results_in_narrow_types_are_compared(kind: str) -> None:
    right, wrong = narrow(kind, "Identity"), narrow(kind, "Neg")
    for node in wrong.graph.node[1:3]:
        node.output[0] += ".other"
    wrong.graph.node[2].input[0] += ".other"
    wrong.graph.node[3].input[0] += ".other"
    assert "h" in {row.tensor for row, _ in Comparison(right).differences(right)}
    assert not verdict(right, right)
    assert verdict(right, wrong) == {"h"}


@pytest.mark.parametrize("opset", [19, 20])
@pytest.mark.parametrize("kind", ["bfloat16", "float8e4m3fn", "float8e5m2"])
def test_shapes_are_measured_without_a_kernel_for_the_type(kind: str, opset: int) -> None:
    model = narrow(kind, "Identity", opset)
    assert "h" in {row.tensor for row, _ in Comparison(model).differences(model)}
    assert not verdict(model, model)


def test_another_type_is_told_from_bfloat16() -> None:
    other = narrow("bfloat16", "Identity")
    other.graph.node[3].attribute[0].i = TensorProto.FLOAT16
    other.graph.output[1].type.tensor_type.elem_type = TensorProto.FLOAT16
    assert verdict(narrow("bfloat16", "Identity"), other) == {"h"}


def test_bfloat16_is_given_and_handed_from_part_to_part(tmp_path: Path) -> None:
    model = text(
        "g (bfloat16[4] x) => (float[4] y) { h = Identity(x) i = Identity(h) y = Cast<to=1>(i) }"
    )
    x = np.arange(4).astype(ml_dtypes.bfloat16)
    walk = IncrementalRun(Runner(model, Path()), {"x": x})
    assert [str(walk.compute([name])[0].dtype) for name in "hiy"] == [
        "bfloat16",
        "bfloat16",
        "float32",
    ]
    assert verified(model).verdicts[-1].tensors == 1
    onnx.save(model, tmp_path / "a.onnx")
    command = (
        f"align {tmp_path / 'a.onnx'} {tmp_path / 'a.onnx'} -q --dump {tmp_path / 'dump'}".split()
    )
    assert main(command) == 0
    index = json.loads((tmp_path / "dump" / "index.json").read_text())
    (entry,) = [
        one
        for one in index
        if one["tensor"] == "h" and one["model"] == "a" and "equal" in one["inputs"]
    ]
    assert entry["dtype"] == "bfloat16"
    assert np.array_equal(np.load(tmp_path / "dump" / entry["file"]), np.ones(4, np.float32))


def test_what_nobody_hands_out_is_undecided() -> None:
    model = text("g (float[2] x) => (float[2] y, seq(bfloat16[2]) s) { y = Neg(x) h = Cast<to=16>(x) "
                 "s = SequenceConstruct(h) }", 21)  # fmt: skip
    rows = [row for row, _ in Comparison(model).differences(model)]
    assert {row.tensor for row in rows if row.is_undecided} == {"s"}
    assert verified(model).verdicts[-1].silent_results == ("s",)


def classes(
    step: str, keys: str = "classlabels_int64s = [0, 1]", key: int = TensorProto.INT64
) -> ModelProto:
    """Probabilities by class, as scikit-learn's converters write them."""
    made = text(f"""g (float[2,2] x) => (y) {{ n = {step}(x) p = Softmax(n) y = Identity(p) }}""")
    made.opset_import.add(domain="ai.onnx.ml", version=2)
    made.graph.node[2].CopyFrom(onnx.parser.parse_node(f"y = ai.onnx.ml.ZipMap<{keys}>(p)"))
    maps = made.graph.output[0].type.sequence_type.elem_type.map_type
    maps.key_type, maps.value_type.tensor_type.elem_type = key, TensorProto.FLOAT
    return made


def test_maps_are_compared_by_key() -> None:
    right = classes("Identity")
    wrong, swapped = classes("Neg"), classes("Identity", "classlabels_int64s = [1, 0]")
    named = classes("Identity", 'classlabels_strings = ["a", "b"]', TensorProto.STRING)
    other = classes("Identity", 'classlabels_strings = ["a", "c"]', TensorProto.STRING)
    assert not verdict(right, right)
    assert verified(right).verdicts[-1].greatest < 1
    assert "y [values]" in verdict(right, wrong)
    assert verdict(right, swapped) == {"y [values]"}, "maps have their keys in order"
    assert verdict(named, other) == {"y [keys]"}
    assert not verdict(named, named)


def test_a_whole_model_that_onnxruntime_refuses_is_accused() -> None:
    """Its parts run, but what it says of its result is wrong."""
    model = text("g (float[2] x) => (float[2] y) { y = Abs(x) }")
    wrong = text("g (float[2] x) => (float16[2] y) { y = Abs(x) }")
    comparison = Comparison(model)
    assert comparison.deviation(model)[0] is None
    with pytest.raises(VerifyError, match="onnxruntime cannot load the model"):
        comparison.deviation(wrong)


def test_parts_that_onnxruntime_loads_only_with_the_declared_types_are_compared() -> None:
    """Inference of Resize in opset 11 fails if a function hides the rank."""
    model = with_functions(export(3002897), 3002897)
    result = irc.compile(model).model
    session(model)
    bare = copy.deepcopy(model)
    del bare.graph.value_info[:]
    with pytest.raises(Exception, match="Resize"):
        session(bare)
    assert deviation(model, result) is None
