"""Pairs of models in the text language of onnx: whether a certificate proves the second one from
the first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import onnx
import pytest
from irc import Rejected, certify
from irc.ir.tensor import Array
from irc.tools.certify.checker.certificate import Replay
from irc.tools.certify.checker.document import FORMAT, VERSION
from irc.tools.certify.checker.program import Unproved
from irc.tools.certify.checker.refinement import load_typed
from irc.tools.certify.proving import prove
from irc.tools.certify.search import Search
from onnx import ModelProto, checker, parser

from .forgeries import sealed


def model(text: str, opset: int = 18) -> ModelProto:
    """Return the model of a graph without its header and name, or of a text that begins with its
    own header.
    """
    try:
        return parser.parse_model(
            text if text[0] == "<" else f'<ir_version: 8, opset_import: ["": {opset}]> g {text}'
        )
    except IndexError:
        if onnx.__version__.startswith("1.22."):
            pytest.skip("the parser of onnx 1.22 reads no denormal numbers")
        raise


def proof_of(source: ModelProto, result: ModelProto, document: object) -> dict[str, Any]:
    """The certificate with all steps that are found by the records of a compile."""
    made: dict[str, Any] = json.loads(json.dumps(prove(source, result, document)[1]))
    return made


def is_proved(source: str, result: str, *steps: dict[str, object], opset: int = 18) -> bool:
    """Whether the checker accepts exactly these steps."""
    pair = model(source, opset), model(result, opset)
    pair[1].producer_name += "'"  # equal messages need no proof
    document = sealed(
        {"format": FORMAT, "version": VERSION, "rewrites": [], "steps": list(steps)}, *pair
    )
    try:
        return certify(*pair, document) == len(steps)
    except Rejected:
        return False


def is_found(
    head: str,
    source: str,
    result: str,
    opset: int = 18,
    exact: Mapping[str, Array] = MappingProxyType({}),
) -> bool:
    """Whether steps are found that prove the second body from the first, and hold.

    `exact` has the numbers that constants of the second one were rounded from, by name.
    """
    pair = [model(f"{head} {{ {body} }}", opset) for body in (source, result)]
    for made in pair:
        if all(
            node.op_type != "GroupNormalization" for node in made.graph.node
        ):  # deprecated in its first version
            checker.check_model(made, full_check=True)
    search = Search(load_typed(pair[0]), load_typed(pair[1]), lambda _: [], exact=exact.get)
    search.attempt()
    if not search.is_proved:
        return False
    try:
        programs = load_typed(pair[0]), load_typed(pair[1])
        Replay(*programs, json.loads(json.dumps(search.found))).run()
    except Unproved:
        return False
    return True
