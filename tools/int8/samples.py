"""Inputs to calibrate and to judge a quantized model: read, or generated within ranges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path

import numpy as np
from onnx import ModelProto

from ...ir.tensor import Array
from ...support.errors import SourceError, UsageError, VerifyError
from ..verify.input_generation import stimuli
from ..verify.inputs import (
    Feeds,
    Infos,
    Stimulus,
    arrays_of,
    check_feeds,
    declared_shape,
    read_inputs,
    required_inputs,
)
from ..verify.runner import Runner
from .data_preparation import DataPreparation
from .media import PICTURES, SOUNDS

ARRAYS = (".npz", ".npy", ".pb")
"""Files of arrays, which are read as inputs."""
SUFFIXES = (*ARRAYS, *PICTURES, *SOUNDS)
"""Files of a folder that are read as inputs."""
KINDS = "an .npz, .npy, .pb, .png, .jpg or .wav"
"""The kinds of files, in a message."""
BATCH = 8
"""Samples that are run together if the model leaves the first axis open."""
GENERATED = 16
"""Most batches that are generated."""
FEWEST = 4
"""Fewest batches that are generated."""
MAX_ELEMENTS = 1 << 22
"""Elements of all generated batches together, beyond which there are fewer."""
HELD_OUT = 5
"""One sample of so many is held out of the calibration."""
COMMON = 0.9
"""Share of the power of generated values that channels have in common, as in pictures."""


def read_samples(
    data: str | Path | Mapping[str, Array] | Array,
    model: ModelProto,
    preprocess: str | Sequence[str] = (),
) -> list[Feeds]:
    """Return the samples of `data`, split into batches that the model takes.

    `data` has an array for each input of the model, samples along its first axis: a mapping, for
    one input the array alone, an `.npz` file, for a model with one input also an `.npy`,
    TensorProto (`.pb`), `.png`, `.jpg` or `.wav` file, or a folder of them. `preprocess` makes
    inputs of what is given. Raises VerifyError if a file cannot be read or does not fit the model,
    and UsageError for other data.
    """
    infos = {info.name: info for info in required_inputs(model)}
    preparation = DataPreparation(infos, preprocess)
    if isinstance(data, np.ndarray) and len(infos) == 1:
        data = {next(iter(infos)): data}
    if isinstance(data, Mapping):
        arrays = {
            name: preparation.converted(name, np.asarray(array))
            for name, array in data.items()
            if name in infos
        }
        found = [Stimulus("data", arrays)]
        check_feeds(found[0], infos)
    elif not isinstance(data, str | Path):
        names = ", ".join(f"{name!r}: ..." for name in infos)
        raise UsageError(
            f"data are a path, or arrays by the names of the inputs: write {{{names}}}"
        )
    else:
        found = []
        for path in _files(Path(data), len(infos)):
            if path.suffix.lower() in ARRAYS:
                found += read_inputs([path], model, preparation.converted)
                continue
            (name,) = infos
            stimulus = Stimulus(path.name, {name: preparation.read(path, name)})
            check_feeds(stimulus, infos)
            found.append(stimulus)
        found = _joined(found)
    return [batch for stimulus in found for batch in _split(stimulus, infos)]


def hold_out(batches: list[Feeds], model: ModelProto) -> tuple[list[Feeds], list[Feeds], str]:
    """Return batches to calibrate with, batches to compare on, and the words for these.

    One of HELD_OUT batches is held out, or if there are fewer, samples of each batch. A model that
    takes too few samples is compared on the samples of the calibration.
    """
    if len(batches) >= HELD_OUT:
        held = batches[HELD_OUT - 1 :: HELD_OUT]
        kept = [batch for i, batch in enumerate(batches) if (i + 1) % HELD_OUT]
        return kept, held, ", held out of the calibration"
    infos = {info.name: info for info in required_inputs(model)}
    sizes = {len(array) if array.ndim else 0 for batch in batches for array in batch.values()}
    # Only a model with an open first extent takes the batches without some of their samples.
    is_open = not any(_first_extent(infos, name) for batch in batches for name in batch)
    if is_open and sizes and min(sizes) >= HELD_OUT:
        parts = [
            [
                {
                    name: np.delete(array, cut, 0) if kept else array[cut]
                    for name, array in batch.items()
                }
                for batch in batches
            ]
            for cut, kept in ((slice(HELD_OUT - 1, None, HELD_OUT), k) for k in (True, False))
        ]
        return parts[0], parts[1], ", held out of the calibration"
    return batches, batches, " of the calibration"


def _files(path: Path, num_inputs: int) -> list[Path]:
    """Return the files at `path` that have inputs, in the order of their names."""
    if not path.is_dir() and path.suffix.lower() not in SUFFIXES:
        raise VerifyError(f"{path}: give {KINDS} file, or a folder of them")
    try:
        entries = path.iterdir() if path.is_dir() else [path]
        files = sorted(file for file in entries if file.suffix.lower() in SUFFIXES)
    except OSError as error:
        raise VerifyError(f"{path}: cannot be read: {error.strerror}") from None
    if not files:
        raise VerifyError(f"{path}: this folder has no {KINDS.partition(' ')[2]} file")
    single = next((file for file in files if file.suffix != ".npz"), None)
    if single is not None and num_inputs != 1:
        raise VerifyError(
            f"{single}: the model has {num_inputs} inputs: give .npz files, which name them"
        )
    return files


def _joined(found: list[Stimulus]) -> list[Stimulus]:
    """Return the samples of files, those of neighbours together where their shapes are equal."""
    joined: list[Stimulus] = []
    for _, group in groupby(found, lambda each: {n: a.shape for n, a in each.feeds.items()}):
        some = list(group)
        (first, *_), names = some, some[0].feeds
        # An array that was one sample is an axis of samples now; others stay apart.
        if len(some) > 1 and all(len(a) == 1 for a in first.feeds.values() if a.ndim):
            arrays = {name: np.concatenate([each.feeds[name] for each in some]) for name in names}
            some = [Stimulus(first.name, arrays)]
        joined += some
    return joined


def _split(stimulus: Stimulus, infos: Infos) -> list[Feeds]:
    """Split arrays along their first axis by the model's declared extent, or by BATCH.

    An array that is one batch goes into every batch. Raises VerifyError if the arrays do not have
    as many batches.
    """
    arrays = stimulus.feeds
    sizes = {name: len(array) if array.ndim else 1 for name, array in arrays.items()}
    extents = {name: _first_extent(infos, name) for name in arrays}
    fixed = {name: sizes[name] / extent for name, extent in extents.items() if extent}
    steps = max(fixed.values(), default=1)
    if steps == 1:
        open_sizes = [size for name, size in sizes.items() if not extents[name]]
        steps = max((-(-size // BATCH) for size in open_sizes), default=1)
    samples = {size for name, size in sizes.items() if not extents[name]}
    # Each array has the same whole number of batches, or is one batch for all.
    fit = all(count in (1, steps) for count in fixed.values()) and len(samples) <= 1
    is_whole = steps >= 1 and steps % 1 == 0
    if not fit or not is_whole:
        shapes = ", ".join(f"{name!r} {size}" for name, size in sizes.items())
        raise VerifyError(
            f"{stimulus.name}: the numbers of samples do not fit each other or the model: {shapes}"
        )
    chunks = {name: extents[name] or -(-size // int(steps)) for name, size in sizes.items()}
    batches: list[Feeds] = [{} for _ in range(int(steps))]
    for name, array in arrays.items():
        size = chunks[name]
        for step, batch in enumerate(batches):
            is_shared = fixed.get(name) == 1
            batch[name] = array if is_shared else array[step * size : (step + 1) * size]
    return batches


def _first_extent(infos: Infos, name: str) -> int | None:
    """Return the declared extent of an input's first axis, 1 for scalars, None if open."""
    shape = declared_shape(infos[name])
    if shape is None:
        return None
    return (shape[0] or None) if shape else 1


