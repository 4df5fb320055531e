"""What costs precision in float16, and what a user forces or keeps float32."""

from __future__ import annotations

import json
from pathlib import Path

import irc
import numpy as np
import onnx
import pytest
from graphs import Graph
from irc.frontends.onnx import from_model
from irc.passes.float16.selection import Selection
from irc.tools.cli.main import main
from irc.tools.float16.converting import PRECISE
from irc.tools.float16.noise_budget import NoiseBudget
from onnx import ModelProto, numpy_helper
from streams import DATA, stream, written_norm


def chain(by: float = 1.0, opset: int = 17) -> ModelProto:
    """Return four operators in a row: first, tanh, product (of both), second."""
    graph = Graph(opset=opset)
    weights = [
        graph.initializer((np.eye(16) * factor).astype(np.float32)) for factor in (by, 1 / by)
    ]
    graph.node("MatMul", [graph.input("x", ["N", 6, 16]), weights[0]], "a", "first")
    graph.node("Tanh", ["a"], "t", "tanh")
    graph.node("Mul", ["a", "t"], "p", "product")
    graph.node("MatMul", ["p", weights[1]], "y", "second")
    graph.output("y", ["N", 6, 16])
    return graph.model()


def kept(found: irc.HalfModel) -> set[str]:
    return {each.name for each in found.stayed if each.reason == PRECISE}


MANY = {"x": np.random.default_rng(3).standard_normal((80, 6, 16)).astype(np.float32)}


def test_a_few_operators_stay_float32_for_a_target() -> None:
    model = stream(1.0, layers=12)
    plain = irc.to_float16(model, inputs=MANY, target=0)
    assert not plain.stayed
    target = plain.predicted["y"] + 0.3
    found = irc.to_float16(model, inputs=MANY, target=target)
    assert kept(found)
    assert len(kept(found)) <= 0.05 * (found.converted + len(found.stayed))
    assert found.predicted["y"] >= target


@pytest.mark.parametrize(("needed", "spare"), [(("first",), 0.3), (("first", "t_8"), 0.005)])
def test_a_target_is_reached_with_a_reserve_if_it_can(
    needed: tuple[str, ...], spare: float
) -> None:
    """`needed` would do for the target by `spare` dB. The reserve takes more, or cannot be had."""
    model = stream(1.0, layers=12)
    enough = irc.to_float16(model, inputs=MANY, target=0, keep_float32=needed).predicted["y"]
    found = irc.to_float16(model, inputs=MANY, target=enough - spare)
    assert found.predicted["y"] >= enough - spare
    assert kept(found) >= set(needed)
    assert len(kept(found)) > 1


def test_none_does_for_a_target_out_of_reach() -> None:
    model = stream(1.0, layers=12)
    before = irc.to_float16(model, inputs=MANY, target=0).predicted["y"]
    for target in (before + 2.9, before + 20, before - 1):
        found = irc.to_float16(model, inputs=MANY, target=target)
        assert not found.stayed
        assert found.predicted["y"] == before


def test_what_is_predicted_is_of_samples_that_choose_nothing() -> None:
    """Of four batches the second and the fourth: what is subnormal in others does not count."""
    batch = np.arange(80)[:, None, None] // 8
    plain, first, second = (
        irc.to_float16(
            chain(),
            inputs={"x": np.where(is_quiet, MANY["x"] * np.float32(2**-16), MANY["x"])},
            target=0,
        ).predicted["y"]
        for is_quiet in (batch < 0, batch % 2 == 0, batch % 2 == 1)
    )
    assert first == plain
    assert second < plain - 10


def test_the_noise_of_all_roundings_is_that_of_each() -> None:
    module = from_model(stream(100.0, layers=4))
    budget = NoiseBudget(module, Selection(module, 1.0, sums_in_half=False))
    together = budget.together([DATA])["y"]
    budget.measure([DATA])
    assert -10 * np.log10(budget.left(())) == pytest.approx(together, abs=1.0)
    everything = {node for site in budget.sites for node in (site.maker, *site.readers) if node}
    assert budget.left(everything) == 0


@pytest.mark.parametrize("opset", [13, 17])
def test_a_batch_normalization_that_stays_has_one_rounding(opset: int) -> None:
    """Its parameters have others, up to opset 14, in which they have the type of the data."""
    graph, random = Graph(opset=opset), np.random.default_rng(0)
    weight = graph.initializer(random.normal(size=(8, 3, 3, 3)).astype(np.float32))
    scale, variance = random.uniform(0.5, 2, 8), random.uniform(0.01, 1, 8)
    parameters = (scale, random.normal(size=8), random.uniform(2, 3, 8), variance)
    names = [graph.initializer(each.astype(np.float32)) for each in parameters]
    graph.node("Conv", [graph.input("x", ["N", 3, 8, 8]), weight], "c")
    graph.node("Relu", ["c"], "r")
    graph.node("BatchNormalization", ["r", *names], "n")
    graph.node("Sigmoid", ["n"], "y")
    graph.output("y", ["N", 8, 6, 6])
    data = np.tile(random.standard_normal((8, 3, 8, 8)).astype(np.float32), (5, 1, 1, 1))
    found = irc.to_float16(graph.model(), inputs={"x": data})
    assert found.predicted["y"] == pytest.approx(found.fidelity[0].sqnr, abs=0.01)


