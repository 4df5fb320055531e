"""What the bounds of rounding leave to be said, and that they hold for numbers of any size."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from irc.tools.cli.main import main
from irc.tools.verify import Stimulus, graph_builder
from irc.tools.verify.comparison import Comparison
from irc.tools.verify.difference import compare_tensors, undecided_share, undecided_tensors
from irc.tools.verify.reference_tensor import ReferenceTensor
from irc.tools.verify.tensor_blocks import channel_rms
from onnx import ModelProto, numpy_helper
from streams import DATA, written_norm
from verification import text, verdict, verified


def lost(sign: int) -> ModelProto:
    """What is left of numbers after a greater one was added and subtracted."""
    return text(
        f"""g (float[2,4] x) => (float[2,4] y) <float big = {{1e9}}, float k = {{{sign}}}> {{
        a = Add(x, big) b = Sub(a, big) y = Mul(b, k) }}"""
    )


def test_what_rounding_can_move_by_all_of_it_is_not_called_verified(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The sign of a result does not tell there, and that is said."""
    rows = [row for row, _ in Comparison(lost(1)).differences(lost(-1))]
    assert not any(row.deviates for row in rows)
    assert undecided_tensors(rows) == ["b", "y"]
    assert undecided_share(rows) == pytest.approx(2 / 3)
    source = tmp_path / "a.onnx"
    onnx.save(lost(1), source)
    command = f"compile {source} -o {tmp_path / 'b.onnx'} --passes none --verify --json -".split()
    assert main(command) == 0
    out, err = capsys.readouterr()
    assert "verification is inconclusive: no result of the model can be compared" in err
    assert "0.67 of the elements undecided" in err
    last = json.loads(out)["verified"][-1]
    assert (last["silent_results"], round(last["undecided"], 2)) == (["y"], 0.67)
    assert main(["align", str(source), str(source)]) == 0
    out = capsys.readouterr().out
    assert (
        "1 tensors agree within their rounding bounds; 0.67 of their elements are undecided" in out
    )
    assert "or their rounding bounds as large as their values: " in out


@pytest.mark.parametrize(
    "array",
    [np.full((2, 4), np.nan), np.full((2, 4), np.inf), np.zeros((0, 4))],
    ids=["nan", "infinite", "empty"],
)
def test_what_has_no_finite_numbers_is_not_called_verified(array: Any) -> None:
    """Another sign would not show in NaN, nor anything where nothing is."""
    model = text("g (float[N,4] x) => (float[N,4] y) { y = Relu(x) }")
    verify = verified(model, inputs=[Stimulus("given", {"x": array.astype(np.float32)})])
    assert verify.undecided == ["y"]
    assert verify.warnings() == [
        "verification is inconclusive: no result of the model can be compared on these inputs"
    ]


def test_only_the_elements_that_are_no_finite_numbers_are_undecided() -> None:
    body = "g (float[2,4] x) => (float[2,4] y) <float k = {{{}}}> {{ y = Mul(x, k) }}"
    array = np.array([[1, np.nan, 2, np.inf], [3, -np.inf, 4, 5]], np.float32)
    inputs = [Stimulus("given", {"x": array})]
    ((row, _),) = Comparison(text(body.format(2)), inputs=inputs).differences(text(body.format(2)))
    assert (row.undecided, row.is_undecided, row.deviates) == (3, False, False)
    assert verdict(text(body.format(2)), text(body.format(-2)), inputs=inputs) == {"y"}
    unmade = text("g (float[2,4] x) => (float[2,4] y) { n = IsNaN(x) y = Where(n, x, x) }")
    made = text(
        "g (float[2,4] x) => (float[2,4] y) <float z = {0}> { n = IsNaN(x) y = Where(n, z, x) }"
    )
    assert verdict(unmade, made, inputs=inputs) == {"y"}, (
        "numbers where the source has none are told"
    )


def test_what_is_far_beyond_a_great_bound_is_accused() -> None:
    wrong = text(
        "g (float[2,4] x) => (float[2,4] y) <float k = {1e9}> { b = Mul(x, k) y = Neg(b) }"
    )
    assert verdict(lost(1), wrong) == {"b", "y"}


