"""Pictures and sounds as arrays: PNG and JPEG by Pillow, WAV by the standard library."""

from __future__ import annotations

import wave
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...ir.tensor import Array
from ...support.errors import VerifyError
from ...support.extras import needing

if TYPE_CHECKING:
    from PIL.Image import Image

    from ...support.preprocessing import Sizes

PICTURES = (".png", ".jpg", ".jpeg")
"""Files of pictures."""
SOUNDS = (".wav",)
"""Files of sounds."""
MODES = {1: "L", 3: "RGB", 4: "RGBA"}
"""Pillow's modes by their number of channels."""


def read_picture(path: Path, channels: int, resize: Sizes, crop: Sizes) -> Array:
    """Return a picture, uint8 [height, width, channels]: resized, then cut around its centre.

    One number of `resize` is for the shorter side, as in torchvision; two are height and width.
    Raises VerifyError if the file cannot be read, or is smaller than `crop`.
    """
    with needing("pictures"):
        from PIL import Image
    try:
        with Image.open(path, formats=("PNG", "JPEG")) as opened:
            if opened.mode.startswith(("I", "F")):
                raise VerifyError(f"{path}: its channels have more than 8 bits")
            picture = opened.convert(MODES[channels])
    except VerifyError:
        raise
    except Exception as error:  # Pillow has no common exception
        why = getattr(error, "strerror", None) or "it is not a whole PNG or JPEG"
        raise VerifyError(f"{path}: no picture can be read from it: {why}") from None
    if resize:
        size = _resized(picture, resize)
        picture = picture.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    if crop:
        picture = _cropped(path, picture, crop)
    return np.asarray(picture, np.uint8).reshape(picture.height, picture.width, channels)


def _resized(picture: Image, resize: Sizes) -> tuple[int, int]:
    """Return height and width; the longer side is rounded down, as torchvision does."""
    if len(resize) == 2:
        return resize[0], resize[1]
    short, height, width = resize[0], picture.height, picture.width
    if height < width:
        return short, short * width // height
    return short * height // width, short


def _cropped(path: Path, picture: Image, crop: Sizes) -> Image:
    height, width = crop[0], crop[-1]
    if picture.height < height or picture.width < width:
        raise VerifyError(
            f"{path}: the picture is {picture.height} x {picture.width}, and crop is {height} x"
            f" {width}: write resize={max(height, width)}"
        )
    top, left = round((picture.height - height) / 2), round((picture.width - width) / 2)
    return picture.crop((left, top, left + width, top + height))


def read_sound(path: Path) -> Array:
    """Return a sound, float64 [channels, samples] between -1 and 1. Raises VerifyError."""
    try:
        with wave.open(str(path), "rb") as sound:
            channels, width = sound.getnchannels(), sound.getsampwidth()
            data = sound.readframes(sound.getnframes())
    except FileNotFoundError:
        raise VerifyError(f"{path}: there is no such file") from None
    except (OSError, EOFError, wave.Error) as error:
        raise VerifyError(f"{path}: no sound can be read from it: {error or 'it ends'}") from None
    parts = np.frombuffer(data, np.uint8)
    parts = parts[: parts.size // (width * channels) * width * channels].reshape(-1, width)
    if width == 1:  # the only ones without a sign
        numbers = parts[:, 0].astype(np.int64) - 128
    else:
        wide = np.zeros((len(parts), 4), np.uint8)
        wide[:, 4 - width :] = parts
        numbers = wide.reshape(-1).view("<i4").astype(np.int64) >> (8 * (4 - width))
    scaled: Array = (numbers / 2.0 ** (8 * width - 1)).reshape(-1, channels).T
    return scaled
