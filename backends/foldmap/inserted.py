"""Sentences on where the operators of a preprocessing went."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from ...ir.module import Module
from ...passes.affine.records.fold_records import Layer, fold_records
from .build import AffineStatus, affine_statuses

if TYPE_CHECKING:
    from .entries import LayerId

BORDERS = {
    "": "",
    "pad": ", behind a Pad by the number that stands for zero",
    "ones": ", behind a Pad by one more channel of ones",
    "map": ", with an Add of a number for each position",
}
"""How the shift passed the zero padding of a layer: the words of `Layer.border`."""


def inserted_notes(module: Module, layers: Mapping[LayerId, Layer]) -> list[str]:
    """Return a sentence for the operators of preprocessings that went into each layer."""
    gone: dict[LayerId, list[str]] = {}
    for name, status in _affines(module, layers):
        for layer in status.layers:
            gone.setdefault(layer, []).append(name)
    return [
        f"{' and '.join(names)} of the preprocessing went into"
        f" {layers[number].node.description}{BORDERS[layers[number].border]}"
        for number, names in gone.items()
    ]


def inserted_warnings(module: Module, layers: Mapping[LayerId, Layer]) -> list[str]:
    """Return a sentence for each operator of a preprocessing that a layer could have taken.

    There is none if no pass ran that folds.
    """
    if not any(each.startswith("FoldScaleAxis") for each in module.provenance.passes):
        return []
    found = [
        f"{name} of the preprocessing stays: {_reason(status)}"
        for name, status in _affines(module, layers)
        if status.status in ("kept", "partial")
    ]
    takes = module.graph.operators_of(("take",)) if module.inserted else []
    for node in [take for take in takes if take.name in module.inserted]:
        readers = " and ".join(reader.description for reader in node.output.users)
        found.append(
            f"{node.description} of the preprocessing stays: the weights of one Conv without groups"
            f" take the order of channels, and {readers or 'nothing'} reads it"
        )
    return found


def _affines(module: Module, layers: Mapping[LayerId, Layer]) -> Iterator[tuple[str, AffineStatus]]:
    """Yield operator and name of each inserted affine, with its status."""
    statuses = affine_statuses(module, layers) if module.inserted else {}
    sources = fold_records(module).sources or {}
    for origin, status in statuses.items():
        source = sources[origin]
        if source.name in module.inserted and not source.scope:
            yield f"{source.op_type} {source.name!r}", status


def _reason(status: AffineStatus) -> str:
    """Return why an affine did not go forward, if that is known."""
    forward = [note for note in status.notes if note.startswith("forward: ")]
    return forward[0].removeprefix("forward: ") if forward else status.detail