def test_zeros_are_decided() -> None:
    """Nothing moves them, so that anything else is accused."""
    model = text("g (float[2,4] x) => (float[2,4] y) { n = Neg(x) m = Min(x, n) y = Relu(m) }")
    rows = [row for row, _ in Comparison(model).differences(model)]
    assert not any(row.undecided for row in rows)
    assert verdict(
        model,
        text("g (float[2,4] x) => (float[2,4] y) <float e = {1e-30}> { a = Abs(x) y = Mul(a, e) }"),
    )


@pytest.mark.parametrize("op", ["Sqrt", "Reciprocal"])
@pytest.mark.parametrize("size", [1e-12, 1.0, 1e12])
def test_bounds_of_roots_and_reciprocals_do_not_grow_with_operands(op: str, size: float) -> None:
    model = text(f"g (float[2,4] x) => (float[2,4] y) {{ y = {op}(x) }}")
    body = "g (float[2,4] x) => (float[2,4] y) <float k = {{{}}}> {{ r = {}(x) y = Mul(r, k) }}"
    array = np.random.default_rng(0).uniform(1, 2, (2, 4)).astype(np.float32) * np.float32(size)
    inputs = [Stimulus("given", {"x": array})]
    assert not verdict(model, text(body.format(1 + 2**-22, op)), inputs=inputs)
    assert verdict(model, text(body.format(1 + 2**-14, op)), inputs=inputs) == {"y"}


def test_a_norm_of_large_numbers_is_decided() -> None:
    model = written_norm(1e5)
    rows = [
        row for row, _ in Comparison(model, inputs=[Stimulus("given", DATA)]).differences(model)
    ]
    assert len(rows) > 10
    assert undecided_share(rows) == 0


@pytest.mark.parametrize("size", [1e-320, 1e-200, 1.0, 1e200, 4e307])
def test_averages_of_float64_of_any_size(size: float) -> None:
    array = np.array([[[3.0, 4.0]], [[0.0, np.inf]]]) * size
    assert channel_rms(array)[0] == pytest.approx(size * 2.5, rel=1e-3)
    assert channel_rms(np.zeros((2, 3, 4))).tolist() == [0, 0, 0]


@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_faults_in_float64_of_any_size_are_accused(size: float) -> None:
    body = "g (double[4] x) => (double[4] y) <double k = {{{}}}> {{ y = Mul(x, k) }}"
    model, wrong = text(body.format(size)), text(body.format(-size))
    assert not verdict(model, model)
    assert verdict(model, wrong) == {"y"}
    (row,) = [
        row
        for row, stimulus in Comparison(model).differences(wrong)
        if stimulus.name.startswith("normal")
    ]
    assert (row.cosine, row.sqnr) == (pytest.approx(1), pytest.approx(-6.02, abs=0.01))


def test_without_noisy_runs_nothing_is_decided() -> None:
    value = np.ones((1, 2, 8), np.float32)
    assert compare_tensors("y", "", ReferenceTensor.from_noisy_runs(value, []), value).is_undecided


@pytest.mark.parametrize("opset", [17, 21, 22, 23, 24, 25])
@pytest.mark.parametrize("kind", ["float", "double", "float16"])
def test_the_effect_of_rounding_is_measured_in_every_opset(kind: str, opset: int) -> None:
    """onnxruntime has no RandomUniformLike of opset 22."""
    model = f"""g ({kind}[8,16] x) => ({kind}[8,16] y) {{
        a = Mul(x, x) s = Softmax(a) c = Sigmoid(s) d = Div(c, s) y = Add(d, x) }}"""
    comparison = Comparison(text(model, opset))
    rows = [
        row for row, _ in comparison.differences(text(model.replace("Mul(x, x)", "Abs(x)"), opset))
    ]
    assert not comparison.source.unmeasured
    assert {row.tensor for row in rows if row.deviates} >= {"a", "s"}
    assert not verdict(text(model, opset), text(model, opset))


@pytest.mark.parametrize("opset", [13, 21, 22, 23, 25])
def test_sums_in_another_order_agree_in_every_opset(opset: int) -> None:
    """A bound that was not measured accused these."""
    weight = np.random.default_rng(0).standard_normal((64, 8)).astype(np.float32)
    halves = "a, b = Split<axis = 1>(x, sizes) c = MatMul(b, w1) d = MatMul(a, w0) h = Add(c, d)"
    models = []
    for product in ("h = MatMul(x, w)", halves):
        model = text(
            f"g (float[2,64] x) => (float[2,8] y) <int64[2] sizes = {{32, 32}}> {{ {product} y ="
            " Mul(h, h) }",
            opset,
        )
        arrays = {"w": weight, "w0": weight[:32], "w1": weight[32:]}
        model.graph.initializer.extend(
            numpy_helper.from_array(array, name) for name, array in arrays.items()
        )
        models.append(model)
    assert not verdict(*models)


