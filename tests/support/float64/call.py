"""One application of an operator, as its implementation sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from .program import Graph
from .values import Tensor, UnsupportedOp, Value


@dataclass(frozen=True, slots=True)
class Call:
    """Inputs, attributes and the opset version; an output that is left out has an empty name.

    Float defaults are rounded to float32, the type of ONNX float attributes.
    """

    op_type: str
    domain: str
    version: int
    inputs: tuple[Value, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, object]
    run: Callable[[Graph, Sequence[Value]], list[Value]]

    def value(self, index: int) -> Value:
        return self.inputs[index] if index < len(self.inputs) else None

    def optional(self, index: int) -> Tensor | None:
        value = self.value(index)
        return value if isinstance(value, np.ndarray) else None

    def tensor(self, index: int) -> Tensor:
        value = self.value(index)
        if not isinstance(value, np.ndarray):
            raise TypeError(f"{self.op_type}: input {index} is not a tensor")
        return value

    def tensors(self) -> list[Tensor]:
        return [self.tensor(index) for index in range(len(self.inputs))]

    def sequence(self, index: int) -> list[Tensor]:
        value = self.value(index)
        if not isinstance(value, list):
            raise TypeError(f"{self.op_type}: input {index} is not a sequence")
        return value

    def integers(self, index: int) -> list[int] | None:
        """The elements of an optional integer input."""
        value = self.optional(index)
        return None if value is None else [int(element) for element in value.ravel()]

    def has(self, name: str) -> bool:
        return name in self.attributes

    def wants(self, output: int) -> bool:
        """Whether the output is declared and named."""
        return output < len(self.outputs) and bool(self.outputs[output])

    def integer(self, name: str, default: int) -> int:
        return int(cast("int", self.attributes.get(name, default)))

    def real(self, name: str, default: float) -> float:
        return float(np.float32(cast("float", self.attributes.get(name, default))))

    def string(self, name: str, default: str) -> str:
        return cast("str", self.attributes.get(name, default))

    def ints(self, name: str) -> tuple[int, ...] | None:
        return cast("tuple[int, ...] | None", self.attributes.get(name))

    def floats(self, name: str) -> tuple[float, ...] | None:
        return cast("tuple[float, ...] | None", self.attributes.get(name))

    def strings(self, name: str) -> tuple[str, ...] | None:
        return cast("tuple[str, ...] | None", self.attributes.get(name))

    def graph(self, name: str) -> Graph:
        return cast("Graph", self.attributes[name])

    def axes(self, rank: int, since: int, index: int = 1) -> list[int] | None:
        """Normalised `axes`: an attribute before opset `since`, input `index` from it on."""
        given = self.integers(index) if self.version >= since else self.ints("axes")
        if given is not None and rank and any(not -rank <= axis < rank for axis in given):
            raise ValueError(f"{self.op_type}: axes {given} of rank {rank}")
        return None if given is None else [axis % rank if rank else 0 for axis in given]

    def unsupported(self, reason: str) -> UnsupportedOp:
        return UnsupportedOp(self.op_type, self.domain, reason)


Op = Callable[[Call], "Tensor | tuple[Value, ...]"]
