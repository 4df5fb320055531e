"""Operators hidden from onnx's shape inference, which infers other extents than runtimes.

A hidden operator has a domain of which onnx knows nothing, so that the types of its results stay
unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from ...ir.ops import DEFAULT_DOMAINS
from ...ir.tensor import Array
from .codec.domains import rename_domain
from .codec.protos import AttributeProto, FunctionProto, ModelProto, NodeProto, TensorProto
from .codec.tensors import OnnxTensor

HIDDEN = "irc.hidden"
"""The domain of operators whose types onnx's shape inference must not infer."""


class Scope:
    """The constants that the nodes of a graph may read: its own, and those of graphs around it.

    Inputs of a function may be constant at its calls as well: its body does not know.
    """

    def __init__(
        self,
        nodes: Sequence[NodeProto],
        initializers: Sequence[TensorProto] = (),
        outer: Scope | None = None,
        given: Iterable[str] = (),
        *,
        is_main: bool = False,
    ) -> None:
        self.outer = outer
        self.is_main = is_main
        self._nodes, self._initializers = nodes, initializers
        self._given = frozenset(given)
        self._constants: dict[str, TensorProto | NodeProto] | None = None

    def array(self, name: str) -> Array | None:
        """Return the elements of a constant; None for other values, and for elements in a file.

        Raises ValueError if they do not fit its shape.
        """
        found = self._find(name)
        if isinstance(found, TensorProto):
            return _elements(found)
        for attribute in () if found is None else found.attribute:
            if attribute.type == AttributeProto.TENSOR:
                return _elements(attribute.t)
            if attribute.name in _FIELDS:
                return np.asarray(getattr(attribute, _FIELDS[attribute.name]))
        return None

    def is_given(self, name: str) -> bool:
        """Return whether a caller gives a value: an input, or an attribute of its Constant."""
        if name in self._given or (self.outer is not None and self.outer.is_given(name)):
            return True
        found = self._find(name)
        if not isinstance(found, NodeProto):
            return False
        return any(attribute.ref_attr_name for attribute in found.attribute)

    def _find(self, name: str) -> TensorProto | NodeProto | None:
        if self._constants is None:
            self._constants = {tensor.name: tensor for tensor in self._initializers}
            for node in self._nodes:
                if node.op_type == "Constant" and node.domain in DEFAULT_DOMAINS and node.output:
                    self._constants[node.output[0]] = node
        if name in self._constants or self.outer is None:
            return self._constants.get(name)
        return self.outer._find(name)


_FIELDS = {"value_float": "f", "value_floats": "floats", "value_int": "i", "value_ints": "ints"}
"""The field of each attribute of a Constant that holds numbers."""

Test = Callable[[NodeProto, Scope], bool]
"""Returns whether onnx may infer other extents of the results of a node than runtimes compute.

A ValueError, if the elements of a constant do not fit its shape, counts as True.
"""


def hide(model: ModelProto, tests: Mapping[str, Test]) -> None:
    """Hide the nodes of all graphs and functions of `model` that the test of their operator finds.

    ONNX's own domain gets the name that onnx's inference knows.
    """
    _import_domains(model)
    _hide(model.graph.node, Scope(model.graph.node, model.graph.initializer, is_main=True), tests)
    for function in model.functions:
        rename_domain(function)
        _import_domains(function)
        _hide(function.node, Scope(function.node, given=function.input), tests)


def _import_domains(owner: ModelProto | FunctionProto) -> None:
    for entry in owner.opset_import:
        rename_domain(entry)
    owner.opset_import.add(domain=HIDDEN, version=1)


def _hide(nodes: Sequence[NodeProto], scope: Scope, tests: Mapping[str, Test]) -> None:
    for node in nodes:
        rename_domain(node)
        test = None if node.domain else tests.get(node.op_type)
        if test is not None and _may_differ(test, node, scope):
            node.domain = HIDDEN
        for attribute in node.attribute[:]:
            if attribute.type == AttributeProto.GRAPH:
                body = attribute.g
                _hide(body.node, Scope(body.node, body.initializer, scope), tests)


def _may_differ(test: Test, node: NodeProto, scope: Scope) -> bool:
    if any(attribute.ref_attr_name for attribute in node.attribute):
        return True
    try:
        return test(node, scope)
    except ValueError:
        return True


def hidden_in(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """Yield the nodes that are hidden."""
    return (node for node in nodes if node.domain == HIDDEN)


def _elements(tensor: TensorProto) -> Array | None:
    # The fields of the types that axes, shapes and scales have. A stripped tensor has no data.
    has_data = tensor.raw_data or tensor.float_data or tensor.int64_data or tensor.int32_data
    if not has_data and 0 not in tensor.dims:
        return None
    return OnnxTensor(tensor, Path()).numpy()
