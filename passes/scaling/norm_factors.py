"""Factors before normalizations that are written out, whose squares are too large.

A square has twice the exponent of its data: x of 5e5 takes 2^-12 for the square, 2^-4 for itself.
A Mul before the normalization lets the residual stream keep its bits.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...ir.graph import Node, Value
from ...ir.module import Module
from ...ir.provenance import Declined
from ...ir.rewriter import Rewriter
from ..affine.units.normalization_units import normalization_at
from ..affine.units.unit import Unit
from ..float16.half_forms import is_single
from ..float16.known_ranges import known_ranges


class NormFactors:
    """Products by 1 before normalizations, of which the constant can take an exponent."""

    def __init__(self, module: Module) -> None:
        self.module, self.rewriter = module, Rewriter(module)
        self.products: list[Node] = []

    def insert(self, most: float) -> bool:
        """Insert them where a square is known to exceed `most`; return whether there are any."""
        ranges = known_ranges(self.module)
        for unit in list(_units(self.module)):
            assert unit.parts is not None
            data, gamma = unit.parts.data, unit.parts.gamma
            squares = [
                node.output
                for node in unit.nodes
                if node.op in ("power", "multiply") and node is not gamma
            ]
            if is_single(data) and any(
                value in ranges and ranges[value].most > most for value in squares
            ):
                self._multiply(unit, data)
        return bool(self.products)

    def _multiply(self, unit: Unit, data: Value) -> None:
        ranges = known_ranges(self.module)
        readers = [node for node in self.module.graph if node in unit.nodes and data in node.inputs]
        with self.rewriter.step("scale", f"before {readers[0].description}"):
            with self.rewriter.rewriting(readers[0]):
                product = self.rewriter.make(
                    "multiply",
                    [data, np.float32(1)],
                    before=readers[0],
                    hint=f"{data.name}.scaled",
                    type_=data.type,
                )
            for reader in readers:
                inputs = [product.output if value is data else value for value in reader.inputs]
                self.rewriter.set_inputs(reader, inputs)
        if data in ranges:
            ranges[product.output] = ranges[data]
        self.products.append(product)

    def drop_ones(self) -> None:
        """Remove the products whose constant has stayed 1."""
        for product in self.products:
            number = self.module.constants.array(product.operand(1))
            if number is not None and float(number) == 1:
                with self.rewriter.step("scale", f"at {product.description}"):
                    self.rewriter.replace(product.output, product.operand())


def _units(module: Module) -> Iterator[Unit]:
    """Yield the normalizations that are written out in the main graph."""
    for node in module.graph.operators():
        if node.op == "sqrt":
            try:
                yield normalization_at(node, module.constants)
            except Declined:
                continue
