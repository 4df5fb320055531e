"""Literals of IR text, both ways: names, strings, bytes, numbers and the elements of constants."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterable, Sequence

import numpy as np

from ...support.errors import IRError
from ..extents import quote
from ..tensor import Array, Tensor, numpy_dtype, round_to
from ..types import DTYPES, F64, DType

BARE = r"(?:[A-Za-z0-9_.$-]|/(?!/)|::(?=[A-Za-z0-9_]))+"
"""Matches a name that needs no quotes after `%` and `@`; `//` begins a comment."""

WORD = r"[A-Za-z_][A-Za-z0-9_.]*"
"""Matches keywords, in-house operators, and names of attributes that need no quotes."""

NUMBER = r"-?(?:\d+(?:\.\d*)?(?:[eE][+-]?\d+)?(?:f64)?|inf(?![\w.]))|nan\(0x[0-9a-f]{16}\)"

LARGEST_F32 = float(np.finfo(np.float32).max)

_bare = re.compile(BARE, re.ASCII).fullmatch
_word = re.compile(WORD, re.ASCII).fullmatch
_float = re.compile(rf"{NUMBER}|nan", re.ASCII).fullmatch
_bytes = re.compile(r'b"(?:[ !#-\[\]-~]|\\x[0-9a-f]{2})*+"').fullmatch

_string = re.compile(r'"(?:[^"\\]|\\(?:["\\]|u\{[0-9a-fA-F]{1,6}\}))*+"').fullmatch
_ESCAPE = re.compile(r"\\(?:u\{([0-9a-fA-F]+)\}|(.))")
_RESERVED = ("graph", "_")


def parse_string(literal: str) -> str:
    """Return the text of a double-quoted literal, the inverse of `types.quote`.

    Raises ValueError if it is unterminated or contains an escape other than backslash, double quote
    and `u{hex}`.
    """
    if _string(literal) is None:
        raise ValueError("unterminated, or an escape that IR text does not have")
    body = literal[1:-1]
    if "\\" not in body:
        return body
    return _ESCAPE.sub(lambda match: chr(int(match[1], 16)) if match[1] else match[2], body)


def format_name(name: str) -> str:
    """Return `name` as it is written after `%` or `@`."""
    return name if _bare(name) else quote(name)


def format_word(name: str) -> str:
    """Return the name of an attribute or an overload as it is written, without a sigil."""
    return name if _word(name) and name not in _RESERVED else quote(name)


def format_float(value: float) -> str:
    """Return the shortest literal that `parse_float` reads as `value`.

    ONNX attributes are f32, so a plain literal is rounded to f32; a float64 that f32 cannot
    represent ends in `f64`. A NaN other than the default quiet NaN is written with its bits.
    """
    if math.isnan(value):
        (bits,) = struct.unpack("<Q", struct.pack("<d", value))
        return "nan" if bits == 0x7FF8000000000000 else f"nan(0x{bits:016x})"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if abs(value) <= LARGEST_F32:
        single = np.float32(value)
        text = str(single)
        if float(single) == value and np.float32(float(text)) == single:
            return text
    return f"{float(value)!r}f64"


def parse_float(literal: str, *, single: bool) -> float | None:
    """Return the value of a float literal, or None if it is not one.

    With `single` the value is rounded to f32 unless the literal ends in `f64`. Raises OverflowError
    if it is too large.
    """
    if _float(literal) is None:
        return None
    if literal.startswith("nan("):
        return float(np.array(int(literal[6:-1], 16), np.uint64).view(np.float64))
    value = float(literal.removesuffix("f64"))
    if math.isinf(value) and "inf" not in literal:
        raise OverflowError
    return (
        float(struct.unpack("<f", struct.pack("<f", value))[0])
        if single and literal[-3:] != "f64"
        else value
    )


def format_bytes(data: bytes) -> str:
    """Return the literal of `data`; printable ASCII needs no escape."""
    chars = (
        f"\\x{byte:02x}" if not 32 <= byte < 127 or byte in b'"\\' else chr(byte) for byte in data
    )
    return f'b"{"".join(chars)}"'


def parse_bytes(literal: str) -> bytes | None:
    """Return the value of a bytes literal, or None if it is not one."""
    return (
        None
        if _bytes(literal) is None
        else literal[2:-1].encode().decode("unicode_escape").encode("latin-1")
    )


def _format_string_element(item: object) -> str:
    """Return an element of a string tensor as text; ONNX stores bytes there, usually UTF-8."""
    if isinstance(item, bytes):
        try:
            return quote(item.decode())
        except UnicodeDecodeError:
            return format_bytes(item)
    return quote(str(item))


def format_elements(tensor: Tensor, max_elements: int) -> str | None:
    """Return the elements of `tensor` in row-major order, without brackets at rank 0.

    The result is None if there are more than `max_elements`, if they cannot be read, or if parsing
    would not restore every bit (a NaN with a payload, a bool stored as 2).
    """
    if not 0 <= tensor.size <= max_elements:
        return None
    try:
        array = tensor.numpy().ravel()
    except (OSError, ValueError, IRError):
        return None
    texts, items = _elements(array, tensor.dtype)
    has_numbers = tensor.dtype.kind != "string"
    if has_numbers and pack_elements(items, tensor.dtype).tobytes() != array.tobytes():
        return None
    return f"[{', '.join(texts)}]" if tensor.shape else texts[0]


def _elements(array: Array, dtype: DType) -> tuple[list[str], Sequence[object]]:
    """Return the literals of the elements, and the values that a parser reads from them."""
    match dtype.kind:
        case "string":
            return [_format_string_element(item) for item in array], array.tolist()
        case "bool":
            flags = [bool(item) for item in array]
            return [str(flag).lower() for flag in flags], flags
        case "int" | "uint":
            numbers = [int(item) for item in array]
            return [str(number) for number in numbers], numbers
        case "complex":
            part = DTYPES["f32" if dtype.bits == 64 else "f64"]
            halves, _ = _elements(np.ascontiguousarray(array).view(numpy_dtype(part)), part)
            pairs = list(zip(halves[::2], halves[1::2], strict=True))
            return [f"({re}, {im})" for re, im in pairs], [
                (float(re), float(im)) for re, im in pairs
            ]
        case _:
            texts = (
                [str(item) for item in array]
                if dtype.name in ("f16", "f32")
                else [repr(float(i)) for i in array]
            )
            return texts, [float(text) for text in texts]


def is_element(item: object, dtype: DType) -> bool:
    """Return whether a parsed literal may be an element of `dtype`."""
    match dtype.kind:
        case "string":
            return isinstance(item, str | bytes)
        case "bool":
            return isinstance(item, bool)
        case "complex":
            return isinstance(item, tuple) and len(item) == 2
        case "unknown":
            return False
    if isinstance(item, bool) or not isinstance(item, int | float):
        return False
    if dtype.kind.startswith("float"):
        return True
    low, high = (
        (-(1 << dtype.bits - 1), 1 << dtype.bits - 1)
        if dtype.kind == "int"
        else (0, 1 << dtype.bits)
    )
    return isinstance(item, int) and low <= item < high


def pack_elements(items: Iterable[object], dtype: DType) -> Array:
    """Return parsed elements as an array of rank 1.

    They are floats, ints, bools, pairs of floats, str or bytes. Raises ValueError if a number is
    out of the range of `dtype`.
    """
    listed = list(items)
    target = numpy_dtype(dtype)
    if dtype.kind == "string":
        array: Array = np.empty(len(listed), object)
        array[:] = [_as_bytes(item) for item in listed]
        return array
    if dtype.kind in ("int", "uint", "bool"):
        wide = {"int": np.int64, "uint": np.uint64, "bool": np.bool_}[dtype.kind]
        return np.array(listed, wide).astype(target)
    if dtype.kind == "complex":
        flat = [part for pair in listed for part in pair]  # type: ignore[attr-defined]
        return pack_elements(flat, DTYPES["f32" if dtype.bits == 64 else "f64"]).view(target)
    exact = np.array(listed, np.float64)
    rounded = exact if dtype is F64 else round_to(exact, dtype)
    if (np.isfinite(exact) & ~np.isfinite(rounded.astype(np.float64))).any():
        raise ValueError(f"a number is out of the range of {dtype}")
    return rounded


def _as_bytes(item: object) -> object:
    """Encode an element of a string tensor as ONNX does.

    A str with a lone surrogate has no encoding, and stays.
    """
    try:
        return item.encode() if isinstance(item, str) else item
    except UnicodeEncodeError:
        return item
