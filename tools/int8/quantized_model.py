"""A quantized model and its report: `irc.Quantized`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from onnx import ModelProto, NodeProto

from ...passes.data_free.value_ranges import Origin
from ...support.errors import listed
from ...support.files import FileTransaction, replacing, writing
from ...support.output_paths import check_apart, check_replaced
from ..report.graph_boxes import model_drawing
from ..report.notebook import frame, table
from ..verify.difference import json_value
from .coverage import GUESS, NO_RANGE, Coverage, Method
from .fidelity import Fidelity
from .goal import Reached
from .speed import Speed
from .wide_tensors import wide_tensors

LISTED = 8
"""Most names that the report lists in one place."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Quantized:
    """A quantized model in QDQ form, and all that is known about it."""

    model: ModelProto
    prepared: ModelProto
    """The float model that was quantized: folded and equalized, with the names of `model`."""
    coverage: tuple[Coverage, ...]
    """One for every operator of `prepared` with a floating-point result."""
    ranges: Mapping[str, str]
    """The origin of each activation's range, as `Activation.origin` has it; empty with data."""
    fidelity: tuple[Fidelity, ...]
    """How near the results are, with onnxruntime's graph optimizations on this processor."""
    measured_on: str
    """The samples behind `fidelity`, in words."""
    warnings: tuple[str, ...]
    doubts: tuple[str, ...]
    """Those of `warnings` by which the results may be of no use."""
    is_predicted: bool
    """Whether the samples behind `fidelity` are generated."""
    scales: str
    """How many scales a weight has, and if fewer than 8, how many bits, in words."""
    int8_share: float | None = None
    """The share of the layers' multiplications that are integers, None if it is not known."""
    reached: Reached | None = None
    """How the goal was reached, if there was one."""
    speed: Speed | None = None
    """How long one run of both models takes, if that was asked for."""
    files: tuple[Path, ...] = ()
    """The files that were read: the model, and those of its external data."""

    def __repr__(self) -> str:
        return f"<Quantized: {self._counted()}>"

    def _repr_html_(self) -> str:
        """Return the report, and the graph with its integer operators, for a notebook."""
        lines = table(("",), [(line,) for line in self.lines()])
        warned = table(("warning",), [(warning,) for warning in self.warnings])
        return frame(repr(self), lines, warned, self.drawing())

    def _counted(self) -> str:
        """Return how many layers are static, dynamic and float, and what of the rest is int8."""
        methods = Counter(one.method for one in self.coverage if one.is_layer)
        layers = ", ".join(f"{methods[method]} {method.value}" for method in Method)
        others = [one.quantized for one in self.coverage if not one.is_layer]
        text = f"{layers}; {sum(others)} of {len(others)} other operators int8"
        if self.int8_share is None:
            return text
        share = int(1000 * self.int8_share) / 10  # 100 % are all of them
        return f"{text}; {share:.1f} % of the multiplications"

    def drawing(self) -> str:
        """Return the main graph of `prepared` as SVG, with int8 and float operators."""
        known = {one.node: one for one in self.coverage}

        def mark(node: NodeProto) -> tuple[str, str]:
            one = known.get(node.name)
            if one is None:
                return "same", ""
            return ("changed", "int8") if one.quantized else ("kept", f"float: {one.reason}")

        return model_drawing(self.prepared, mark)

    def save(
        self, path: str | Path, *, prepared: str | Path | None = None, in_place: bool = False
    ) -> None:
        """Write the model, and to `prepared` the float model, together or not at all.

        With `in_place` the model may replace the one that was quantized. Raises EmitError, and
        UsageError if a file that was read would be replaced.
        """
        if self.files:
            check_replaced(path, self.files[0], in_place=in_place)
            check_apart([path, prepared], self.files[1:])
            check_apart([prepared], self.files)
        with FileTransaction(path, prepared) as files:
            for target, model in ((prepared, self.prepared), (path, self.model)):
                if target is not None:
                    temporary = files.enter_context(replacing(Path(target)))
                    with writing(target):
                        temporary.write_bytes(model.SerializeToString(deterministic=True))

    def to_json(self) -> dict[str, Any]:
        """Return the document of `irc quantize --json`."""
        wide = wide_tensors(self.model)
        return {
            "operators": [
                {
                    "node": one.node,
                    "op_type": one.op_type,
                    "quantized": one.quantized,
                    "method": one.method.value,
                    "reason": str(one.reason or ""),
                }
                for one in self.coverage
            ],
            "ranges": dict(self.ranges),
            "fidelity": [
                {key: json_value(value) for key, value in asdict(one).items()}
                for one in self.fidelity
            ],
            "measured_on": self.measured_on,
            "predicted": self.is_predicted,
            "scales": self.scales,
            "int8_share": self.int8_share,
            "int16": None if wide is None else asdict(wide),
            "goal": None if self.reached is None else self.reached.to_json(),
            "bytes": {"before": self.prepared.ByteSize(), "after": self.model.ByteSize()},
            "milliseconds": None if self.speed is None else asdict(self.speed),
            "warnings": list(self.warnings),
            "doubts": list(self.doubts),
        }

    def lines(self) -> Iterator[str]:
        """Yield the report as lines of text."""
        yield f"layers: {self._counted()}"
        unit = "dB predicted" if self.is_predicted else "dB"
        for one in self.fidelity:
            found = f"{one.name}: SQNR {one.ratio_text(unit)}{one.agreed_text()}"
            yield f"{found}, on {self.measured_on}"
        if self.reached is not None:
            yield f"target: {self.reached}"
        wide = wide_tensors(self.model)
        if wide is not None:
            yield f"16 bits: {wide}"
        if self.speed is not None:
            yield f"time: {self.speed}"
        yield f"weights: {self.scales}"
        others = [one for one in self.coverage if not one.is_layer]
        left = [one for one in self.coverage if one.is_layer and not one.quantized]
        for layer in left[:LISTED]:
            yield f"left float: {layer.op_type} {layer.node!r}: {layer.reason}"
        if len(left) > LISTED:
            yield f"left float: {len(left) - LISTED} more layers (--json has all)"
        texts = Counter(one.reason.text for one in others if one.reason is not None)
        for text, count in texts.items():
            yield f"left float: {count} other {'operator' if count == 1 else 'operators'}: {text}"
        reasons = [one.reason for one in self.coverage if one.reason]
        lacking = dict.fromkeys(each.tensor for each in reasons if each.text in (NO_RANGE, GUESS))
        if lacking:
            options = (f"--range {name}=LOW:HIGH" for name in lacking)
            yield f"give ranges to quantize more: {listed(options, LISTED)}"
        if self.ranges:
            counts = Counter(self.ranges.values())
            yield "ranges: " + ", ".join(f"{counts[origin]} {origin}" for origin in sorted(counts))
            propagated = Origin.PROPAGATED.value
            names = [name for name, origin in self.ranges.items() if origin == propagated]
            if names:
                yield f"propagated (--range sets one): {listed(map(repr, names), LISTED)}"
