"""What the Python functions say of arguments that they do not take.

One sentence that says what to write instead.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import irc
import numpy as np
import onnx
import onnx.parser
import pytest
from harness import EXAMPLE
from irc.ir import Rewriter
from irc.passes import Pass, PassContext, Timing
from irc.tools.cli.main import main

MISTAKES: dict[str, tuple[Callable[[Any], object], str]] = {
    "model in memory": (
        lambda model: irc.compile_many([model]),
        "ModelProto is not a path of a model: irc.compile takes",
    ),
    "shape as text": (
        lambda model: irc.compile(model, input_shapes={"image": "1,1,8,8"}),
        "'1,1,8,8' is not a shape of input 'image': write (1, 3, 224, 224)",
    ),
    "instruments": (
        lambda model: irc.compile(model, context=Timing()),
        "is not a context: give a PassContext, or a list of instruments",
    ),
    "no model": (
        lambda model: irc.compile(123),
        "int is not a model: give a path, a ModelProto, a Module, a torch module or an ExportedProgram",
    ),
    "module with shapes": (
        lambda model: irc.compile(irc.load(model), input_shapes=(1, 1, 8, 8)),
        "are for models that are read, and this is a Module",
    ),
    "shape of one of two": (
        lambda model: irc.compile(two_inputs(), input_shapes=(1,)),
        "input_shapes are given by name: write {'x': (1, 3, 224, 224)} (inputs: x, z)",
    ),
    "pass of no use": (
        lambda model: irc.compile(model, "Nothing"),
        "there is no pass 'Nothing'",
    ),
    "no pass": (lambda model: irc.compile(model, ""), "name a pass, `default`, or `none`"),
    "output": (
        lambda model: irc.compile(model, "out.onnx"),
        "to write a result: irc.compile(model).save('out.onnx')",
    ),
    "fold map": (
        lambda model: irc.compile(model).save("out.onnx", fold_map=True),
        "fold_map is the path of the fold map, not True",
    ),
    "range of no two numbers": (
        lambda model: irc.quantize(model, input_ranges=(0, 1, 2)),
        "ranges are given by name: write {'image': (low, high)}",
    ),
    "data as a list": (
        lambda model: irc.quantize(model, data=[1.0]),
        "data are a path, or arrays by the names of the inputs: write {'image': ...}",
    ),
}


def two_inputs() -> onnx.ModelProto:
    return onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[1] x, float[1] z) => (float[1] y)'
        " { y = Add(x, z) }"
    )


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_one_sentence(
    mistake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    call, expected = MISTAKES[mistake]
    with pytest.raises(irc.UsageError) as error:
        call(onnx.load(EXAMPLE))
    assert expected in str(error.value) and "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


def test_one_input_needs_no_name(tmp_path: Path) -> None:
    model = onnx.load(EXAMPLE)
    images = np.random.default_rng(0).random((8, 1, 8, 8), np.float32)
    by_name = irc.quantize(model, data={"image": images}).model
    assert irc.quantize(model, data=images).model == by_name
    np.save(tmp_path / "images.npy", images)
    assert irc.quantize(model, data=tmp_path / "images.npy").model == by_name
    by_name = irc.quantize(model, input_ranges={"image": (0, 1)}).model
    assert irc.quantize(model, input_ranges=(0, 1)).model == by_name
    fixed = irc.compile(model, input_shapes=(2, 1, 8, 8)).model
    assert fixed == irc.compile(model, input_shapes={"image": (2, 1, 8, 8)}).model
    assert fixed.graph.input[0].type.tensor_type.shape.dim[0].dim_value == 2
    irc.emit(irc.load(EXAMPLE)).save(tmp_path / "net.irc")
    text = irc.load(tmp_path / "net.irc", input_shapes=(2, 1, 8, 8))
    assert irc.compile(text, []).model.graph.input == fixed.graph.input
    assert (
        main(["quantize", str(EXAMPLE), "-o", str(tmp_path / "q.onnx"), "--input-range", "0:1"])
        == 0
    )
    assert onnx.load(tmp_path / "q.onnx") == by_name


def test_a_path_and_a_list_stand_for_themselves(tmp_path: Path) -> None:
    timing = Timing()
    assert irc.compile(EXAMPLE, context=[timing]).operators == 19
    assert timing.seconds if hasattr(timing, "seconds") else timing.render()
    (outcome,) = irc.compile_many(EXAMPLE, tmp_path)
    assert outcome.error is None
    module = irc.load(EXAMPLE)
    assert irc.load(module) is module
    sequences = [irc.passes.default_pipeline(), [irc.passes.FoldConstant]]
    assert irc.compile(module, sequences).module is module


class Wrong(Pass):
    """Make every Relu a Neg."""

    def run(self, module: irc.Module, ctx: PassContext) -> bool:
        found = [node for node in module.graph if node.op == "nn.relu"]
        rewriter = Rewriter(module)
        for node in found:
            new = rewriter.make("negative", [node.operand()], before=node)
            rewriter.forward(node.output, new.output)
        return bool(found)


def test_verification_in_one_line() -> None:
    result = irc.compile(EXAMPLE, verify=True)
    assert [verdict.greatest <= 1 for verdict in result.verdicts] == [True] * len(result.verdicts)
    assert len(result.verdicts) > 1
    with pytest.raises(irc.VerifyError, match="Wrong: tensor "):
        irc.compile(EXAMPLE, [Wrong()], verify=True)
    assert not irc.compile(EXAMPLE).verdicts


def test_two_models_are_compared_in_one_line(tmp_path: Path) -> None:
    result = irc.compile(EXAMPLE)
    result.save(tmp_path / "o.onnx", fold_map=tmp_path / "m.json")
    found = irc.verify(EXAMPLE, tmp_path / "o.onnx")
    assert list(found.lines()) == ["19 tensors agree within their rounding bounds"]
    images = np.random.default_rng(0).random((2, 1, 8, 8), np.float32)
    found = irc.align(
        onnx.load(EXAMPLE), result.module, fold_map=tmp_path / "m.json", inputs={"image": images}
    )
    assert found.first_divergence is None
    assert dict(found.alone)["stem/conv:0"].startswith("inside stem/conv")
    wrong = irc.compile(EXAMPLE, [Wrong()]).model
    with pytest.raises(irc.VerifyError, match=r"^the first to diverge is '[^']+': "):
        irc.verify(EXAMPLE, wrong)
    assert irc.align(EXAMPLE, wrong).first_divergence is not None
    assert irc.verify(EXAMPLE, wrong, tolerance=irc.Tolerance(atol=1e9)).first_divergence is None


def test_one_file_of_inputs_needs_no_list(tmp_path: Path) -> None:
    """Its name was read letter by letter."""
    (info,) = onnx.load(EXAMPLE).graph.input
    shape = [dim.dim_value or 1 for dim in info.type.tensor_type.shape.dim]
    np.savez(tmp_path / "inputs.npz", **{info.name: np.ones(shape, np.float32)})
    for given in (tmp_path / "inputs.npz", str(tmp_path / "inputs.npz")):
        assert irc.align(EXAMPLE, EXAMPLE, inputs=given).first_divergence is None


def test_a_certificate_that_is_missing_is_named() -> None:
    with pytest.raises(
        irc.Rejected, match=r"^nope\.json: cannot be read: No such file or directory$"
    ):
        irc.certify(EXAMPLE, EXAMPLE, "nope.json")


def test_passes_that_are_named_can_be_given() -> None:
    from irc.passes import PatternPass

    with pytest.raises(irc.UsageError) as error:
        irc.compile(EXAMPLE, "Nothing")
    assert PatternPass.__name__ not in str(error.value)
