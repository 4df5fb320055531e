"""Records of the branches that became one layer, for the fold map."""

from __future__ import annotations

from collections.abc import Sequence

from ...ir.graph import ONNX_NAMES, Node, Value
from ...ir.module import Module
from ...ir.types import shape_of
from ..affine.algebra.recognise import AffineOp
from ..affine.records.fold_records import Branch, FoldedAffine, Layer, fold_records
from ..affine.records.statistics import StatisticRef, StatisticTable, statistic_refs
from .linear_kernels import bias_of, weight_of
from .sums import Term


def record_sum(
    module: Module,
    layer: Node,
    result: Value,
    merged: Sequence[tuple[Term, Sequence[Node]]],
    total: Value | None,
) -> None:
    """Record that `layer` is the sum of the terms `merged`, each with its layers.

    Each term keeps the affines that were folded into its layers before. `total` is the value that
    was the sum, None if it was a part of one.
    """
    records = fold_records(module)
    branches: list[Branch] = []
    for term, layers in merged:
        folds = [fold for affine in term.affines[::-1] for fold in _folds(module, affine)]
        known = [records.layers.pop(each) for each in layers[::-1] if each in records.layers]
        inner = [branch for each in known for branch in each.branches]
        earlier = [fold for each in known for fold in each.folds]
        for branch in inner:
            branch.folds.extend([*earlier, *folds])
        if not inner:
            branches.append(_branch(module, term, layers, known, [*earlier, *folds]))
        branches.extend(inner)
    if total is not None:
        _record_bound(module, total, branches)
    base = merged[0][1][0]
    weight, bias = weight_of(layer), bias_of(layer)
    first = branches[0]
    is_product = layer.op == "matmul"
    records.layers[layer] = Layer(
        layer,
        first.name,
        1 if not is_product else _last_axis(layer),
        1,
        0 if layer.op in ("nn.conv", "nn.dense") else 1,
        first.weight or weight.name,
        None if bias is None else first.bias or None,
        [branch.output for branch in branches],
        shift_add=None if result is layer.output else result,
        imported=base.message,
        branches=branches,
        sum_name="" if total is None else total.name,
    )


def _record_bound(module: Module, total: Value, branches: Sequence[Branch]) -> None:
    """Record the sum of the statistics of all branches, if it has no statistic of its own."""
    table = module.provenance.table(StatisticTable)
    terms = tuple([table.terms[branch] for branch in branches if branch in table.terms])
    if len(terms) == len(branches):
        bound = StatisticRef(terms[0].source, terms[0].result, terms=terms)
        table.refs.setdefault(total, bound)


def _last_axis(layer: Node) -> int:
    shape = shape_of(layer.output.type)
    return len(shape) - 1 if shape else 1


def _folds(module: Module, affine: AffineOp) -> list[FoldedAffine]:
    """Return the records of an affine of a branch, which is not an operator any more."""
    records = fold_records(module)
    found = []
    for origin in affine.origins:
        module.provenance.refusals.pop(origin, None)
        if origin in (records.sources or {}):
            axis = 1 if affine.axis is None else affine.axis
            found.append(FoldedAffine(origin, "backward", axis, affine.scale, affine.shift))
            records.folded.add(origin)
            records.partial.discard(origin)
    return found


def _names_of(layer: Node) -> tuple[str, str, str]:
    """Return the names of a layer, its weight and its bias, empty if it has none."""
    if layer.op == "nn.avg_pool":
        return layer.name, "", ""
    bias = bias_of(layer)
    return layer.name, weight_of(layer).name, "" if bias is None else bias.name


def _branch(
    module: Module,
    term: Term,
    layers: Sequence[Node],
    known: Sequence[Layer],
    folds: list[FoldedAffine],
) -> Branch:
    first = layers[-1] if layers else None
    own = next((each for each in known if each.node is first), None)
    name, weight, bias = ("", "", "") if first is None else _names_of(first)
    if own is not None:
        name, weight, bias = own.original_name, own.weight_name, own.bias_name or ""
    output = term.affines[0].result if term.affines else term.value
    branch = Branch(
        name,
        "" if first is None else ONNX_NAMES.get(first.op, first.op),
        weight,
        bias,
        output.name,
        folds,
        None if first is None else first.message,
    )
    statistic = _statistic(module, term)
    if statistic is not None:
        module.provenance.table(StatisticTable).terms[branch] = statistic
    return branch


def _statistic(module: Module, term: Term) -> StatisticRef | None:
    """Return the statistic of a term in its sum."""
    refs = statistic_refs(module)
    for affine, (scale, shift) in zip(term.affines, term.after, strict=True):
        if affine.result in refs and not refs[affine.result].is_bound:
            return refs[affine.result].applied(scale, shift)
    known = refs.get(term.value)
    return None if known is None or known.is_bound else known.applied(term.scale, term.shift)
