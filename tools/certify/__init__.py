"""Certificates of compiles: the log of rewrites, and the search for the steps that `irc certify` replays."""

from .withdrawal import Withdrawal
from .writing import Gap, certificate_of

__all__ = ["Gap", "Withdrawal", "certificate_of"]
