"""What the adapters ask of a fold map, and whether it belongs to a model."""

from __future__ import annotations

from typing import Any, Protocol

from onnx import ModelProto

from ...ir.errors import FoldMapError
from ...ir.statistics import Statistic
from ..foldmap import graph_digest


class Statistics(Protocol):
    """The part of a fold map that the adapters read."""

    @property
    def data(self) -> dict[str, Any]:
        """The document: `folded_model` has the digest of the model."""

    @property
    def layers(self) -> list[dict[str, Any]]:
        """One entry for every layer that absorbed something."""

    def statistic(self, tensor: str) -> Statistic | None:
        """What is known of a value of the folded model's main graph."""

    def output_stats(self, layer: str) -> Statistic | None:
        """What is known of the result of a layer, given by its id or node name."""


def check_belongs(model: ModelProto, fold_map: Statistics) -> None:
    """Raises FoldMapError unless `model` is the folded model of the map, as it was emitted."""
    if fold_map.data["folded_model"]["digest"] != graph_digest(model):
        raise FoldMapError(
            "the fold map does not describe this model: export before any other tool changes the model, "
            "or fold the model again"
        )
