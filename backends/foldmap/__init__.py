"""The fold map: what became of every affine of a source model, and what is needed to get it back.

The format is described by `schema.json` in this folder and in docs/fold_map.md.
"""

from __future__ import annotations

from .arrays import Arrays
from .build import MapBuilder, build_fold_map, numbered_layers, statuses
from .digests import graph_digest
from .document import FORMAT, STORES, VERSION, FoldMap, check_store, count_statuses
from .inverse import STALE, Staleness, check, is_of, unfold
from .npz import NpzWriter
from .readings import Readings

__all__ = [
    "FORMAT",
    "STALE",
    "STORES",
    "VERSION",
    "Arrays",
    "FoldMap",
    "MapBuilder",
    "NpzWriter",
    "Readings",
    "Staleness",
    "build_fold_map",
    "check",
    "check_store",
    "count_statuses",
    "graph_digest",
    "is_of",
    "numbered_layers",
    "statuses",
    "unfold",
]
