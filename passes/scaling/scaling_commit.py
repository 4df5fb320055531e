"""The application of a scaling plan: constants, epsilons, inputs and results."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from msgspec.structs import replace

from ...ir.graph import Node, Value, is_constant
from ...ir.ops import has_trait
from ...ir.ops.row import Trait
from ...ir.rewriter import Rewriter
from ...ir.tensor import Array, ArrayTensor
from ...ir.types import F32, F64, dtype_of
from ..affine.records.fold_records import LayerEdits, fold_records
from ..affine.records.statistics import statistic_refs
from ..float16.conversion import conversion
from ..float16.known_ranges import known_ranges
from ..float16.weight_errors import known_means
from .homogeneity import Homogeneity, Terms, epsilon_of
from .scaled_components import ScaledComponent, scaling
from .scaling_plan import ScalingPlan, at


class ScalingCommit:
    """The application of a plan."""

    def __init__(self, plan: ScalingPlan, chosen: Mapping[int, int], name: str) -> None:
        self.plan, self.chosen = plan, chosen
        self.module, self.graph = plan.module, plan.graph
        self.rewriter = Rewriter(plan.module)
        self.made: dict[tuple[Value, int], Value] = {}
        self.edits = LayerEdits(name)

    def exponent(self, terms: Terms) -> int:
        """Return the exponent of a sum of values."""
        return at(self.plan.exponents.row(terms), self.chosen)

    def run(self) -> None:
        """Change constants and epsilons, scale inputs and results, and record what was done."""
        self.record()
        scaled = {value: self.exponent({value: 1}) for value in self.plan.exponents.values}
        for node, each in self.plan.nodes.items():
            self.scale_constants(node, each)
            epsilon = 0 if each.epsilon is None else self.exponent(each.epsilon)
            if epsilon:
                number = float(np.float32(epsilon_of(node) * 2.0**epsilon))
                self.rewriter.set_attr(node, "epsilon", number)
        for value in self.plan.ends:
            if scaled[value]:
                self.scale_end(value, scaled[value])
        refs, ranges = statistic_refs(self.module), known_ranges(self.module)
        means, exponents = known_means(self.module), fold_records(self.module).exponents
        for value, exponent in scaled.items():
            if not exponent:
                continue
            if value.node is not None:
                exponents[value] = exponents.get(value, 0) + exponent
            if value in refs and value.node is not None:
                refs[value] = refs[value].applied(2.0**exponent, 0.0)
            if value in ranges and value.node is not None:
                ranges[value] = ranges[value].scaled(exponent)
            if value in means and value.node is not None:
                means[value] = replace(means[value], mean=means[value].mean * 2.0**exponent)
        if self.edits.layers:
            fold_records(self.module).history.append(self.edits)
        for (old, _), new in self.made.items():
            if not old.users and old.node is not None and old.node.graph is None:
                if not any(value.name == old.name for value in self.made.values()):
                    new.take_name(old)

    def scale_constants(self, node: Node, each: Homogeneity) -> None:
        """Give a node its constants at their exponents."""
        inputs = list(node.inputs)
        for index, terms in each.constants.items():
            exponent = self.exponent(terms)
            if exponent:
                inputs[index] = self.constant(node.operand(index), exponent)
        if inputs != list(node.inputs):
            self.note_layer(node)
            self.rewriter.set_inputs(node, inputs)

    def constant(self, value: Value, exponent: int) -> Value:
        """Return a constant times 2^exponent; the exact float64 number behind it is kept."""
        found = self.made.get((value, exponent))
        if found is not None:
            return found
        assert value.node is not None
        exact = self.module.constants.exact(value)
        assert exact is not None
        with self.rewriter.rewriting(value.node):
            wide: Array = np.ldexp(exact.astype(np.float64), exponent)
            if dtype_of(value.type) is F64:
                found = self.rewriter.constant(
                    ArrayTensor(wide, F64), before=value.node, hint=value.name
                )
            else:
                found = self.rewriter.rounded(wide, F32, before=value.node, hint=value.name)
        self.made[value, exponent] = found
        return found

    def scale_end(self, value: Value, exponent: int) -> None:
        """Multiply an input where it is read, and a result where it leaves."""
        graph = self.graph
        if value.node is None:
            readers = list(value.users)
            first = next(iter(graph), graph.return_)
            product = self.multiplied(value, exponent, first, f"{value.name}.scaled")
            for reader in readers:
                if reader is not graph.return_:
                    reader.replace_input(value, product)
            reason = "scales an input"
            ranges = known_ranges(self.module)
            if value in ranges:
                ranges[product] = ranges[value].scaled(exponent)
        else:
            after = value.node.next
            assert after is not None
            product = self.multiplied(value, -exponent, graph.return_, f"{value.name}.scaled")
            graph.return_.replace_input(value, product)
            fresh = product.name
            product.take_name(value)
            value.rename(fresh)
            reason = "scales a result back"
        assert product.node is not None
        conversion(self.module).keep[product.node] = reason

    def multiplied(self, value: Value, exponent: int, before: Node, hint: str) -> Value:
        """Insert a product of a value and 2^exponent."""
        with self.rewriter.rewriting(value.node):
            return self.rewriter.make(
                "multiply",
                [value, np.float32(2.0**exponent)],
                before=before,
                hint=hint,
                type_=value.type,
            ).output

    def note_layer(self, node: Node) -> None:
        """Record the factors of data and result of a layer, for the fold map."""
        if not has_trait(node, Trait.ABSORBS):
            return
        data = node.operand()
        entry = {
            "rescale_in": 0 if is_constant(data) else self.exponent({data: 1}),
            "rescale_out": self.exponent({node.output: 1}),
        }
        factors = {key: np.asarray(2.0**exponent) for key, exponent in entry.items() if exponent}
        if factors:
            self.edits.layers[node] = factors

    def record(self) -> None:
        """Record the components whose exponent is not 0."""
        ranges = known_ranges(self.module)
        members: dict[int, list[Value]] = {}
        for value in self.plan.exponents.values:
            members.setdefault(self.plan.exponents.component[value], []).append(value)
        for values in members.values():
            exponent = self.exponent({values[0]: 1})
            if exponent:
                known = [ranges[value].most for value in values if value in ranges]
                scaling(self.module).append(
                    ScaledComponent(
                        values[0].source_name, len(values), exponent, max(known, default=math.nan)
                    )
                )
