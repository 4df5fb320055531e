"""Integer inputs take numbers of their whole type, but for indices, sizes and counts."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import irc
import numpy as np
import onnx
import pytest
from harness import calls_of
from irc.passes import PassContext
from irc.support.errors import VerifyError
from irc.tools.cli.main import main
from irc.tools.verify import VerifyNumerics, run_budget
from irc.tools.verify.comparison import Comparison
from irc.tools.verify.input_generation import KINDS
from irc.tools.verify.integer_inputs import unrestricted_inputs
from onnx import ModelProto
from verification import text, verdict

ENDS = (
    "float low = {0}, float high = {255}, float least = {15}, uint8 none = {0}, float s = {0.1},"
    " int8 z = {0}"
)

PAIRS = {
    "relu of a cast": ("int32", "float", "c = Cast<to = 1>(x) y = Relu(c)", "y = Cast<to = 1>(x)"),
    "relu of quantized numbers": (
        *(
            "int8",
            "float",
            "d = DequantizeLinear(x, s, z) y = Relu(d)",
            "y = DequantizeLinear(x, s, z)",
        ),
    ),
    "maximum": ("int32", "int32", "o = Sub(x, x) y = Max(x, o)", "y = Identity(x)"),
    "magnitude": ("int64", "int64", "y = Abs(x)", "y = Identity(x)"),
    "signed image": (
        *("int8", "float", "u = Cast<to = 2>(x) y = Cast<to = 1>(u)", "y = Cast<to = 1>(x)"),
    ),
    "unsigned image": (
        *("uint8", "float", "u = Cast<to = 3>(x) y = Cast<to = 1>(u)", "y = Cast<to = 1>(x)"),
    ),
    "bounds": (
        *(
            "uint8",
            "float",
            "c = Cast<to = 1>(x) y = Clip(c, low, high)",
            "c = Cast<to = 1>(x) y = Clip(c, low, least)",
        ),
    ),
    "narrower": ("int64", "int64", "n = Cast<to = 5>(x) y = Cast<to = 7>(n)", "y = Identity(x)"),
}


def of(kind: str, result: str, body: str, rank: str = "N,4") -> ModelProto:
    return text(f"g ({kind}[{rank}] x) => ({result}[{rank}] y) <{ENDS}> {{ {body} }}")


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "result", "first", "second"), PAIRS.values(), ids=PAIRS)
def test_faults_of_numbers_that_are_negative_or_large_are_told(
    kind: str, result: str, first: str, second: str, tmp_path: Path
) -> None:
    a, b = of(kind, result, first), of(kind, result, second)
    for one, other in ((a, b), (b, a)):
        assert verdict(one, other) == {"y"}
        assert not verdict(one, one)
    onnx.save(a, tmp_path / "a.onnx")
    onnx.save(b, tmp_path / "b.onnx")
    assert main(["align", str(tmp_path / "a.onnx"), str(tmp_path / "b.onnx"), "-q"]) == 1
    assert (
        main(
            ["compile", str(tmp_path / "a.onnx"), "-o", str(tmp_path / "c.onnx"), "--verify", "-q"]
        )
        == 0
    )


@pytest.mark.parametrize("least", ["LARGE_BYTES", "HUGE_BYTES", "SLACK"])
def test_large_models_run_on_such_numbers(least: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LARGE_BYTES", least):
        monkeypatch.setattr(run_budget, name, 0)
    for kind, result, first, second in PAIRS.values():
        models = of(kind, result, first), of(kind, result, second)
        assert verdict(*models, thorough=least != "SLACK") == {"y"}


@pytest.mark.parametrize(("kind", "result", "first", "second"), PAIRS.values(), ids=PAIRS)
def test_a_compile_with_such_a_fault_is_refused(
    kind: str, result: str, first: str, second: str
) -> None:
    verify = VerifyNumerics()
    compiled = irc.compile(of(kind, result, first), context=PassContext([verify]))
    with pytest.raises(VerifyError, match="tensor 'y' is off by"):
        verify.finish(compiled.module, of(kind, result, second))


def test_eight_bits_are_covered_and_wider_types_far_beyond_them() -> None:
    for kind in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"):
        model = of(kind, "float", "y = Cast<to = 1>(x)", "N,64")
        feeds = {s.name.split()[0]: s.feeds["x"] for s in Comparison(model).inputs}
        info = np.iinfo(feeds["wide"].dtype)
        assert feeds["wide"].max() == min(info.max, 40_000)
        assert feeds["wide"].min() == max(info.min, -40_000)
        assert (feeds["negative"].max() < 0) == (info.min < 0)
        assert all(
            feeds[name].min() >= 0 and feeds[name].max() < 8
            for name in ("normal", "positive", "border")
        )


CONSTANTS = """int64 zero = {0}, int64 three = {3}, int64[1] o = {0}, int64[2] p = {0, 1}, int64[1] e = {9},
    int32 n = {5}, float low = {0}, float s = {0.5}, float[1] one = {1}, float[2] ends = {0, 1}"""
SMALL = {
    "index": "int64[N] i, float[40,4] x: y = Gather(x, i)",
    "index behind operators": (
        "int32[N] i, float[40,4] x: j = Cast<to = 7>(i) k = Add(j, three) l = Unsqueeze(k, o) y ="
        " Gather(x, l)"
    ),
    "index by way of a float": (
        "int32[N] i, float[40,4] x: f = Cast<to = 1>(i) g = Floor(f) j = Cast<to = 7>(g) y ="
        " Gather(x, j)"
    ),
    "index of a scatter": (
        "int64[2,4] i, float[40,4] x: u = Gather(x, p) y = ScatterElements(x, i, u)"
    ),
    "depth": "int64[3] j, int64[1] i: y = OneHot(j, i, ends)",
    "one-hot": "int64[3] i: y = OneHot(i, three, ends)",
    "shape": "int64[2] i, float[36] x: y = Expand(one, i)",
    "repeats": "int64[2] i, float[3,3] x: y = Tile(x, i)",
    "count": "int64 i: y = Range(zero, i, three)",
    "count in floats": "int32 i: f = Cast<to = 1>(i) y = Range(low, f, s)",
    "begin": "int64[1] i, float[9] x: y = Slice(x, i, e)",
    "scale": "int32[2] i, float[4,4] x: f = Cast<to = 1>(i) y = Resize(x, , f)",
    "divisor": "int32[4] i, int32[4] x: t = Add(i, n) y = Div(x, t)",
    "trips": (
        """int64 i, float[4] x: y = Loop(i, , x) <body = b (int64 k, bool c, float[4] v) => (bool d, float[4] t) {
        d = Identity(c) t = Neg(v) }>"""
    ),
    "captured": (
        """int64[2] i, float[4] x, bool c: y = If(c) <
        then_branch = a () => (float[2] t) { t = Gather(x, i) },
        else_branch = b () => (float[2] u) { u = Cast<to = 1>(i) }>"""
    ),
    "axes": "int64[1] i, float[4,4,4,4,4,4,4,4] x: y = ReduceSum(x, i)",
}


@pytest.mark.parametrize("case", SMALL.values(), ids=SMALL)
def test_indices_sizes_and_counts_stay_small(case: str) -> None:
    inputs, body = case.split(":", 1)
    model = text(f"g ({inputs}) => (float[M] y) <{CONSTANTS}> {{ {body} }}")
    assert "i" not in unrestricted_inputs(model)
    values = np.concatenate([s.feeds["i"].ravel() for s in Comparison(model).inputs])
    assert values.min() >= 0
    assert values.max() < 8


LARGE = {
    "moved": (
        "int64[2,4] i: t = Transpose(i) r = Reshape(t, e) g = Gather(r, zero) y = Mul(g, three)"
    ),
    "image beside an index": (
        "uint8[2,8] i, int64[3] j: c = Cast<to = 1>(i) g = Gather<axis = 1>(c, j) y = Mul(g, s)"
    ),
    "convolved": "uint8[1,1,5,5] i: c = ConvInteger(i, k, q) d = Cast<to = 1>(c) y = Mul(d, s)",
    "position of the greatest": (
        "int32[2,4] i: a = ArgMax<axis = 1, keepdims = 0>(i) y = Gather(one3, a)"
    ),
    "chosen": "int32[4] i, bool[4] c: o = Neg(i) y = Where(c, i, o)",
    "values of a scatter": "int32[4] i, int32[4] x: y = ScatterElements(x, p, i)",
}


@pytest.mark.parametrize("case", LARGE.values(), ids=LARGE)
def test_numbers_that_are_moved_summed_and_compared_are_large(case: str) -> None:
    inputs, body = case.split(":", 1)
    constants = """int64 zero = {0}, int64 three = {3}, int64[1] e = {8}, float s = {0.5},
        int64[4] p = {0, 1, 2, 3}, uint8 q = {3}, uint8[1,1,2,2] k = {1, 2, 3, 4}, float[4] one3 = {1, 2, 3, 4}"""
    model = text(f"g ({inputs}) => (float[M] y) <{constants}> {{ {body} }}")
    if "ScatterElements" in body or "Where" in body or "Transpose" in body:
        model.graph.output[0].type.tensor_type.elem_type = model.graph.input[
            0
        ].type.tensor_type.elem_type
    sets = {s.name.split()[0]: s.feeds for s in Comparison(model).inputs}
    assert np.abs(sets["wide"]["i"].astype(np.int64)).max() > 100
    assert all(feeds["j"].max() < 8 for feeds in sets.values() if "j" in feeds)


def test_small_numbers_are_taken_where_the_source_runs_on_no_others() -> None:
    """A product of floating tensors is taken for no index."""
    model = text("""g (int32[N,1] i, float[40] x) => (float[A,B] y) <float[1,1] one = {1}> {
        f = Cast<to = 1>(i) m = MatMul(f, one) j = Cast<to = 7>(m) y = Gather(x, j) }""")
    assert unrestricted_inputs(model) == {"i"}
    sets = Comparison(model).inputs
    assert [s.name.split()[0] for s in sets] == [*KINDS, *KINDS]
    assert {int(s.feeds["i"].max()) for s in sets} <= set(range(8))


def test_operators_that_are_not_known_may_take_anything_for_an_index() -> None:
    model = text("g (int32[4] i, int32[4] k) => (int32[4] y) { y = Add(i, k) }")
    model.graph.node[0].domain = "elsewhere"
    assert not unrestricted_inputs(model)
    function = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17, "f" : 1]>
        g (int32[4] i) => (int32[4] y) { y = f.Add(i) }
        <opset_import: ["" : 17], domain: "f"> Add (a) => (b) { b = Neg(a) }""")
    assert not unrestricted_inputs(function)


def test_time_is_linear() -> None:
    """So many inputs of so many operators would take minutes one by one."""
    calls = []
    for count in (1000, 2000):
        chain = "".join(f"t{n + 1} = Add(t{n}, x{n}) " for n in range(count))
        inputs = ", ".join(f"int32[4] x{n}" for n in range(count))
        model = text(f"g ({inputs}, int32[4] t0) => (int32[4] t{count}) {{ {chain} }}")
        assert len(unrestricted_inputs(model)) == count + 1
        calls.append(calls_of(partial(unrestricted_inputs, model)))
    assert calls[1] < 2.1 * calls[0]
