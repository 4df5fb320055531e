"""The ONNX writer: IR to ONNX messages, and messages to files."""
