"""Scales of values: powers of two that move through operators without a rounding."""