def generate_samples(
    runner: Runner, ranges: Mapping[str, tuple[float, float]], seed: int = 0
) -> list[Feeds]:
    """Return FEWEST to GENERATED batches on which the model runs, of the first shapes it takes.

    An input with a range holds numbers of the range: uniform ones, or with more than two axes those
    of `_textures`. Other inputs are as in `verify`, with another seed in each batch.
    Raises SourceError if the model runs on no generated inputs.
    """

    def error_on(feeds: Feeds) -> str | None:
        try:
            runner.run([info.name for info in runner.model.graph.output], feeds)
        except VerifyError as error:
            return str(error)
        return None

    runs = error_on, runner.shape_of

    def drawn(seed: int) -> Stimulus:
        return next(stimuli(runner.model, *runs, seed=seed, kinds=("normal",), sizes=1))

    first = drawn(seed)
    elements = sum(array.size for value in first.feeds.values() for array in arrays_of(value))
    count = min(max(MAX_ELEMENTS // max(elements, 1), FEWEST), GENERATED)
    rng = np.random.default_rng(seed)
    batches: list[Feeds] = []
    for number in range(count):
        batch = first.feeds
        if number and not batch.keys() <= ranges.keys():
            with suppress(SourceError):  # the model does not run on these: the first ones again
                other = drawn(seed + number)
                batch = other.feeds if _shapes(other) == _shapes(first) else batch
        textures = {
            name: _textures(rng, array.shape, ranges[name]).astype(array.dtype)
            for name, array in batch.items()
            if name in ranges
        }
        batches.append({**batch, **textures})
    return batches


def _shapes(stimulus: Stimulus) -> list[tuple[int, ...]]:
    return [array.shape for value in stimulus.feeds.values() for array in arrays_of(value)]


def size_of(feeds: Feeds) -> int:
    """Return the number of samples of a batch."""
    return max((len(array) for array in feeds.values() if array.ndim), default=1)


def count_samples(batches: Sequence[Feeds]) -> str:
    """Return the number of samples in words."""
    count = sum(map(size_of, batches))
    return "1 sample" if count == 1 else f"{count} samples"


def _textures(rng: np.random.Generator, shape: Sequence[int], ends: tuple[float, float]) -> Array:
    """Return numbers between two ends, uniform, or textures along the axes from the third on.

    Textures are normal noise with the same power in every octave of the frequency, as pictures and
    sounds have it whatever their scale, and with a share in common to all channels. Each sample
    reaches both ends.
    """
    axes = tuple(range(2, len(shape)))
    if not axes or not all(shape):
        return np.asarray(rng.uniform(*ends, shape))
    noise = rng.standard_normal(shape)
    noise = np.sqrt(COMMON) * noise[:, :1] + np.sqrt(1 - COMMON) * noise
    frequencies = [np.fft.fftfreq(shape[axis]) for axis in axes[:-1]]
    frequencies.append(np.fft.rfftfreq(shape[axes[-1]]))
    squares = sum(np.square(each) for each in np.meshgrid(*frequencies, indexing="ij"))
    # The mean of a sample has the power of its lowest frequency.
    squares = np.maximum(squares, 1 / max(shape[axis] for axis in axes) ** 2)
    spectrum = np.fft.rfftn(noise, axes=axes) * squares ** (-len(axes) / 4)
    found = np.fft.irfftn(spectrum, [shape[axis] for axis in axes], axes=axes)
    within = tuple(range(1, len(shape)))
    least, most = (end(found, axis=within, keepdims=True) for end in (np.min, np.max))
    span = np.where(most > least, most - least, 1.0)
    return np.asarray(ends[0] + (ends[1] - ends[0]) * (found - least) / span)
