"""The left side of a line as an ONNX model, and the numbers of its variables."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
from graphs import Graph
from onnx import ModelProto

from .domains import FUNCTIONS, Free, Instance, frees, realized
from .operators import Op
from .statement import Statement, meaning
from .tensors import Field, Tensor, Undefined, Value, type_of

Numbers = Mapping[str, Any]
"""The elements of each free tensor, by name, as nested lists."""

DTYPES = {"reals": np.float64, "floats": np.float16, "integers": np.int8, "labels": np.float32}
WIDE = (1, 2, 2, 2)
"""The shape of data in a model, where a line has one element."""


def dtype_of(instance: Instance, kind: str) -> np.dtype[Any]:
    """Return the element type of the data of an instance; casts have one for each instance."""
    return type_of(instance["source"]) if kind == "types" else np.dtype(DTYPES[kind])


def tensors(instance: Instance, numbers: Numbers, kind: str) -> dict[str, Any]:
    """Return the variables of an instance as tensors of these numbers."""
    field = Field(dtype_of(instance, kind))

    def tensor(name: str, free: Free) -> Tensor:
        elements = np.empty(free.shape, object)
        made = np.asarray(numbers[name], bool if free.truth else field.dtype).reshape(free.shape)
        for index in np.ndindex(*free.shape):
            elements[index] = made[index]
        return Tensor(field, elements, constant=free.constant)

    return realized(instance, tensor)


def holds(condition: str, variables: Mapping[str, Any]) -> bool:
    """Return whether a condition holds of numbers.

    A quotient that does not exist has no property.
    """
    field = next((each.field for each in variables.values() if isinstance(each, Tensor)), Field())
    field.defined.clear()
    with np.errstate(all="ignore"):
        found = meaning(condition, {**FUNCTIONS, **variables})
    return bool(getattr(found, "value", found)) and all(field.defined)


def result(expression: str, variables: Mapping[str, Any]) -> Tensor | None:
    """Return the value of one side, None where it has none."""
    field = next((each.field for each in variables.values() if isinstance(each, Tensor)), Field())
    field.defined.clear()
    try:
        with np.errstate(all="ignore"):
            found = meaning(expression, {**FUNCTIONS, **variables})
    except Undefined:
        return None
    return found if all(field.defined) else None


def agree(a: Tensor | None, b: Tensor | None) -> bool:
    """Return whether two sides are the same."""
    if a is None or b is None or a.shape != b.shape or a.field.dtype != b.field.dtype:
        return False
    return all(a.field.same(x, y) for x, y in zip(a.array.ravel(), b.array.ravel(), strict=True))


def drawn(
    instance: Instance, rng: np.random.Generator, kind: str, *, uniform: bool = True
) -> dict[str, Any]:
    """Return small numbers for the free tensors of an instance, zeros and ones among them.

    Without `uniform` the numbers of a vector differ: one number for all channels passes more.
    """
    choices = {"reals": [-2, -1, -0.5, 0, 0.5, 1, 2, 3], "floats": [-2, -1, -0.5, 0, 0.5, 1, 2, 3, np.inf, np.nan],
               "integers": [-128, -2, -1, 0, 1, 2, 3, 127], "labels": [0], "types": [0, 1, 100]}[kind]  # fmt: skip
    if kind == "types" and "f" in instance["source"]:
        choices.append(0.3)
    vectors = [
        free
        for _, free in frees(instance)
        if free.constant and len(free.shape) == 1 and free.shape[0] <= len(choices)
    ]
    found: dict[str, Any] = {}
    start = 1
    for name, free in frees(instance):
        if free.truth:
            found[name] = rng.integers(0, 2, free.shape).astype(bool).tolist()
        elif kind == "labels" and not free.constant:
            found[name] = np.arange(start, start + prod(free.shape)).reshape(free.shape).tolist()
            start += prod(free.shape)
        elif free.varied or (free in vectors and not uniform):
            found[name] = rng.choice(choices, free.shape, replace=False).tolist()
        elif free.shape and rng.random() < 0.4:
            found[name] = np.full(free.shape, rng.choice(choices)).tolist()
        else:
            found[name] = rng.choice(choices, free.shape).tolist()
    return found


def built(
    statement: Statement,
    instance: Instance,
    numbers: Numbers,
    kind: str,
    around: str = "none",
    opset: int = 21,
) -> ModelProto:
    """Return the left side as a model.

    With `around`, a layer stands before its data or after its result, or any operator as its
    `reader`.
    """
    graph = Graph(opset=opset, dtype=dtype_of(instance, kind))
    fixed = tensors(instance, numbers, kind)
    given: dict[str, Any] = {}

    def variable(name: str, free: Free) -> Any:
        if free.constant:
            return fixed[name] if name in fixed else _constant_of(fixed, name)
        shape = free.shape or WIDE
        value = Value(graph, graph.input(name, shape, np.dtype(bool) if free.truth else None))
        return _layer(value, shape) if around == "before" and not free.truth else value

    given = realized(instance, variable)
    found = meaning(statement.left, {**FUNCTIONS, **given})
    if around == "after":
        sample = result(statement.left, fixed)
        assert sample is not None
        found = _layer(found, sample.shape or WIDE)
    if around == "reader":
        found = found.node(
            {"types": "Not" if instance.get("kind") == "bool" else "Abs"}.get(kind, "Neg"), found
        )
    graph.output(found.name)
    return graph.model()


def _constant_of(fixed: Mapping[str, Any], name: str) -> Any:
    stem, _, index = name.partition(".")
    return fixed[stem].constants[int(index)]


def _layer(value: Value, shape: tuple[int, ...]) -> Value:
    """Return the value after a layer that keeps its shape."""
    graph = value.graph
    if len(shape) < 2:
        raise Undefined("no layer of this rank")
    channels = shape[1]
    weight = (np.arange(channels * channels).reshape(channels, channels) % 3 + 1).astype(
        graph.dtype
    )
    bias = graph.initializer(np.arange(1, channels + 1).astype(graph.dtype))
    if len(shape) == 2:
        return Value(graph, graph.node("Gemm", [value.name, graph.initializer(weight), bias]))
    weight = weight.reshape(channels, channels, *[1] * (len(shape) - 2))
    return Value(graph, graph.node("Conv", [value.name, graph.initializer(weight), bias]))


def node_of(op: Op, shape: tuple[int, ...]) -> Any:
    """Return the node of irc that an operator with its attributes is, on data of a shape."""
    from irc.frontends.onnx import from_model

    graph = Graph(dtype=np.dtype(np.float32))
    graph.output(op(Value(graph, graph.input("x", shape))).name)
    return next(
        node for node in from_model(graph.model()).graph if node.op not in ("constant", "return")
    )


def encoded(instance: Instance, numbers: Numbers) -> dict[str, Any]:
    """Return an instance and its numbers as data."""
    shown: dict[str, Any] = {}
    for name, value in instance.items():
        if isinstance(value, Free):
            shown[name] = {
                "shape": list(value.shape),
                "constant": value.constant,
                "truth": value.truth,
            }
        elif isinstance(value, Op):
            constants = [
                {"shape": list(c.shape), "constant": c.constant, "truth": c.truth}
                if isinstance(c, Free)
                else c
                for c in value.constants
            ]
            shown[name] = {"op": value.name, "constants": constants, "attrs": dict(value.attrs)}
        else:
            shown[name] = list(value) if isinstance(value, tuple | range) else value
    return {"variables": shown, "numbers": {name: _text(value) for name, value in numbers.items()}}


def _text(value: Any) -> Any:
    if isinstance(value, list):
        return [_text(each) for each in value]
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)
    return value.item() if isinstance(value, np.generic) else value


def _number(value: Any) -> Any:
    if isinstance(value, list):
        return [_number(each) for each in value]
    return float(value) if isinstance(value, str) else value


def decoded(found: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the instance and the numbers of `encoded`."""
    instance: dict[str, Any] = {}
    for name, value in found["variables"].items():
        if isinstance(value, dict) and "shape" in value:
            instance[name] = _free(value)
        elif isinstance(value, dict):
            constants = [_free(c) if isinstance(c, dict) else c for c in value["constants"]]
            instance[name] = Op(value["op"], *constants, **value["attrs"])
        else:
            instance[name] = value
    return instance, {name: _number(value) for name, value in found["numbers"].items()}


def _free(value: Mapping[str, Any]) -> Free:
    return Free(tuple(value["shape"]), value["constant"], value["truth"])
