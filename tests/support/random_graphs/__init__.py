"""Random models over everything that an affine can pass through, and a shrinker."""

from .functions import with_functions, without_overloads
from .grammar import grow
from .shrink import shrink

__all__ = ["grow", "shrink", "with_functions", "without_overloads"]
