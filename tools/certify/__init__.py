"""Certificates of compiles: the records of a compile, and the proof that is found by them."""

from .writing import certificate_of

__all__ = ["certificate_of"]
