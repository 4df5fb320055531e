"""The operator table agrees with the schemas of ONNX."""

from __future__ import annotations

from collections import defaultdict

import pytest
from irc.ir.ops import BY_ONNX_NAME, OPS
from irc.ir.ops.row import MANY, OpInfo, Trait
from onnx import defs

SCHEMAS: dict[str, list[defs.OpSchema]] = defaultdict(list)
for schema in defs.get_all_schemas_with_history():
    if schema.domain == "":
        SCHEMAS[schema.name].append(schema)

IRC_ONLY = {("nn.bias_add", "axis")}
"""Attributes that ONNX does not have."""


def known(info: OpInfo) -> list[defs.OpSchema]:
    """Return the schemas of an operator, none where the installed onnx package is older than the
    operator.
    """
    return SCHEMAS.get(info.onnx or "", [])


@pytest.mark.parametrize("name", BY_ONNX_NAME)
def test_a_row_takes_every_number_of_inputs_that_onnx_does(name: str) -> None:
    info = BY_ONNX_NAME[name]
    if not known(info):
        pytest.skip("newer than the installed onnx package")
    assert info.inputs[0] == min(schema.min_input for schema in known(info))
    assert info.inputs[1] in (MANY, max(schema.max_input for schema in known(info)))
    assert info.since == min(schema.since_version for schema in known(info))


@pytest.mark.parametrize("name", [name for name, info in OPS.items() if info.onnx])
def test_attributes_that_a_row_checks_are_those_of_onnx(name: str) -> None:
    info = OPS[name]
    if not known(info):
        pytest.skip("newer than the installed onnx package")
    real = {attribute for schema in known(info) for attribute in schema.attributes}
    assert not {
        attribute
        for attribute in info.attrs
        if attribute not in real and (name, attribute) not in IRC_ONLY
    }


def test_every_trait_is_of_some_operator() -> None:
    assert set(Trait) == {trait for row in OPS.values() for trait in row.traits}


def test_no_two_rows_stand_for_one_onnx_operator() -> None:
    lowered = [row for row in OPS.values() if row.onnx and Trait.MADE_BY_PASSES not in row.traits]
    assert len(lowered) == len(BY_ONNX_NAME)
