"""The forms of ONNX's Constant."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...ir.attributes import Attribute, EmptyList
from ...ir.tensor import Array, ArrayTensor, Tensor

CONSTANT_FORMS = {
    "value": "t",
    "sparse_value": "sparse_tensor",
    "value_float": "f",
    "value_floats": "floats",
    "value_int": "i",
    "value_ints": "ints",
    "value_string": "s",
    "value_strings": "strings",
}
"""The field of each attribute of Constant, exactly one of which is set."""

_ELEMENTS: dict[str, tuple[type, ...]] = {"f": (float,), "i": (int,), "s": (str, bytes)}
_NUMPY: dict[str, type] = {"f": np.float32, "i": np.int64, "s": object}


def constant_payload(form: str, value: Attribute) -> Attribute | None:
    """Return the payload of a Constant with the attribute `form`, None if `value` does not fit."""
    field = CONSTANT_FORMS.get(form)
    if field is None:
        return None
    if form in ("value", "sparse_value"):
        return value if field != "t" or isinstance(value, Tensor) else None
    kind = field[0]
    if field == kind:
        items: object = (value,)
    else:
        items = () if value == EmptyList(field) else value
    if not isinstance(items, tuple) or not all(isinstance(item, _ELEMENTS[kind]) for item in items):
        return None
    array = _array(items, _NUMPY[kind])
    return ArrayTensor(array.reshape(()) if field == kind else array)


def _array(items: Sequence[object], dtype: type) -> Array:
    array: Array = np.empty(len(items), dtype)
    array[:] = items
    return array
