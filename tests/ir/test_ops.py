"""The operator table agrees with the schemas of ONNX."""

from __future__ import annotations

from collections import defaultdict
from typing import get_args

import numpy as np
import pytest
from float64 import evaluate
from graphs import F64, NEWEST, Graph
from irc.ir.graph import Required
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
    """Return the schemas of an operator, none if the installed onnx is older."""
    return SCHEMAS.get(info.onnx or "", [])


@pytest.mark.parametrize("name", BY_ONNX_NAME)
def test_a_row_takes_every_number_of_inputs_that_onnx_does(name: str) -> None:
    info = BY_ONNX_NAME[name]
    if not known(info):
        pytest.skip("newer than the installed onnx package")
    assert info.arity[0] == min(schema.min_input for schema in known(info))
    assert info.arity[1] in (MANY, max(schema.max_input for schema in known(info)))
    assert info.since == min(schema.since_version for schema in known(info))


WORDS = {
    **dict.fromkeys(("X", "x", "input"), "data"),
    **dict.fromkeys(("data_0", "inputs", "Inputs"), "inputs"),
    **dict.fromkeys(("Scale", "x_scale", "y_scale"), "scale"),
    **dict.fromkeys(("x_zero_point", "y_zero_point"), "zero_point"),
    "A": "lhs",
    "W": "weight",
    "R": "recurrence",
    "P": "peepholes",
    "K": "k",
    "mask": "mask",
    "Y_h": "output_h",
    "Y_c": "output_c",
    "Indices": "indices",
    "Values": "values",
}
"""What irc calls the operands and results for which ONNX has a letter, or several words."""

WORDS_OF = {
    "Gemm": {"A": "data", "B": "weight", "C": "bias"},
    "Pow": {"X": "base", "Y": "exponent"},
    "Where": {"X": "x", "Y": "y"},
    "ConstantOfShape": {"input": "shape"},
}
"""The words that differ for an operator."""


def word(schema: defs.OpSchema, index: int) -> str:
    """Return the name that an operand has in its row."""
    name, first = schema.inputs[index].name, schema.inputs[0].name
    words = {**WORDS, "B": "rhs" if first == "A" else "bias", **WORDS_OF.get(schema.name, {})}
    return words.get(name, name)


@pytest.mark.parametrize("name", [name for name, info in OPS.items() if info.onnx])
def test_operands_and_results_have_the_names_of_onnx(name: str) -> None:
    info = OPS[name]
    if not known(info):
        pytest.skip("newer than the installed onnx package")
    schemas = sorted(known(info), key=lambda schema: schema.since_version)
    for i, operand in enumerate(info.inputs):
        newest = [schema for schema in schemas if len(schema.inputs) > i][-1]
        assert operand.rstrip("?*") == word(newest, i)
        is_variadic = newest.inputs[i].option == defs.OpSchema.FormalParameterOption.Variadic
        assert operand.endswith("*") == is_variadic
        assert operand.endswith("?") == (i >= min(schema.min_input for schema in schemas))
    assert info.results[0] in ("output", "values", "outputs*")
    names = [WORDS.get(result.name, result.name) for result in schemas[-1].outputs]
    assert [result.rstrip("?*") for result in info.results[1:]] == names[1 : len(info.results)]


def test_operands_that_no_operator_lacks() -> None:
    """The types say that `node["weight"]` is never None."""
    optional = {name.rstrip("?") for row in OPS.values() for name in row.inputs if "?" in name}
    assert not optional & set(get_args(Required))
    assert set(get_args(Required)) <= {name for row in OPS.values() for name in row.inputs}


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


def test_layers_are_maps_of_channels() -> None:
    layers = {name for name, row in OPS.items() if Trait.LINEAR in row.traits}
    assert {name for name, row in OPS.items() if row.grouped} == layers
    assert {name for name, row in OPS.items() if row.terms} == {*layers, "einsum"}
    assert all(OPS[name].bounds for name in layers)


def at_zero(op: str, count: int, index: int) -> float:
    """Return what an operator makes of a zero as operand `index` beside others of -1."""
    graph = Graph(opset=NEWEST, dtype=F64)
    operands = [graph.initializer(np.full(1, -float(i != index))) for i in range(count)]
    graph.output(graph.node(op, operands), None)
    return float(evaluate(graph.model(), {}).popitem()[1].item())


def takes_floats(name: str | None) -> bool:
    """Whether the first operand of an operator may be of float64."""
    return name is not None and "tensor(double)" in defs.get_schema(name).inputs[0].types


POINTWISE = [
    name
    for name, row in OPS.items()
    if {Trait.ELEMENTWISE, Trait.BROADCASTS} & row.traits
    and row.arity in ((1, 1), (2, 2))
    and row.onnx not in ("Cast", "CastLike")
    and takes_floats(row.onnx)
]


@pytest.mark.parametrize("name", POINTWISE)
def test_a_zero_makes_an_operator_infinite_at_its_pole(name: str) -> None:
    info = OPS[name]
    assert info.onnx is not None
    for operand, index in info.operands.items():
        infinite = np.isinf(at_zero(info.onnx, info.arity[0], index))
        assert infinite == (operand == info.pole)
