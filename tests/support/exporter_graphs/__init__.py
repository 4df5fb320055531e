"""Random models in the idioms of torch, tf2onnx, Paddle2ONNX and quantizers, mixed at random.

A second grammar beside `random_graphs`, with no line in common: that one grows any operator on
small extents, this one makes blocks of real networks, with dynamic extents, control flow,
functions, quantized operators, and opsets 9 to 21.
"""

from .grammar import export

__all__ = ["export"]
