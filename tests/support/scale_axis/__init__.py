"""The rules of FoldScaleAxis as data: a table of small models for each section of the rules."""

from . import absorbers, backward, forward, quantized, recognise, versions
from .build import Case

CASES: tuple[Case, ...] = tuple(
    row
    for part in (recognise, absorbers, backward, forward, versions, quantized)
    for row in part.CASES
)

__all__ = ["CASES", "Case"]
