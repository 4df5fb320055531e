"""Fold maps applied to the torch module.

The numbers of the folded model, and what has no place in a module.
"""

from __future__ import annotations

import copy
from typing import Any

import irc
import numpy as np
import pytest
from harness import run
from irc.passes import PassContext
from irc.tools.recovery import recover
from irc.tools.recovery.checkpoint import from_state
from onnx import numpy_helper

torch = pytest.importorskip(
    "torch", reason="torch is not installed: make test-exporters", exc_type=ImportError
)

from irc.backends.torch import Applied, apply  # noqa: E402

from exporters.architectures import ARCHITECTURES, conv, norm, settle  # noqa: E402 - needs torch

nn = torch.nn
SHAPE = (3, 16, 16)
NORM = nn.modules.batchnorm._BatchNorm

NOT_WHOLE = {
    "shared-heads": "the module is called more than once, and the calls have different weights now",
    "standardised": "Conv 'second' is StandardisedConv",
}
"""Architectures of which some folds have no place in the module, with the reason."""
MERGED = ("repvgg", "sums")
"""Architectures with layers of one value that are added."""
DENSE = ("temporal", "tokens")
"""Architectures with a Linear that is MatMul and Add in ONNX: its bias is not in the fold map."""


def compiled(model: Any, x: Any, passes: Any = None) -> irc.Result:
    """The folded model, in which layers that are added stay several."""
    return irc.compile(
        model, passes, args=(x,), context=PassContext(disabled=frozenset({"MergeBranches"}))
    )


def network(name: str) -> Any:
    torch.manual_seed(0)
    return settle(ARCHITECTURES[name].build(), ARCHITECTURES[name].shape)


def sample(name: str) -> Any:
    return torch.randn(2, *ARCHITECTURES[name].shape, generator=torch.Generator().manual_seed(1))


def results(found: Any) -> list[Any]:
    return [
        each.detach().double().numpy() for each in (found if isinstance(found, tuple) else (found,))
    ]


def assert_equal_elements(result: irc.Result, model: Any, applied: Applied) -> None:
    """Weights and biases of the layers are those of the folded model, bit by bit."""
    tensors = {
        tensor.name: numpy_helper.to_array(tensor) for tensor in result.model.graph.initializer
    }
    for layer in result.fold_map.layers:
        if layer["module"] in applied.layers:
            module, weight = model.get_submodule(layer["module"]), tensors[layer["weight"]["name"]]
            turned = weight.ndim == 2 and layer["weight"]["out_axis"] in (1, -1)
            assert np.array_equal(module.weight.detach().numpy(), weight.T if turned else weight)
            if layer["bias"] is not None:
                assert np.array_equal(module.bias.detach().numpy(), tensors[layer["bias"]["name"]])


def assert_near(result: irc.Result, model: Any, x: Any) -> None:
    with torch.no_grad():
        found = results(model(x))
    (name,) = (info.name for info in result.model.graph.input)
    expected = run(result.model, {name: x.numpy()})
    for here, there in zip(found, expected.values(), strict=True):
        assert np.abs(here - there).max() <= 1e-5 * np.abs(there).max()


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_architectures(name: str) -> None:
    model, x = network(name), sample(name)
    result = compiled(model, x)
    applied = apply(result.fold_map, model)
    reasons = set(applied.left.values())
    if name in NOT_WHOLE:
        assert any(NOT_WHOLE[name] in reason for reason in reasons)
    elif name in DENSE:
        assert any("give the folded model" in reason for reason in reasons)
        model = network(name)
        applied = apply(result.fold_map, model, result.model)
        assert not applied.left
    else:
        assert not applied.left
    folded = [s for s in result.fold_map.sources if s["kind"] == "batch_norm" and s["layers"]]
    left = [
        source
        for source in folded
        if any(label.startswith(f"{source['id']} ") for label in applied.left)
    ]
    assert {source["module"] for source in folded if source not in left} == set(applied.norms)
    for path in applied.norms:
        assert isinstance(model.get_submodule(path), nn.Identity)
    assert_equal_elements(result, model, applied)
    assert_near(result, model, x)


@pytest.mark.parametrize("name", MERGED)
def test_a_layer_that_is_the_sum_of_several_has_no_place(name: str) -> None:
    model, x = network(name), sample(name)
    result = irc.compile(model, args=(x,))
    applied = apply(result.fold_map, model)
    assert any("disable MergeBranches" in reason for reason in applied.left.values())
    expected = network(name)
    with torch.no_grad():
        for found, wanted in zip(results(model(x)), results(expected(x)), strict=True):
            assert np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max()


@pytest.mark.parametrize(
    "name", ["residual", "decoder", "generator", "mlp", "repvgg", "pool-norms"]
)
def test_equalization_and_corrections(name: str) -> None:
    model, x = network(name), sample(name)
    passes = "default,CrossLayerEqualization,HighBiasAbsorption,BiasCorrection"
    result = compiled(model, x, passes)
    assert result.fold_map.data["history"]
    applied = apply(result.fold_map, model, result.model)
    assert not applied.left
    assert_equal_elements(result, model, applied)
    assert_near(result, model, x)


def test_limits_of_an_equalized_clip_have_no_place() -> None:
    for passes, whole in (
        ("CrossLayerEqualization", False),
        ("CrossLayerEqualization{clip=keep}", True),
    ):
        model, x = network("depthwise"), sample("depthwise")
        result = irc.compile(model, f"default,{passes}", args=(x,))
        applied = apply(result.fold_map, model, result.model)
        assert (not applied.left) == whole
        assert any("clip=keep" in reason for reason in applied.left.values()) != whole
        with torch.no_grad():
            found, expected = model(x), network("depthwise")(x)
        assert float((found - expected).abs().max()) <= 1e-5 * float(expected.abs().max())


