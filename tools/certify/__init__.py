"""Certificates of compiles: the log of rewrites, and the search for steps to replay."""

from .writing import certificate_of

__all__ = ["certificate_of"]
