"""int8 models: made by onnxruntime's quantizer from a fold map or from data, and judged against the
float model.
"""
