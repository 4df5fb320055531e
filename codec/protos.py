"""ONNX's protobuf messages, without the rest of the onnx package, which takes longer to import than a small compile.

They are the very classes of the package, whichever of the two is imported first.
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import (
        IR_VERSION,
        AttributeProto,
        FunctionProto,
        GraphProto,
        ModelProto,
        NodeProto,
        SparseTensorProto,
        TensorProto,
        TypeProto,
        ValueInfoProto,
    )
else:

    def _messages() -> ModuleType:
        name = "onnx.onnx_ml_pb2"
        package = PathFinder.find_spec("onnx") if "onnx" not in sys.modules else None
        spec = None if package is None else PathFinder.find_spec(name, package.submodule_search_locations)
        if spec is None or spec.loader is None:
            import onnx.onnx_ml_pb2

            return onnx.onnx_ml_pb2
        module = ModuleType(name)
        module.__spec__, module.__file__ = spec, spec.origin
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module

    _found = _messages()
    IR_VERSION = _found.IR_VERSION
    AttributeProto = _found.AttributeProto
    FunctionProto = _found.FunctionProto
    GraphProto = _found.GraphProto
    ModelProto = _found.ModelProto
    NodeProto = _found.NodeProto
    SparseTensorProto = _found.SparseTensorProto
    TensorProto = _found.TensorProto
    TypeProto = _found.TypeProto
    ValueInfoProto = _found.ValueInfoProto

__all__ = [
    "IR_VERSION",
    "AttributeProto",
    "FunctionProto",
    "GraphProto",
    "ModelProto",
    "NodeProto",
    "SparseTensorProto",
    "TensorProto",
    "TypeProto",
    "ValueInfoProto",
]
