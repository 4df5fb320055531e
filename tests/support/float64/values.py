"""Values of an evaluation: tensors with floats as float64, sequences, and absent optionals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
from onnx import external_data_helper, numpy_helper

Tensor = npt.NDArray[Any]
Value = Tensor | list[Tensor] | None

FLOATS: frozenset[int] = frozenset(
    {
        onnx.TensorProto.FLOAT,
        onnx.TensorProto.DOUBLE,
        onnx.TensorProto.FLOAT16,
        onnx.TensorProto.BFLOAT16,
    }
)
_CARRIERS: dict[int, type[np.generic]] = dict.fromkeys(FLOATS, np.float64) | {
    onnx.TensorProto.BOOL: np.bool_,
    onnx.TensorProto.INT8: np.int8,
    onnx.TensorProto.INT16: np.int16,
    onnx.TensorProto.INT32: np.int32,
    onnx.TensorProto.INT64: np.int64,
    onnx.TensorProto.UINT8: np.uint8,
    onnx.TensorProto.UINT16: np.uint16,
    onnx.TensorProto.UINT32: np.uint32,
    onnx.TensorProto.UINT64: np.uint64,
}
_WIDE_FLOATS = frozenset(map(np.dtype, (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)))


class UnsupportedOp(Exception):
    """The evaluator does not know this operator, or not in this form."""

    def __init__(self, op_type: str, domain: str = "", reason: str = "") -> None:
        self.op_type = op_type
        self.domain = domain
        self.reason = reason
        super().__init__(
            f"{domain or 'ai.onnx'}::{op_type}{f' ({reason})' if reason else ''} is not supported"
        )


def carrier(element_type: int) -> np.dtype[Any] | None:
    """The numpy type that carries an ONNX element type, None if the evaluator has none."""
    found = _CARRIERS.get(element_type)
    return None if found is None else np.dtype(found)


def is_float(array: Tensor) -> bool:
    return array.dtype == np.float64


def carried(array: npt.ArrayLike) -> Tensor:
    """The array as the evaluator carries it: floats of 16 to 64 bits exactly as float64."""
    result = np.asarray(array)
    if result.dtype in _WIDE_FLOATS:
        return result.astype(np.float64)
    return result.astype(object) if result.dtype.kind in "US" else result


def integer_range(dtype: np.dtype[Any]) -> tuple[int, int]:
    """Least and greatest value of an integer type, the sub-byte ones included."""
    limits: Any = ml_dtypes.iinfo
    info = limits(dtype)
    return int(info.min), int(info.max)


def decode(tensor: onnx.TensorProto, base_dir: Path | None) -> Tensor:
    """The payload of a tensor, external data included, as the evaluator carries it."""
    if external_data_helper.uses_external_data(tensor) and base_dir is None:
        raise ValueError(f"tensor {tensor.name!r} has external data: give base_dir")
    return carried(numpy_helper.to_array(tensor, str(base_dir or "")))


def decode_sparse(tensor: onnx.SparseTensorProto, base_dir: Path | None) -> Tensor:
    """A sparse tensor made dense."""
    values = decode(tensor.values, base_dir)
    indices = decode(tensor.indices, base_dir)
    dense = np.zeros(tuple(tensor.dims), values.dtype)
    dense[tuple(indices.T) if indices.ndim == 2 else np.unravel_index(indices, dense.shape)] = (
        values
    )
    return dense