def test_predicted_beside_measured() -> None:
    found = irc.to_float16(stream(1e5), inputs=DATA)
    assert found.predicted["y"] == pytest.approx(found.fidelity[0].sqnr, abs=3)
    texts = dict(found.rows())
    assert texts[""] == f"{found.predicted['y']:.1f} dB predicted from the calibration"
    assert texts["operators"] == "13 to 15"


def test_below_opset_9_nothing_is_predicted() -> None:
    """Where, which switches the roundings, is newer."""
    old, newer = (irc.to_float16(chain(opset=opset), inputs=DATA) for opset in (8, 9))
    assert not old.predicted
    assert newer.predicted["y"] > 50
    assert old.fidelity == newer.fidelity


def epsilons(model: ModelProto) -> list[float]:
    numbers = [numpy_helper.to_array(tensor) for tensor in model.graph.initializer]
    return sorted({float(each) for each in numbers if each.size == 1 and each.dtype == np.float16})


def test_an_epsilon_that_would_be_0_is_raised_beside_larger_numbers() -> None:
    found = irc.to_float16(stream(1e5, epsilon=1e-6, norm="RMS"), inputs=DATA)
    assert not found.stayed
    assert found.is_finite
    assert 2.0**-24 in epsilons(found.model)
    assert {each.note for each in found.constants if each.note} == {"an epsilon, now 2^-24"}


def test_it_is_not_beside_a_silent_token() -> None:
    """0 / sqrt(0 + epsilon) is 0: the sum stays float32, which has the epsilon."""
    silent = {"x": DATA["x"].copy()}
    silent["x"][:, 2] = 0
    model = stream(1e5, epsilon=1e-6, norm="RMS", layers=1)
    found = irc.to_float16(model, inputs=silent)
    reasons = {each.reason for each in found.stayed if each.op_type == "Add"}
    assert any("is 0 in float16" in reason for reason in reasons)
    assert found.is_finite


def test_a_region_stays_float32() -> None:
    found = irc.to_float16(chain(), inputs=DATA, keep_float32=["tanh..product"])
    assert {each.name for each in found.stayed} == {"tanh", "product"}
    assert {each.reason for each in found.stayed} == {"kept by the user"}
    with pytest.raises(irc.UsageError, match=r"no way leads from 'product' to 'tanh'"):
        irc.to_float16(chain(), inputs=DATA, keep_float32=["product..tanh"])


@pytest.mark.parametrize("name", ["product", "p", "Mul", "first..second"])
def test_an_operator_is_forced(name: str) -> None:
    """A range beyond the margin, and within float16."""
    model = chain(50000 / float(np.abs(DATA["x"]).max()))
    assert "product" in {each.name for each in irc.to_float16(model, inputs=DATA).stayed}
    found = irc.to_float16(model, inputs=DATA, force=[name])
    assert "product" not in {each.name for each in found.stayed}
    assert found.is_finite


def test_what_is_forced_has_a_float16_form_all_the_same() -> None:
    """A constant that float16 does not have stays float32 with its operator."""
    graph = Graph()
    x = graph.input("x", ["N", 6, 16])
    large = graph.initializer(np.array(1e5, np.float32))
    graph.node("Tanh", [graph.node("Div", [x, large], "d", "quotient")], "y")
    graph.output("y", ["N", 6, 16])
    found = irc.to_float16(graph.model(), inputs=DATA, force=["quotient"])
    assert ("quotient", "the constant 100000 exceeds float16") in [
        (each.name, each.reason) for each in found.stayed
    ]


def test_forced_and_kept_contradict() -> None:
    with pytest.raises(irc.UsageError, match="Tanh 'tanh' is both to be forced and to be kept"):
        irc.to_float16(chain(), inputs=DATA, force=["tanh"], keep_float32=["Tanh"])


def test_the_command_takes_them(tmp_path: Path) -> None:
    onnx.save(chain(), tmp_path / "model.onnx")
    np.savez(tmp_path / "samples.npz", **DATA)
    report = tmp_path / "report.json"
    command = ["compile", str(tmp_path / "model.onnx"), "-o", str(tmp_path / "half.onnx")]
    command += ["--float16", "--inputs", str(tmp_path / "samples.npz"), "--json", str(report)]
    assert main([*command, "--keep-float32", "tanh..product", "--target", "0dB", "-q"]) == 0
    document = json.loads(report.read_text("utf-8"))["float16"]
    assert {each["node"] for each in document["stayed"]} == {"tanh", "product"}
    assert document["operators"] == [4, 8]
    assert document["predicted_db"]["y"] > 50
    assert main([*command, "--force", "nothing"]) == 2


def test_a_norm_that_is_written_out_is_rounded_once() -> None:
    """ONNX has the operator from opset 17 on; below it nine results are rounded."""
    one, nine = (irc.to_float16(written_norm(opset=n), inputs=MANY, target=0) for n in (17, 16))
    assert [node.op_type for node in one.model.graph.node if "Norm" in node.op_type]
    assert (one.converted, nine.converted) == (3, 11)
    assert one.fidelity[0].sqnr > nine.fidelity[0].sqnr + 0.5
