"""Facts of a model: operators, parameters, multiplications, and affines folded or left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal, TypedDict

from ...backends.foldmap.fold_map import FoldMap
from ...frontends.onnx.codec.onnx_types import import_type
from ...frontends.onnx.codec.protos import ModelProto, NodeProto, is_compiled
from ...frontends.onnx.codec.traversal import operators
from ...frontends.onnx.folded_before import folded_before
from ...ir.graph import Value
from ...ir.module import Module
from ...ir.multiplications import elements, multiplications
from ...ir.ops import DEFAULT_DOMAINS, OPS
from ...ir.ops.row import Trait
from ...ir.type_inference import confirms, contradicts
from ...ir.types import TensorType, shape_of
from ...result import Result


class ValueFacts(TypedDict):
    """An input or output of the model."""

    name: str
    type: str


class OutputFacts(ValueFacts):
    """An output of the model: its inferred `type`, and the `declared` one, None if absent."""

    declared: str | None
    status: Literal["confirmed", "unconfirmed", "contradicted", "undeclared"]


class MacFacts(TypedDict):
    """Multiplications of a sample: an open batch counts as 1.

    `uncounted` are operators without a known number.
    """

    counted: int
    uncounted: dict[str, int]


class AffineFacts(TypedDict):
    """An affine of the model, and where the passes left it."""

    node: str
    op_type: str
    scope: str
    kind: str
    status: str
    reason: str | None
    detail: str
    notes: list[str]
    layers: list[str]


class SizeFacts(TypedDict):
    """How large a model is: operators by type, parameters, multiplications."""

    operators: dict[str, int]
    parameters: int
    parameter_bytes: int
    macs: MacFacts


class ModelInspection(SizeFacts):
    """The facts of a model as it is read."""

    producer: str
    ir_version: int
    opsets: dict[str, int]
    inputs: list[ValueFacts]
    outputs: list[OutputFacts]
    compiled: bool
    folded_before: str | None


def inspect_module(module: Module) -> ModelInspection:
    """Return the facts of a module on which no pass has run."""
    is_text = not isinstance(module.source, ModelProto)
    source = Result(module).model if is_text else module.source
    return {
        **size_facts(module, operators(source)),
        "producer": f"{source.producer_name} {source.producer_version}".strip(),
        "ir_version": source.ir_version,
        "opsets": {entry.domain or "ai.onnx": entry.version for entry in source.opset_import},
        "inputs": _values(module.graph.inputs),
        "outputs": _outputs(module),
        "compiled": is_compiled(source),
        "folded_before": None if is_text else folded_before(source, guess=True),
    }


def size_facts(module: Module, nodes: Iterable[NodeProto]) -> SizeFacts:
    """Return the size of a module, which has the operators `nodes` in ONNX."""
    counts = Counter(
        node.op_type if node.domain in DEFAULT_DOMAINS else f"{node.domain}::{node.op_type}"
        for node in nodes
    )
    types = [
        node.output.type
        for node in module.walk()
        if node.op in ("constant", "variable") and node.outputs
    ]
    parameters = [kind for kind in types if isinstance(kind, TensorType) and _is_parameter(kind)]
    bits = sum(
        (elements(kind.shape) or 0) * (kind.dtype.bits if kind.dtype else 0) for kind in parameters
    )
    return {
        "operators": dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))),
        "parameters": sum(elements(kind.shape) or 0 for kind in parameters),
        "parameter_bytes": bits // 8,
        "macs": count_macs(module),
    }


def source_size(module: Module) -> SizeFacts:
    """Return the size of a module on which no pass has run."""
    is_read = isinstance(module.source, ModelProto)
    source = module.source if is_read else Result(module).model
    return size_facts(module, operators(source))


def result_size(result: Result) -> SizeFacts:
    """Return the size of a result."""
    return size_facts(result.module, result.nodes())


def affine_facts(fold_map: FoldMap) -> list[AffineFacts]:
    """Return the affines of a fold map's source, without numbers."""
    names = {layer["id"]: layer["node"]["name"] for layer in fold_map.layers}
    return [
        {
            "node": source["node"]["name"] or source["output"],
            "op_type": source["node"]["op_type"],
            "scope": "/".join(
                step.get("function", step.get("node", "")) for step in source["scope"]
            ),
            "kind": source["kind"],
            "status": source["status"],
            "reason": source["reason"],
            "detail": source["detail"],
            "notes": source["notes"],
            "layers": [names[layer] for layer in source["layers"]],
        }
        for source in fold_map.sources
    ]


def count_macs(module: Module) -> MacFacts:
    """Count the multiplications of layers in the main graph, not in bodies, which may repeat."""
    total, uncounted = 0, Counter[str]()
    for node in module.walk():
        row = OPS.get(node.op)
        if row is None or Trait.HEAVY not in row.traits:
            continue
        found = multiplications(node) if node.graph is module.graph else None
        if found is None:
            uncounted[row.onnx or node.op] += 1
        else:
            total += found
    return {"counted": total, "uncounted": dict(sorted(uncounted.items()))}


def _is_parameter(kind: TensorType) -> bool:
    """Return whether a constant may be a weight: integers of 64 bits are shapes and positions."""
    return kind.dtype is not None and kind.dtype.name not in ("i64", "bool", "str")


def _values(values: Sequence[Value]) -> list[ValueFacts]:
    return [{"name": value.name, "type": str(value.type)} for value in values]


def _outputs(module: Module) -> list[OutputFacts]:
    found = _values(module.graph.outputs)
    if not isinstance(module.source, ModelProto):
        return [{**value, "declared": None, "status": "undeclared"} for value in found]
    graph, infos = module.graph, module.source.graph.output
    dims = (dim for value in graph.inputs for dim in shape_of(value.type) or ())
    symbols = {dim for dim in dims if isinstance(dim, str)}
    facts: list[OutputFacts] = []
    for value, output, info in zip(found, graph.outputs, infos, strict=True):
        declared = import_type(info.type) if info.HasField("type") else None
        if declared is None:
            facts.append({**value, "declared": None, "status": "undeclared"})
            continue
        status: Literal["confirmed", "unconfirmed", "contradicted"] = "unconfirmed"
        if contradicts(declared, output.type, symbols):
            status = "contradicted"
        elif confirms(declared, output.type, symbols):
            status = "confirmed"
        facts.append({**value, "declared": str(declared), "status": status})
    return facts
