"""A float16 model and its report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from math import isnan
from pathlib import Path
from typing import Any

from onnx import ModelProto

from ...passes.float16.conversion import ChangedConstant, StayedFloat32
from ...passes.scaling.scaled_components import ScaledComponent
from ...result import Result
from ...support.errors import listed
from ..int8.fidelity import Fidelity
from ..verify.difference import json_value

LISTED = 3
"""Most operators of one reason that the report names."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class HalfModel:
    """A float16 model, and all that is known about it."""

    result: Result
    dtype: str
    """`float16` or `bfloat16`."""
    converted: int
    """Operators that compute in it."""
    casts: int
    stayed: tuple[StayedFloat32, ...]
    constants: tuple[ChangedConstant, ...]
    scaled: tuple[ScaledComponent, ...]
    """Components of values that were multiplied by a power of two."""
    beyond: int
    """Values that would have exceeded float16 by their range, before anything was scaled."""
    fidelity: tuple[Fidelity, ...]
    """How near the results are, with every float16 result rounded."""
    predicted: Mapping[str, float]
    """The same in dB on samples of the calibration, by result; empty without any."""
    measured_on: str
    is_predicted: bool
    """Whether the samples behind `fidelity` are generated."""
    operators: tuple[int, int]
    """Operators of the source, and of the model."""
    sizes: tuple[int, int]
    """Bytes of the model before and after."""
    warnings: tuple[str, ...]

    def __repr__(self) -> str:
        return f"<HalfModel: {self._counted()}>"

    @property
    def model(self) -> ModelProto:
        """The model."""
        return self.result.model

    @property
    def is_finite(self) -> bool:
        """Whether every result was finite on every sample, and compared."""
        return not any(isnan(each.sqnr) for each in self.fidelity)

    def save(self, path: str | Path, *, in_place: bool = False) -> None:
        """Write the model. Raises the errors of `Result.save`."""
        self.result.save(path, in_place=in_place)

    def _counted(self) -> str:
        total = self.converted + len(self.stayed)
        share = 100 * len(self.stayed) / max(total, 1)
        return f"{self.converted} of {total} operators {self.dtype}, {share:.1f} % float32"

    def lines(self) -> Iterator[str]:
        """Yield the report as lines of a table."""
        rows = list(self.rows())
        width = max(len(head) for head, _ in rows)
        yield from (f"{head.ljust(width)}  {text}" for head, text in rows)

    def rows(self) -> Iterator[tuple[str, str]]:
        """Yield the rows of the report."""
        yield self.dtype, f"{self._counted()}, {self.casts} casts"
        yield f"beyond {self.dtype}", f"{self.beyond} values, before"
        by_exponent: dict[int, list[ScaledComponent]] = {}
        for component in self.scaled:
            by_exponent.setdefault(component.exponent, []).append(component)
        for exponent, group in by_exponent.items():
            values, most = sum(each.values for each in group), max(each.most for each in group)
            count = "1 value" if values == 1 else f"{values} values"
            names = listed([repr(each.first) for each in group], LISTED)
            yield f"scaled by 2^{exponent}", f"{count} of up to {most:.6g}, from {names} on"
        for one in self.fidelity:
            unit = "dB predicted" if self.is_predicted else "dB"
            found = "not finite" if isnan(one.sqnr) else f"{one.sqnr:.1f} {unit}"
            yield one.name, f"{found}{one.agreed_text()}, on {self.measured_on}"
            if one.name in self.predicted:
                yield "", f"{self.predicted[one.name]:.1f} dB predicted from the calibration"
        groups: dict[str, list[StayedFloat32]] = {}
        for each in sorted(self.stayed, key=lambda each: each.reason, reverse=True):
            groups.setdefault(each.reason.partition(" by 2^")[0], []).append(each)
        for stayed in groups.values():
            names = listed([f"{each.op_type} {each.name!r}" for each in stayed], LISTED)
            yield "stays float32", f"{names}: {stayed[0].reason}"
        lost, subnormal = (
            sum(each.vanished for each in self.constants),
            sum(each.subnormal for each in self.constants),
        )
        if lost or subnormal:
            worst = max(self.constants, key=lambda each: (each.vanished, each.subnormal)).name
            yield "constants", f"{lost:,} elements 0, {subnormal:,} subnormal, most in {worst!r}"
        notes: dict[str, list[str]] = {}
        for constant in self.constants:
            if constant.note:
                notes.setdefault(constant.note, []).append(repr(constant.name))
        for note, noted in notes.items():
            yield "constant", f"{listed(noted, LISTED)}: {note}"
        yield "operators", f"{self.operators[0]:,} to {self.operators[1]:,}"
        before, after = self.sizes
        yield "bytes", f"{before:,} to {after:,}"

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON object."""
        return {
            "dtype": self.dtype,
            "converted": self.converted,
            "casts": self.casts,
            "stayed": [
                {"op_type": each.op_type, "node": each.name, "reason": each.reason}
                for each in self.stayed
            ],
            "constants": [
                {
                    "name": each.name,
                    "elements": each.elements,
                    "vanished": each.vanished,
                    "subnormal": each.subnormal,
                    "note": each.note,
                }
                for each in self.constants
            ],
            "scaled": [
                {
                    "first": each.first,
                    "values": each.values,
                    "exponent": each.exponent,
                    "most": json_value(each.most),
                }
                for each in self.scaled
            ],
            "beyond": self.beyond,
            "fidelity": [
                {key: json_value(value) for key, value in asdict(one).items()}
                for one in self.fidelity
            ],
            "predicted_db": {name: json_value(db) for name, db in self.predicted.items()},
            "operators": list(self.operators),
            "measured_on": self.measured_on,
            "predicted": self.is_predicted,
            "bytes": list(self.sizes),
        }
