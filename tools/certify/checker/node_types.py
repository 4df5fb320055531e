"""Types that onnx infers of single nodes of the main graph, as their operands become known."""

from __future__ import annotations

from collections.abc import Container
from functools import lru_cache

import onnx
from onnx import NodeProto, TypeProto, helper, numpy_helper

from .inferred_types import SMALL, is_disbelieved, label_of
from .program import STATED, Datum, FreeExtent, Operation, Program, extents_of, unsettled

COUNTING = frozenset(("Range", "Resize", "Upsample"))
"""Operators whose extents the checker computes itself, or believes only of some scales."""


class NodeTypes:
    """The nodes of a program whose types can be inferred one by one."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._nodes: dict[str, NodeProto] = {
            label_of(node, ""): node
            for node in program.model.graph.node
            if not node.domain and node.op_type not in COUNTING and not is_disbelieved(node)
        }

    def infer(self, operation: Operation, constants: Container[Datum]) -> None:
        """Note what follows of the results of an operation from the types of its operands.

        Elements of an operand that was computed are read if it is in `constants`.
        """
        node = self._nodes.get(operation.label)
        given = [each for each in operation.inputs if each is not None]
        if node is None or operation.bodies or not all(each.kind for each in given):
            return
        types, data = {}, {}
        for name, value in zip((each for each in node.input if each), given, strict=True):
            types[name] = _type_of(value)
            stored = value.stored
            if stored is not None and (value.producer is None or value in constants):
                if stored.array.size <= SMALL:
                    data[name] = numpy_helper.from_array(stored.array)
        try:
            schema = onnx.defs.get_schema(operation.kind, operation.version, "")
            found = onnx.shape_inference.infer_node_outputs(
                schema, node, types, data, opset_imports=list(self._program.model.opset_import)
            )
        except Exception:  # of onnx's own class: nothing follows
            return
        for name, value in zip(node.output, operation.outputs, strict=False):
            if name in found:
                self._note(value, found[name])

    def _note(self, value: Datum, type_: TypeProto) -> None:
        """Note the extents of a type that say more than those that are known."""
        if value.kind not in (0, type_.tensor_type.elem_type) or not type_.HasField("tensor_type"):
            return
        made = extents_of(type_)
        old = value.extents
        value.kind = type_.tensor_type.elem_type
        if made is None or (old is not None and len(old) != len(made)):
            return
        known = old or (None,) * len(made)
        value.extents = tuple(
            each if isinstance(each, int | str) else self._named(value, axis, made[axis], each)
            for axis, each in enumerate(known)
        )

    def _named(
        self, value: Datum, axis: int, found: object, known: FreeExtent | None
    ) -> int | str | FreeExtent:
        if isinstance(found, str) and found.startswith(STATED):
            label, _, place = found[len(STATED) :].rpartition(" ")
            return FreeExtent(self._program.data[label], int(place))
        if isinstance(found, int | str):
            return found
        return known or FreeExtent(value, axis)


def _type_of(value: Datum) -> TypeProto:
    if value.extents is None:
        return _type(value.kind, None)
    return _type(value.kind, tuple(unsettled(value, axis) for axis in range(len(value.extents))))


@lru_cache(maxsize=1 << 12)
def _type(kind: int, extents: tuple[int | str | None, ...] | None) -> TypeProto:
    return helper.make_tensor_type_proto(kind, extents)