class Code(nn.Module):
    """Affines that are code of forward, behind a layer with a BatchNorm, and one that is not."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm1, self.second, self.norm2 = conv(3, 4), norm(4), conv(4, 4), norm(4)

    def forward(self, x: Any) -> Any:
        return self.norm2(self.second(torch.relu(self.norm1(self.first(x)) * 2 + 1)))


def test_affines_that_are_code_stay_with_what_they_belong_to() -> None:
    torch.manual_seed(0)
    model, x = settle(Code(), SHAPE), torch.randn(2, *SHAPE)
    before = copy.deepcopy(model)
    result = irc.compile(model, args=(x,))
    assert result.fold_map.count() == {"folded": 4}
    applied = apply(result.fold_map, model)
    assert applied.layers == ["second"]
    assert applied.norms == ["norm2"]
    assert any("is code of forward, not a module" in reason for reason in applied.left.values())
    assert torch.equal(model.first.weight, before.first.weight)
    with torch.no_grad():
        assert torch.allclose(model(x), before(x), atol=1e-5)


class Shared(nn.Module):
    """One block called twice, also under a second name."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(conv(3, 3), norm(3), nn.ReLU())
        self.again = self.block

    def forward(self, x: Any) -> Any:
        return self.again(self.block(x))


class HalfShared(Shared):
    """The convolution is called once more without its BatchNorm."""

    def forward(self, x: Any) -> Any:
        return self.again(self.block(x)) + self.block[0](x)


@pytest.mark.parametrize(("kind", "whole"), [(Shared, True), (HalfShared, False)])
def test_shared_modules(kind: Any, whole: bool) -> None:
    torch.manual_seed(0)
    model, x = settle(kind(), SHAPE), torch.randn(2, *SHAPE)
    before = copy.deepcopy(model)
    applied = apply(irc.compile(model, args=(x,)).fold_map, model)
    assert (not applied.left) == whole
    assert isinstance(model.block[1], nn.Identity if whole else nn.BatchNorm2d)
    assert isinstance(model.again[1], nn.Identity if whole else nn.BatchNorm2d)
    with torch.no_grad():
        assert torch.allclose(model(x), before(x), atol=1e-5)


class Reader(nn.Module):  # type: ignore[misc, name-defined]
    """A convolution before a BatchNorm, whose weight code or another convolution reads, too."""

    def __init__(self, hook: Any, tied: bool) -> None:
        super().__init__()
        self.first, self.norm, self.second = (
            hook(nn.Conv2d(3, 3, 1)),
            nn.BatchNorm2d(3),
            nn.Conv2d(3, 3, 1),
        )
        self.tied = tied
        if tied:
            self.second.weight = self.first.weight

    def forward(self, x: Any) -> Any:
        y = self.norm(self.first(x))
        return self.second(y) if self.tied else y + nn.functional.conv2d(x, self.first.weight)


def test_a_weight_that_code_of_forward_reads_stays() -> None:
    for tied in (True, False):
        torch.manual_seed(0)
        model, x = settle(Reader(lambda layer: layer, tied), SHAPE), torch.randn(2, *SHAPE)
        expected = model(x)
        applied = apply(compiled(model, x).fold_map, model)
        assert applied.layers == (["first"] if tied else [])
        assert tied or any("reads its weight, too" in reason for reason in applied.left.values())
        assert torch.allclose(model(x), expected, atol=1e-4)


def test_a_weight_that_a_hook_computes_stays() -> None:
    plain, hooked = (
        settle(Reader(hook, False), SHAPE)
        for hook in (lambda layer: layer, torch.nn.utils.spectral_norm)
    )
    x = torch.randn(2, *SHAPE)
    result = compiled(plain, x)
    for name in ("weight", "bias", "running_mean", "running_var"):
        getattr(hooked.norm, name).data.copy_(getattr(plain.norm, name))
    expected = hooked(x)
    applied = apply(result.fold_map, hooked, result.model)
    assert applied.layers == []
    assert any("is computed in a hook" in reason for reason in applied.left.values())
    assert torch.equal(hooked(x), expected)


def test_a_recovered_map_needs_the_model() -> None:
    model, x = network("residual"), sample("residual")
    before = copy.deepcopy(model)
    folded = torch.onnx.export(model, (x,), dynamo=True, verbose=False).model_proto
    state = {key: tensor.numpy() for key, tensor in model.state_dict().items()}
    fold_map = recover(folded, from_state(state)).fold_map
    applied = apply(fold_map, model, folded)
    assert len(applied.norms) == 6
    assert not applied.left
    with torch.no_grad():
        assert torch.allclose(model(x), before(x), atol=1e-5)


def test_another_module_or_model_is_refused() -> None:
    model, x = network("residual"), sample("residual")
    result = irc.compile(model, args=(x,))
    other = copy.deepcopy(model)
    with torch.no_grad():
        next(m for m in other.modules() if isinstance(m, NORM)).running_mean.add_(1)
    applied = apply(result.fold_map, other)
    assert len(applied.norms) == 5
    assert any("differ from the fold map's" in reason for reason in applied.left.values())
    with pytest.raises(irc.FoldMapError, match="belongs to another model"):
        apply(result.fold_map, model, irc.compile(network("plain"), args=(sample("plain"),)).model)
    result.fold_map.adopt(result.model)
    with pytest.raises(irc.FoldMapError, match="holds no source model"):
        apply(result.fold_map, model)
