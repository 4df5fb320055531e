"""Runs decoded graphs: scopes, captured values, subgraphs and functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from . import (
    control,
    convolution,
    elementwise,
    generators,
    indexing,
    linear,
    movement,
    normalization,
    pooling,
    quantization,
    recurrent,
    reduction,
    resize,
)
from .call import Call, Op
from .program import (
    Function,
    Graph,
    Step,
    decode_function,
    decode_graph,
    domain_name,
    opset_versions,
)
from .standard import standard_function
from .values import Tensor, UnsupportedOp, Value, carried

_MODULES = (
    control,
    convolution,
    elementwise,
    generators,
    indexing,
    linear,
    movement,
    normalization,
    pooling,
    quantization,
    recurrent,
    reduction,
    resize,
)
_OLDEST = 1
"""The version of a domain that is not imported: models older than opset imports."""

OPS: dict[str, Op] = {name: op for module in _MODULES for name, op in module.OPS.items()}


@dataclass(frozen=True, slots=True)
class Scope:
    """Values of one run of a graph, the scope around it, and attributes of its function."""

    values: dict[str, Value]
    parent: Scope | None
    attributes: Mapping[str, object]
    opsets: Mapping[str, int]

    def read(self, name: str) -> Value:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.values:
                return scope.values[name]
            scope = scope.parent
        raise ValueError(f"value {name!r} is read before it is computed")


class Interpreter:
    """A decoded model."""

    def __init__(self, model: onnx.ModelProto, base_dir: Path | None) -> None:
        self._graph = decode_graph(model.graph, base_dir)
        self._opsets = opset_versions(model.opset_import)
        self._functions = {
            (domain_name(function.domain), function.name, function.overload): decode_function(
                function
            )
            for function in model.functions
        }

    def evaluate(self, inputs: Mapping[str, Value], keep: bool) -> dict[str, Value]:
        """The graph outputs, or with `keep` every value of the main graph."""
        graph = self._graph
        unknown = inputs.keys() - set(graph.inputs)
        if unknown:
            raise ValueError(f"no such graph input: {', '.join(sorted(unknown))}")
        missing = set(graph.inputs) - inputs.keys() - graph.constants.keys()
        if missing:
            raise ValueError(f"missing graph input: {', '.join(sorted(missing))}")
        given = {name: _carried_value(value) for name, value in inputs.items()}
        scope = Scope({**graph.constants, **given}, None, {}, self._opsets)
        with np.errstate(all="ignore"):
            self._run_steps(graph, scope, keep)
        return scope.values if keep else {name: scope.read(name) for name in graph.outputs}

    def _run_steps(self, graph: Graph, scope: Scope, keep: bool = False) -> None:
        for step in graph.steps:
            results = self._apply(step, scope)
            for name, result in zip(step.outputs, results, strict=False):
                if name:
                    scope.values[name] = result
            for name in () if keep else step.dead:
                scope.values.pop(name, None)

    def _apply(self, step: Step, scope: Scope) -> Sequence[Value]:
        inputs = tuple(scope.read(name) if name else None for name in step.inputs)
        attributes = step.attributes
        if step.references:
            given = {
                name: scope.attributes[source]
                for name, source in step.references.items()
                if source in scope.attributes
            }
            attributes = attributes | given
        function = self._functions.get((step.domain, step.op_type, step.overload))
        if function is not None:
            return self._call_function(function, inputs, attributes, scope.opsets)
        version = scope.opsets.get(step.domain, _OLDEST)
        op = OPS.get(step.op_type) if step.domain == "" else None
        if op is None:
            function = standard_function(step, inputs, attributes, version)
            if function is None:
                raise UnsupportedOp(step.op_type, step.domain)
            return self._call_function(function, inputs, attributes, scope.opsets)

        def run(graph: Graph, arguments: Sequence[Value]) -> list[Value]:
            return self._run_graph(graph, arguments, scope)

        result = op(Call(step.op_type, step.domain, version, inputs, step.outputs, attributes, run))
        return tuple(map(_settled, result)) if isinstance(result, tuple) else (_settled(result),)

    def _run_graph(self, graph: Graph, arguments: Sequence[Value], outer: Scope) -> list[Value]:
        values: dict[str, Value] = {
            **graph.constants,
            **dict(zip(graph.inputs, map(_settled, arguments), strict=False)),
        }
        scope = Scope(values, outer, outer.attributes, outer.opsets)
        self._run_steps(graph, scope)
        return [scope.read(name) for name in graph.outputs]

    def _call_function(
        self,
        function: Function,
        inputs: Sequence[Value],
        attributes: Mapping[str, object],
        opsets: Mapping[str, int],
    ) -> list[Value]:
        padded = [*inputs, *[None] * (len(function.body.inputs) - len(inputs))]
        values: dict[str, Value] = dict(zip(function.body.inputs, padded, strict=True))
        scope = Scope(
            values, None, {**function.defaults, **attributes}, {**opsets, **function.opsets}
        )
        self._run_steps(function.body, scope)
        return [scope.values.get(name) for name in function.body.outputs]


def _carried_value(value: Value) -> Value:
    if isinstance(value, list):
        return [carried(element) for element in value]
    return None if value is None else carried(value)


def _settled(value: Value) -> Value:
    """numpy turns results of rank 0 into scalars: make them arrays again."""
    return value if value is None or isinstance(value, list) else np.asarray(value)


def tensors_only(values: Mapping[str, Value]) -> dict[str, Tensor]:
    return {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
