"""Whether two models compute the same, tensor by tensor, up to what rounding can do."""

from __future__ import annotations

from .comparison import Comparison, Deviation
from .difference import Row
from .inputs import Stimulus, stimuli
from .numeric_verify import VerifyNumerics

__all__ = ["Comparison", "Deviation", "Row", "Stimulus", "VerifyNumerics", "stimuli"]