def test_a_bound_that_cannot_be_measured_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Noise is drawn by an operator that the runtime does not have.

    What carries none of it is compared.
    """
    model = text("g (float[4] x) => (float[4] y, float[4] z) { a = Relu(x) y = Exp(a) z = Neg(x) }")
    path = tmp_path / "a.onnx"
    onnx.save(model, path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            graph_builder.GraphBuilder,
            "random_uniform",
            lambda self, like, *_: self.op("Foo", [like]),
        )
        assert main(["align", str(path), str(path)]) == 0
        said = capsys.readouterr()
        assert (
            "warning: the effect of rounding on 'y' could not be measured, so it is undecided"
            in said.err
        )
        assert "as large as their values: 1 tensor: y" in said.out.replace("\n", " ")
        rows = [row for row, _ in Comparison(model).differences(model)]
    assert {row.tensor for row in rows if row.is_undecided} == {"y"}


def masked(sign: int, big: str, *, opset: int = 17, kind: str = "float") -> ModelProto:
    """Attention under a mask of zeros and ones, as exporters write it."""
    model = text(
        f"""g ({kind}[2,4] x, int64[2,4] mask) => ({kind}[2,4] y) <{kind} big = {{{big}}}, int64 k = {{1}}> {{
        one = Constant<value_float = 1.0>() c = CastLike(one, x) m = CastLike(mask, x) i = Sub(c, m) h = Mul(i, big)
        q = MatMul(x, w) a = Add(q, h) p = Softmax<axis = 1>(a) y = MatMul(p, v) }}""",
        opset,
    )
    rng, dtype = np.random.default_rng(0), np.float32 if kind == "float" else np.float64
    for name, scale in (("w", 1), ("v", sign)):
        array = (scale * rng.standard_normal((4, 4))).astype(dtype)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


@pytest.mark.parametrize("kind", ["float", "double"])
@pytest.mark.parametrize("big", ["-10000", "-1e9", "-3.4e38"])
def test_faults_behind_finite_masks_are_caught(big: str, kind: str) -> None:
    """1 - mask is not rounded.

    Noise of it, times -1e9, would be greater than all that the mask lets pass.
    """
    dtype = np.float32 if kind == "float" else np.float64
    feeds = {
        "x": np.random.default_rng(5).standard_normal((2, 4)).astype(dtype),
        "mask": np.array([[1, 1, 1, 0]] * 2),
    }
    inputs = [Stimulus("given", feeds)]
    model = masked(1, big, kind=kind)
    rows = [row for row, _ in Comparison(model, inputs=inputs).differences(model)]
    assert not any(row.is_undecided or row.deviates for row in rows)
    assert verdict(model, masked(-1, big, kind=kind), inputs=inputs) == {"y"}


def test_whole_numbers_that_are_rounded_get_noise() -> None:
    """Whole they are all, but not all whole numbers are there.

    In which order they are added decides.
    """
    given = [Stimulus("given", {"x": np.array([3.0, 5.0, 16777215.0], np.float32)})]
    first = text(
        "g (float[3] x) => (float[3] y) <float k = {16777217}> { a = Add(x, k) b = Add(a, k) y ="
        " Add(b, x) }"
    )
    second = text(
        "g (float[3] x) => (float[3] y) <float k = {16777217}> { c = Add(x, k) d = Add(c, x) y ="
        " Add(d, k) }"
    )
    assert not verdict(first, second, inputs=given)
    small = [Stimulus("given", {"x": np.array([3.0, 5.0, 7.0], np.float32)})]
    exact = text("g (float[3] x) => (float[3] y) <float k = {3}> { a = Mul(x, k) y = Sub(a, x) }")
    other = text("g (float[3] x) => (float[3] y) <float k = {2.0001}> { y = Mul(x, k) }")
    assert verdict(exact, other, inputs=small) == {"y"}
    assert not verdict(
        exact, text("g (float[3] x) => (float[3] y) { y = Add(x, x) }"), inputs=small
    )
