"""The preprocessing of an input in words: `x:uint8,nhwc,bgr,mean=.485:.456:.406,scale=1/255`.

It means (x * scale - mean) / std. Numbers are in the order of the model's channels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import isfinite

from .errors import UsageError, clipped, did_you_mean

DTYPES = (
    "uint8", "int8", "uint16", "int16", "uint32", "int32", "float16", "bfloat16", "float32",
    "float64",
)  # fmt: skip
"""Element types that an input may get."""

LAYOUTS = {
    "nchw": (4, False),
    "nhwc": (4, True),
    "chw": (3, False),
    "hwc": (3, True),
    "ncl": (3, False),
    "nlc": (3, True),
    "ncdhw": (5, False),
    "ndhwc": (5, True),
}
"""Rank of each layout, and whether channels come last."""

UNBATCHED = ("chw", "hwc")
"""Layouts without an axis of samples."""

PRESETS = {
    "torchvision": "scale=1/255,mean=.485:.456:.406,std=.229:.224:.225,resize=256,crop=224",
    "tf": "scale=1/127.5,mean=1",
    "caffe": "bgr,mean=103.939:116.779:123.68",
}
"""The words that a preset stands for."""

PICTURES = ("resize", "crop")
"""Words that change pictures, and no input of a model."""

Sizes = tuple[int, ...]
"""A height and a width, or one number for the shorter side."""


@dataclass(frozen=True)
class Preprocessing:
    """How given data become the data of an input: (x * scale - mean) / std.

    - `name` is the input, None for the only one; `dtype` the element type of what is given, None
      for that of the model.
    - `layout` is that of what is given, None for that of the model. With `reverses` its channels
      have the reverse order, as in BGR for RGB.
    - `mean` and `std` have a number for each channel of the model, or one for all.
    - `resize` and `crop` are sizes of pictures.
    """

    name: str | None = None
    dtype: str | None = None
    layout: str | None = None
    reverses: bool = False
    scale: float = 1.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    resize: Sizes = ()
    crop: Sizes = ()

    @property
    def is_shifted(self) -> bool:
        """Whether it changes numbers."""
        return self.scale != 1 or any(self.mean) or any(std != 1 for std in self.std)

    @property
    def channels(self) -> int:
        """The number of channels for which there are numbers, 1 if one number is for all."""
        return max(len(self.mean), len(self.std))


def parse_preprocessing(text: str, *, pictures: bool = False) -> Preprocessing:
    """Return the preprocessing that `text` describes, with sizes for `pictures`.

    Raises UsageError.
    """
    name, words = _split(text)
    found = Preprocessing(name)
    seen: dict[str, str] = {}
    for word in words:
        for each in _expanded(word, pictures=pictures):
            found = _with_word(found, each, pictures=pictures)
        kind = _kind(word)
        if kind in seen:
            raise UsageError(
                f"preprocessing {text!r}: {clipped(seen[kind])} and {clipped(word)} are two of a"
                " kind"
            )
        seen[kind] = word
    if min(len(found.mean), len(found.std)) > 1 and len(found.mean) != len(found.std):
        raise UsageError(
            f"preprocessing {text!r}: mean has {len(found.mean)} numbers and std {len(found.std)}"
        )
    return found


def parse_each(
    texts: str | Iterable[str], inputs: Sequence[str], *, pictures: bool = False
) -> dict[str, Preprocessing]:
    """Return the preprocessings by the name of the input; the only input needs no name.

    Raises UsageError for names that are not among `inputs`, or occur twice.
    """
    found: dict[str, Preprocessing] = {}
    for text in [texts] if isinstance(texts, str) else texts:
        each = parse_preprocessing(text, pictures=pictures)
        name = each.name
        if name is None and len(inputs) != 1:
            known = ", ".join(inputs) or "none"
            raise UsageError(f"preprocessing {text!r}: write NAME: before it (inputs: {known})")
        name = inputs[0] if name is None else name
        if name not in inputs:
            hint = did_you_mean(name, inputs) or f" (inputs: {', '.join(inputs) or 'none'})"
            raise UsageError(f"the model has no input {clipped(name)}{hint}")
        if name in found:
            raise UsageError(f"input {clipped(name)} has two preprocessings")
        found[name] = replace(each, name=name)
    return found


def channel_axis(extents: Sequence[int | None], wanted: Preprocessing) -> int:
    """Return the axis of the channels of an input: those that have numbers, or 3, 1 or 4.

    Channels come first after the batch, or last. Raises UsageError if they do not fit.
    """
    rank, name = len(extents), clipped(wanted.name)
    if rank < 2:
        raise UsageError(f"input {name} has no axis of channels")
    first = 0 if wanted.layout in UNBATCHED else 1
    numbers = 3 if wanted.reverses else wanted.channels
    counts = [numbers] if numbers > 1 else [3, 1, 4]
    for axis in (first, rank - 1):
        if extents[axis] in counts:
            return axis
    if extents[first] is not None and numbers > 1:
        what = "bgr are 3" if wanted.reverses else f"there are numbers for {numbers}"
        raise UsageError(f"input {name} has {extents[first]} channels, and {what}")
    return first


def axis_order(rank: int, axis: int, layout: str | None) -> list[int] | None:
    """Return the order of axes that brings data of a layout into that of an input.

    The input has its channels at `axis`. Returns None for an order that changes nothing.
    """
    if layout is None or LAYOUTS[layout][1] == (axis == rank - 1):
        return None
    axes, batch = list(range(rank)), 0 if layout in UNBATCHED else 1
    if LAYOUTS[layout][1]:
        return [*axes[:batch], rank - 1, *axes[batch:-1]]
    return [*axes[:batch], *axes[batch + 1 :], batch]


def _split(text: str) -> tuple[str | None, list[str]]:
    """Return the name before the first word, if there is one, and the words."""
    words = [word.strip() for word in text.split(",")]
    before, separator, _ = words[0].partition("=")[0].rpartition(":")
    name = before if separator else None
    if separator:
        words[0] = words[0][len(before) + 1 :].strip()
    if not all(words) or name == "":
        raise UsageError(f"{text!r} is not a preprocessing: write NAME:uint8,nhwc,scale=1/255")
    return name, words


def _expanded(word: str, *, pictures: bool) -> list[str]:
    """Return the words of a preset; of an input without the sizes of pictures."""
    words = PRESETS.get(word, word).split(",")
    if word not in PRESETS or pictures:
        return words
    return [each for each in words if each.partition("=")[0] not in PICTURES]


def _kind(word: str) -> str:
    """Return the part of a preprocessing that a word states."""
    for kind, known in (("dtype", DTYPES), ("layout", LAYOUTS), ("order", ("bgr", "rgb"))):
        if word in known:
            return kind
    return word.partition("=")[0]


def _with_word(found: Preprocessing, word: str, *, pictures: bool) -> Preprocessing:
    key, is_number, value = word.partition("=")
    if is_number and key in _NUMBERS and (pictures or key not in PICTURES):
        return _NUMBERS[key](found, value, word)
    if is_number and key in PICTURES:
        raise UsageError(f"{word!r} changes pictures, and no input of a model")
    if word in DTYPES:
        return replace(found, dtype=word)
    if word in LAYOUTS:
        return replace(found, layout=word)
    if word in ("bgr", "rgb"):
        return replace(found, reverses=word == "bgr")
    if key in _NUMBERS:
        raise UsageError(f"preprocessing {word!r}: write its numbers, {key}=...")
    known = (*DTYPES, *LAYOUTS, "bgr", "rgb", *PRESETS, *_NUMBERS)
    hint = did_you_mean(word, known) or f": write one of {', '.join(known)}"
    raise UsageError(f"{clipped(word)} is no word of a preprocessing{hint}")


def _numbers(text: str, word: str) -> tuple[float, ...]:
    """Return the numbers of a word, decimal or fractions, of at least one channel."""
    try:
        found = tuple(_number(part) for part in text.split(":"))
    except (ValueError, ZeroDivisionError, OverflowError):
        found = ()
    if not found or not all(map(isfinite, found)):
        raise UsageError(f"{word!r}: write numbers such as .485:.456:.406 or 1/255")
    return found


def _number(text: str) -> float:
    """Return a decimal number or a fraction of two, rounded once."""
    above, _, below = text.partition("/")
    return float(Fraction(above) / Fraction(below or "1"))


def _with_scale(found: Preprocessing, text: str, word: str) -> Preprocessing:
    numbers = _numbers(text, word)
    if len(numbers) != 1 or not numbers[0]:
        raise UsageError(f"{word!r}: write one number that is not zero, such as scale=1/255")
    return replace(found, scale=numbers[0])


def _with_mean(found: Preprocessing, text: str, word: str) -> Preprocessing:
    return replace(found, mean=_numbers(text, word))


def _with_std(found: Preprocessing, text: str, word: str) -> Preprocessing:
    numbers = _numbers(text, word)
    if not all(numbers):
        raise UsageError(f"{word!r}: a number is zero, and data are divided by it")
    return replace(found, std=numbers)


def _with_resize(found: Preprocessing, text: str, word: str) -> Preprocessing:
    return replace(found, resize=_sizes(text, word))


def _with_crop(found: Preprocessing, text: str, word: str) -> Preprocessing:
    return replace(found, crop=_sizes(text, word))


def _sizes(text: str, word: str) -> Sizes:
    """Return one size, or height and width."""
    parts = text.split("x")
    if not 1 <= len(parts) <= 2 or not all(part.isdecimal() and int(part) for part in parts):
        raise UsageError(f"{word!r}: write a size such as 224, or height and width: 224x320")
    return tuple(map(int, parts))


_NUMBERS: dict[str, Callable[[Preprocessing, str, str], Preprocessing]] = {
    "scale": _with_scale,
    "mean": _with_mean,
    "std": _with_std,
    "resize": _with_resize,
    "crop": _with_crop,
}
"""The words with numbers."""
