"""Passes that prepare a model for quantization without data, and the statistics they propagate."""
