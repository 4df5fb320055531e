"""The seeds: models of the zoo, of onnx's tests, of the rule tables and of random grammars."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import harness
import irc
import scale_axis
import zoo
from graphs import F32
from irc.support.errors import IRError
from onnx import ModelProto
from random_graphs import grow

LARGEST = 16 << 10
"""Bytes of a seed: small files are mutated, and run, more often in the same time."""


@cache
def models() -> tuple[bytes, ...]:
    """Models as files."""
    found = [model for name, model in zoo.models() if name != "odd/empty/model_of_nothing"]
    found += [case.model() for case in scale_axis.CASES]
    found += [grow(seed) for seed in range(100)]
    found += [harness.load(path) for path in harness.onnx_files() if path.stat().st_size <= LARGEST]
    contents = [
        model.SerializeToString(deterministic=True)
        for model in found
        if model.ByteSize() <= LARGEST
    ]
    return tuple(dict.fromkeys(contents))


@cache
def foldable() -> tuple[bytes, ...]:
    """Models of which the default pipeline folds something."""
    made = [case.model(F32) for case in scale_axis.CASES[::10]]
    return tuple(
        model.SerializeToString(deterministic=True) for model in made if model.ByteSize() <= LARGEST
    )


@cache
def text(index: int) -> str | None:
    """The IR text of a model, of every second one behind the passes; None where it has none."""
    try:
        module = module_of(models()[index])
        if index % 2:
            irc.passes.default_pipeline()(module)
        return str(module)
    except IRError:
        return None


def module_of(content: bytes) -> irc.Module:
    from irc.frontends.onnx import from_model

    return from_model(ModelProto.FromString(content), Path("/nonexistent"))


@cache
def folded(index: int) -> tuple[bytes, bytes, irc.FoldMap]:
    """A source, what it compiles to, and the fold map."""
    source = foldable()[index]
    result = irc.compile(ModelProto.FromString(source))
    return source, result.model.SerializeToString(deterministic=True), result.fold_map
