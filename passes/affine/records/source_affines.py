"""The affines of a source model, recorded before the first pass changes anything."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from msgspec.structs import replace

from ....ir.attributes import RegionRef
from ....ir.evaluate import ConstantEvaluator
from ....ir.graph import Graph, Node, Value, payload_of
from ....ir.module import Module
from ....ir.ops import AFFINE_KINDS, OPS
from ....ir.ops.inference import input_shapes
from ....ir.ops.normalization import DEFAULT_EPSILON
from ....ir.provenance import Refused
from ....ir.tensor import OpaqueTensor, Tensor
from ..algebra.recognise import made_of_little, recognise
from .fold_records import Candidate, Param, Scope, SourceAffine, fold_records
from .statistics import Statistic, StatisticRef, statistic_refs, statistics

TOGETHER = 512
"""Values whose statistics are computed at once."""

USUAL = frozenset(("f16", "bf16", "f32", "f64", "u8", "i8", "i16", "i32", "i64"))
"""Element types of parameters that an imported tensor certainly can be read in."""

UNDECIDED = ("unknown_rank", "overridable_initializer", "constant_growth")
"""Reasons for which an operation is recorded though it is not known to be an affine."""

BATCH_NORMS = ("nn.batch_norm", "::BatchNormalization")
AFFINES = frozenset((*(name for name, row in OPS.items() if row.affine), *BATCH_NORMS))
"""Operators that an affine of the source may be."""

BATCH_NORM_PARAMS = ("gamma", "beta", "mean", "var")


@np.errstate(all="ignore")  # of numbers that a model may hold
def collect_sources(module: Module) -> None:
    """Fill `FoldRecords.sources` if that has not been done yet. O(nodes)."""
    records = fold_records(module)
    if records.sources is not None:
        return
    sources: dict[int, SourceAffine] = {}
    later: list[Candidate] = []
    evaluator, refs = module.constants, statistic_refs(module)
    for graph, scope in scopes(module):
        index = 0
        for node in graph.nodes():
            if node.op in BATCH_NORMS and len(node.inputs) >= 5:
                source = _batch_norm(node, scope, index, evaluator)
            elif node.op in AFFINE_KINDS and node.origins:
                source = _arithmetic(node, scope, index, evaluator)
                if source is None:
                    later.append((node, scope, index, tuple(map(_name, node.inputs))))
            else:
                source = None
            if source is not None:
                sources[source.origin] = source
            if source is not None and node.op == "nn.batch_norm":
                _note_statistics(node, source, refs)
            index += node.op != "constant" or "form" in node.attrs
    records.sources = sources
    records.candidates = later
    evaluator.reset()


def collect_opened(module: Module) -> None:
    """Record source operators that became affines as passes fixed operands. O(candidates)."""
    records = fold_records(module)
    sources, candidates = records.sources, records.candidates
    if sources is None or not module.changed:
        return
    records.candidates = []
    for candidate in candidates:
        node, scope, index, names = candidate
        source = None if node.graph is None else _arithmetic(node, scope, index, module.constants)
        if source is None:
            records.candidates.append(candidate)
            continue
        current = dict(zip(map(_name, node.inputs), names, strict=False))
        params = {
            key: Param(current.get(each.name, each.name), each.tensor)
            for key, each in source.params.items()
        }
        sources[source.origin] = replace(
            source, input=current.get(source.input, source.input), params=params
        )


def _note_statistics(node: Node, source: SourceAffine, refs: dict[Value, StatisticRef]) -> None:
    """Record the statistics of a BatchNormalization's data and result.

    For a value with two, the result counts.
    """
    data = node["data"]
    if data is not None:
        refs.setdefault(data, StatisticRef(source, result=False))
    refs[node.output] = StatisticRef(source, result=True)


def known_statistics(module: Module) -> dict[Value, Statistic]:
    """Return the known statistics of values, in the order of the module. O(nodes).

    The data and the result of every inference BatchNormalization are known, and the results of
    affines of them.
    """
    return dict(each_statistic(module))


def known_bounds(module: Module) -> dict[Value, Statistic]:
    """Return mean and bound of the deviation of sums of branches that became one layer."""
    return dict(each_statistic(module, bounds=True))


def each_statistic(module: Module, *, bounds: bool = False) -> Iterator[tuple[Value, Statistic]]:
    """Yield the values of `known_statistics` with their statistics, computed in batches.

    With `bounds` they are those of `known_bounds`.
    """
    collect_sources(module)
    refs = statistic_refs(module)
    values = [
        value
        for graph in module.graphs()
        for value in values_of(graph)
        if value in refs and refs[value].is_bound is bounds
    ]
    for i in range(0, len(values), TOGETHER):
        some = values[i : i + TOGETHER]
        with np.errstate(all="ignore"):  # of numbers that a model may hold
            found = statistics([refs[value] for value in some])
        for value, known in zip(some, found, strict=True):
            if known is not None:
                yield value, known


def values_of(graph: Graph) -> list[Value]:
    """Return every value that is defined in `graph`."""
    return [*graph.inputs, *(value for node in graph.nodes() for value in node.outputs)]


def scopes(module: Module) -> Iterator[tuple[Graph, Scope]]:
    """Yield every graph of the module with its path, each followed by the graphs inside it."""
    stack: list[tuple[Graph, Scope]] = []
    for function in reversed(module.functions.values()):
        name = f"{function.domain}::{function.name}" + (
            f":{function.overload}" if function.overload else ""
        )
        stack.append((function.graph, (("function", name),)))
    stack.append((module.graph, ()))
    while stack:
        graph, scope = stack.pop()
        yield graph, scope
        inner: list[tuple[Graph, Scope]] = []
        for node in graph if graph.has_regions else ():
            for i, region in enumerate(node.regions):
                name = node.name or (node.output.name if node.outputs else "")
                inner.append((region, (*scope, (name, _attribute(node, i)))))
        stack.extend(reversed(inner))


def _attribute(node: Node, region: int) -> str:
    """Return the attribute that holds a region, with a number after it if it holds several."""
    for name, value in node.attrs.items():
        if value == RegionRef(region):
            return name
        if isinstance(value, tuple) and RegionRef(region) in value:
            return f"{name}.{value.index(RegionRef(region))}"
    return str(region)


def _origin(node: Node) -> int:
    origin = node.origins[0]
    assert isinstance(origin, int)
    return origin


def _name(value: Value | None) -> str:
    return "" if value is None else value.name


def _batch_norm(
    node: Node, scope: Scope, index: int, evaluator: ConstantEvaluator
) -> SourceAffine | None:
    if not node.origins or not node.outputs:
        return None
    epsilon = node.attrs.get("epsilon", DEFAULT_EPSILON)
    params = {
        key: Param(_name(value), _known(value, evaluator))
        for key, value in zip(BATCH_NORM_PARAMS, node.inputs[1:5], strict=True)
    }
    shape = input_shapes(node)[1]
    channels = shape[0] if shape and isinstance(shape[0], int) else None
    return SourceAffine(
        origin=_origin(node),
        kind="batch_norm",
        scope=scope,
        name=node.name,
        op_type="BatchNormalization",
        index=index,
        input=_name(node.input(0)),
        output=node.output.name,
        axis=1,
        channels=channels,
        epsilon=epsilon if isinstance(epsilon, float) else None,
        params=params,
        imported=node.message,
    )


def _known(value: Value | None, evaluator: ConstantEvaluator) -> Tensor | None:
    """Return a parameter that holds readable numbers; the usual types are not read for that."""
    payload = payload_of(value)
    if not isinstance(payload, Tensor) and made_of_little(value):
        return None
    tensor = payload if isinstance(payload, Tensor) else evaluator.tensor(value)
    if tensor is None or isinstance(tensor, OpaqueTensor) or not evaluator.affords(tensor.size):
        return None
    if tensor.dtype.name in USUAL:
        return tensor
    return tensor if tensor.dtype.is_float and evaluator.array(value) is not None else None


def _arithmetic(
    node: Node, scope: Scope, index: int, evaluator: ConstantEvaluator
) -> SourceAffine | None:
    try:
        op = recognise(node, evaluator)
    except Refused as refused:
        return _undecided(node, scope, index) if refused.refusal.code in UNDECIDED else None
    if op is None:
        return None
    params: dict[str, Param] = {}
    if op.parameter is not None:
        key = "scale" if node.op in ("multiply", "divide") else "shift"
        params[key] = Param(op.parameter.name, _known(op.parameter, evaluator))
    channels = op.scale.shape[0] if op.axis is not None else None
    return replace(
        _undecided(node, scope, index),
        input=op.data.name,
        axis=op.axis,
        channels=channels,
        params=params,
    )


def _undecided(node: Node, scope: Scope, index: int) -> SourceAffine:
    """Record an operator that would be an affine if its constant or rank were certain."""
    kind = AFFINE_KINDS.get(node.op, "")
    return SourceAffine(
        origin=_origin(node),
        kind=kind,
        scope=scope,
        name=node.name,
        op_type=kind.capitalize(),
        index=index,
        input=_name(node.input(0)),
        output=node.output.name,
        axis=None,
        channels=None,
        epsilon=None,
        params={},
        imported=node.message,
    )
