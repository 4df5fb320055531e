"""A quality that the user names, and how it was reached."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...support.errors import UsageError
from ..verify.difference import json_value
from .fidelity import Fidelity, least
from .noise_table import Noise, roundings_json

TARGET = re.compile(r"(\d+(?:\.\d+)?) *(dB|%)", re.IGNORECASE)
BUDGET = re.compile(r"(\d+(?:\.\d+)?) *%")


@dataclass(frozen=True, slots=True)
class Goal:
    """The least quality of every result, and its budgets.

    The quality is a ratio in dB, or the share of samples with the same greatest score. Budgets are
    the greatest shares of multiplications in float, and of rounded activations in 16 bits. None is
    no limit of the former, and nothing of the latter.
    """

    ratio: float | None = None
    agreement: float | None = None
    float_budget: float | None = None
    int16_budget: float | None = None

    @property
    def has_quality(self) -> bool:
        """Whether there is a least quality; otherwise budgets are spent."""
        return self.ratio is not None or self.agreement is not None

    @property
    def most_float(self) -> float:
        """The greatest share of float multiplications."""
        if self.float_budget is not None:
            return self.float_budget
        return 1.0 if self.has_quality else 0.0

    def __str__(self) -> str:
        if self.agreement is not None:
            return f"{100 * self.agreement:g} %"
        return "the least noise" if self.ratio is None else f"{self.ratio:g} dB"

    @property
    def within(self) -> str:
        """The budget as the end of a sentence."""
        shares = (
            (self.float_budget, "% of the multiplications in float"),
            (self.int16_budget, "% of the tensors in 16 bits"),
        )
        said = [f"{100 * share:g} {text}" for share, text in shares if share is not None]
        return f" with {' and '.join(said)}" if said else ""

    def is_met(self, found: Sequence[Fidelity]) -> bool:
        """Return whether results have the quality; without one, never."""
        if self.agreement is not None:
            said = [one.agreement for one in found if one.agreement is not None]
            return bool(said) and min(said) >= self.agreement
        return self.ratio is not None and least(found) >= self.ratio


def read_goal(
    target: str | None, float_budget: str | None, int16_budget: str | None = None
) -> Goal | None:
    """Return the goal of `22dB` or `99%`, and of budgets such as `5%`; None without any.

    Raises UsageError for other texts.
    """
    if target is None and float_budget is None and int16_budget is None:
        return None
    budgets = {
        "float_budget": _share(float_budget, "multiplications"),
        "int16_budget": _share(int16_budget, "tensors"),
    }
    if target is None:
        return Goal(**budgets)
    match = TARGET.fullmatch(target.strip())
    if match is None or (match[2] == "%" and float(match[1]) > 100):
        raise UsageError(f"a target is a ratio or an agreement, 22dB or 99%: not {target!r}")
    if match[2] == "%":
        return Goal(agreement=float(match[1]) / 100, **budgets)
    return Goal(ratio=float(match[1]), **budgets)


def _share(text: str | None, noun: str) -> float | None:
    """Return the number of a budget."""
    if text is None:
        return None
    match = BUDGET.fullmatch(text.strip())
    if match is None or float(match[1]) > 100:
        raise UsageError(f"a budget is a share of the {noun}, such as 5%: not {text!r}")
    return float(match[1]) / 100


@dataclass(frozen=True, slots=True)
class Reached:
    """A goal, what the sum of the roundings predicts, and what each of them costs alone.

    `predicted` is the ratio of the worst result in dB. `layers` of `total` were made float for it,
    and `tensors` have 16 bits.
    """

    goal: Goal
    predicted: float
    layers: int
    total: int
    tensors: int
    noises: tuple[Noise, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the record as `irc quantize --json` has it."""
        return {
            "target": str(self.goal),
            "float_budget": self.goal.float_budget,
            "int16_budget": self.goal.int16_budget,
            "predicted": json_value(self.predicted),
            "made_float": self.layers,
            "made_int16": self.tensors,
            "roundings": roundings_json(self.noises),
        }

    def __str__(self) -> str:
        noun = "tensor" if self.tensors == 1 else "tensors"
        wider = f", {self.tensors} {noun} of 16 bits" if self.goal.int16_budget else ""
        return (
            f"{self.goal}{self.goal.within}: {self.predicted:.1f} dB by the sum of"
            f" {len(self.noises)} roundings, {self.layers} of {self.total} layers made float for it"
            f"{wider}"
        )
