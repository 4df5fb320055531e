"""The fold map: the fate of every affine of a source model, and the data that restores the source.

docs/fold_map.md explains the format; `schema.json` in this folder and the types in `entries` define
it. Names are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...support.exports import lazy_exports

if TYPE_CHECKING:
    from .arrays import ArrayStore
    from .build import MapBuilder, affine_statuses, number_layers
    from .digests import graph_digest
    from .fold_map import FoldMap
    from .inverse import OTHER_MODEL, MapComparison, belongs_to, check, unfold
    from .npz import NpzWriter
    from .observer import PayloadObserver
    from .serialize import FORMAT, STORES, VERSION, check_store
    from .status_counts import count_statuses, statuses

__all__ = [
    "FORMAT",
    "OTHER_MODEL",
    "STORES",
    "VERSION",
    "ArrayStore",
    "FoldMap",
    "MapBuilder",
    "MapComparison",
    "NpzWriter",
    "PayloadObserver",
    "affine_statuses",
    "belongs_to",
    "check",
    "check_store",
    "count_statuses",
    "graph_digest",
    "number_layers",
    "statuses",
    "unfold",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "arrays": ("ArrayStore",),
        "build": ("MapBuilder", "affine_statuses", "number_layers"),
        "digests": ("graph_digest",),
        "fold_map": ("FoldMap",),
        "inverse": ("OTHER_MODEL", "MapComparison", "belongs_to", "check", "unfold"),
        "npz": ("NpzWriter",),
        "observer": ("PayloadObserver",),
        "serialize": ("FORMAT", "STORES", "VERSION", "check_store"),
        "status_counts": ("count_statuses", "statuses"),
    },
)
