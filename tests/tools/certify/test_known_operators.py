"""Which operators of the table the checker of certificates does not know.

The checker has tables of its own, so that a fault in irc's table cannot blind it. An operator that
it does not know is equal to the same operator on equal operands, and nothing more is proved of it.
"""

from __future__ import annotations

import ast
from pathlib import Path

from irc.ir.ops import BY_ONNX_NAME, OPS
from irc.passes.affine.rules.table import AFFINE_RULES
from irc.tools.certify.checker import crossing

UNKNOWN = {
    *("Acosh", "ArgMax", "ArgMin", "Asinh", "Atanh", "Cosh", "GatherElements"),
    *("Hardmax", "LRN", "NonZero"),
    *("ScatterElements", "Shrink", "Sinh", "Swish", "TopK", "Trilu"),
}
"""Operators that no module of the checker names."""

NO_CROSSING = {
    *("Clip", "Conv", "ConvTranspose", "DequantizeLinear", "Dropout", "Flatten", "Gemm"),
    *("Identity", "Neg", "RMSNormalization", "Relu", "Transpose", "Unsqueeze"),
}
"""Operators that an affine passes, and that the checker names in other tables than CROSSINGS."""


def named() -> set[str]:
    """Return the operators of the table whose ONNX name stands in the checker."""
    texts = {
        node.value
        for path in Path(crossing.__file__).parent.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    return texts & BY_ONNX_NAME.keys()


def test_operators_that_the_checker_does_not_know_are_listed() -> None:
    assert BY_ONNX_NAME.keys() - named() == UNKNOWN, (
        "a new operator: if an affine passes it, give it a row in CROSSINGS; else list it in UNKNOWN"
    )


def test_an_operator_that_an_affine_passes_is_known_to_the_checker() -> None:
    passed = {name for op in AFFINE_RULES if (name := OPS[op].onnx)}
    assert passed - crossing.CROSSINGS.keys() == NO_CROSSING, (
        "without a row in CROSSINGS (tools/certify/checker/crossing.py) the certificate has an"
        " unproved step, and irc certify exits with 3"
    )
    assert not passed & UNKNOWN
