"""onnxruntime fuses as many operators of the compiled network as of the exported one."""

from __future__ import annotations

from collections import Counter

import harness
import irc
import pytest
from graphs import stimuli

torch = pytest.importorskip(
    "torch", reason="torch is not installed: make test-exporters", exc_type=ImportError
)

from exporters.fusible import FUSIBLE  # noqa: E402 - needs torch
from exporters.fusions import EXPORTERS, LEVELS, export, fused, operators, optimized  # noqa: E402

HAVE_IT_IN_THEM = {
    "LayerNormalization": ("SkipLayerNormalization",),
    "Gelu": ("BiasGelu",),
    "MatMul by a constant, scaled": ("MatMul by a constant",),
}
"""Operators that are a fused one and more: with the sum in front of it, with a bias, with the scale
in the constant.
"""


def is_covered(op: str, before: Counter[str], after: Counter[str]) -> bool:
    """Whether `after` has as many of a fused operator, or of those that have it in them."""
    kinds = (op, *HAVE_IT_IN_THEM.get(op, ()))
    return sum(after[kind] for kind in kinds) >= sum(before[kind] for kind in kinds)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("name", FUSIBLE)
def test_no_fused_operator_less(name: str, exporter: str, level: str) -> None:
    source = export(name, exporter)
    result = irc.compile(source).model
    before, after = (optimized(model, level) for model in (source, result))
    found, wanted = fused(after), fused(before)
    assert [op for op in wanted if not is_covered(op, wanted, found)] == [], (
        f"{dict(wanted)}, now {dict(found)}"
    )
    assert operators(result).total() <= operators(source).total()
    assert operators(after).total() <= operators(before).total()


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("name", FUSIBLE)
def test_fusible_network_computes_the_same(name: str, exporter: str) -> None:
    source = export(name, exporter)
    result = irc.compile(source).model
    for inputs in stimuli(source, other=6, kinds=("random", "ones")):
        harness.assert_computes_the_same(source, result, inputs)
    assert irc.compile(result).model.SerializeToString() == result.SerializeToString()


FUSED = {
    "BERT": {"Gelu", "SkipLayerNormalization", "FusedMatMul"},
    "BERT as products and sums": {"Attention", "BiasGelu"},
    "GPT-2": {"FastGelu", "FusedMatMul"},
    "CLIP text": {"QuickGelu"},
    "MobileNetV3": {"HardSigmoid"},
    "EfficientNet": {"QuickGelu"},
    "Swin": {"LayerNormalization", "FusedMatMul"},
}
"""Fused operators that prove that there was one to lose."""


@pytest.mark.parametrize("name", FUSED)
def test_a_runtime_fuses_the_idioms(name: str) -> None:
    found: set[str] = set()
    for exporter in EXPORTERS:
        found |= set(fused(optimized(export(name, exporter), "all")))
    assert found >= FUSED[name]
