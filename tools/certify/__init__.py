"""Certificates of compiles: the log of rewrites, and the search for steps to replay."""

from .withdrawal import Withdrawal
from .writing import certificate_of

__all__ = ["Withdrawal", "certificate_of"]
