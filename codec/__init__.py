"""The ONNX codec: protobuf messages, element types, tensors, attributes and external data, in both directions.

The ONNX reader (`frontends.onnx`) and the ONNX writer (`backends.onnx`) share it.
"""
