"""A quality that the user names, and how it was reached."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ...support.errors import UsageError
from ..verify.difference import json_value
from .fidelity import Fidelity

TARGET = re.compile(r"(\d+(?:\.\d+)?) *(dB|%)", re.IGNORECASE)
BUDGET = re.compile(r"(\d+(?:\.\d+)?) *%")


@dataclass(frozen=True, slots=True)
class Goal:
    """The least quality of every result, and the greatest share of float multiplications.

    The quality is a ratio in dB, or the share of samples with the same greatest score.
    """

    ratio: float | None = None
    agreement: float | None = None
    float_budget: float | None = None

    def __str__(self) -> str:
        if self.agreement is not None:
            return f"{100 * self.agreement:g} %"
        return "the least noise" if self.ratio is None else f"{self.ratio:g} dB"

    @property
    def within(self) -> str:
        """The budget as the end of a sentence."""
        if self.float_budget is None:
            return ""
        return f" with {100 * self.float_budget:g} % of the multiplications in float"

    def is_met(self, found: Sequence[Fidelity]) -> bool:
        """Return whether results have the quality; without one, never."""
        if self.agreement is not None:
            said = [one.agreement for one in found if one.agreement is not None]
            return bool(said) and min(said) >= self.agreement
        return self.ratio is not None and least(found) >= self.ratio


def read_goal(target: str | None, float_budget: str | None) -> Goal | None:
    """Return the goal of `22dB` or `99%`, and of `5%`; None without any.

    Raises UsageError for other texts.
    """
    if target is None and float_budget is None:
        return None
    share = None
    if float_budget is not None:
        match = BUDGET.fullmatch(float_budget.strip())
        if match is None or float(match[1]) > 100:
            raise UsageError(
                f"a budget is a share of the multiplications, such as 5%: not {float_budget!r}"
            )
        share = float(match[1]) / 100
    if target is None:
        return Goal(float_budget=share)
    match = TARGET.fullmatch(target.strip())
    if match is None or (match[2] == "%" and float(match[1]) > 100):
        raise UsageError(f"a target is a ratio or an agreement, 22dB or 99%: not {target!r}")
    if match[2] == "%":
        return Goal(agreement=float(match[1]) / 100, float_budget=share)
    return Goal(ratio=float(match[1]), float_budget=share)


@dataclass(frozen=True, slots=True)
class Noise:
    """The ratio in dB of the worst result with one rounding alone; `kind` is weight or tensor."""

    name: str
    kind: str
    alone: float


@dataclass(frozen=True, slots=True)
class Reached:
    """A goal, what the sum of the roundings predicts, and what each of them costs alone.

    `predicted` is the ratio of the worst result in dB. `layers` of `total` were made float for it.
    """

    goal: Goal
    predicted: float
    layers: int
    total: int
    noises: tuple[Noise, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the record as `irc quantize --json` has it."""
        return {
            "target": str(self.goal),
            "float_budget": self.goal.float_budget,
            "predicted": json_value(self.predicted),
            "made_float": self.layers,
            "roundings": [
                {key: json_value(value) for key, value in asdict(noise).items()}
                for noise in self.noises
            ],
        }

    def __str__(self) -> str:
        return (
            f"{self.goal}{self.goal.within}: {self.predicted:.1f} dB by the sum of"
            f" {len(self.noises)} roundings, {self.layers} of {self.total} layers made float for it"
        )


def least(found: Sequence[Fidelity]) -> float:
    """Return the ratio of the worst result in dB, -inf for one that cannot be compared."""
    return min((-np.inf if np.isnan(one.sqnr) else one.sqnr for one in found), default=-np.inf)
