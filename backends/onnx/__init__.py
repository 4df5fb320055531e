"""The ONNX backend."""
