"""int8 models: quantized by onnxruntime from a fold map or data, judged by the float model."""
