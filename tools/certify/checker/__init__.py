"""The checker of certificates: two models and a list of steps, and nothing else of irc.

It reads ONNX with onnx, computes with numpy, and knows identities of operators, not how irc finds
rewrites.
"""
