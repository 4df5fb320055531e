"""Random models over everything that an affine can pass through, and a shrinker for those that fail."""

from .grammar import grow
from .shrink import shrink

__all__ = ["grow", "shrink"]
