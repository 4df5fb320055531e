"""The rules of FoldScaleAxis as data: a table of small models for every section of the rule book."""

from . import absorbers, backward, forward, recognise, versions
from .build import Case

CASES: tuple[Case, ...] = (*recognise.CASES, *absorbers.CASES, *backward.CASES, *forward.CASES, *versions.CASES)

__all__ = ["CASES", "Case"]
