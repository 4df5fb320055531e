"""Numeric verification: do two models compute the same tensors, up to rounding errors?"""

from __future__ import annotations

from .comparison import Comparison, Deviation
from .difference import TensorDifference
from .input_generation import stimuli
from .inputs import Stimulus
from .numeric_verify import VerifyNumerics

__all__ = ["Comparison", "Deviation", "Stimulus", "TensorDifference", "VerifyNumerics", "stimuli"]
