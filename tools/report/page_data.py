"""The types of a report's data: plain JSON, made by `collect` and read by the page's scripts."""

from __future__ import annotations

from typing import NotRequired, TypedDict

Position = list[int]
"""An operator: the position of its graph in `graphs`, and its position in that graph."""


class Chart(TypedDict):
    """Numbers or ranges (`low` to `high`) per channel; each bar covers one or more channels.

    Numbers that are not finite are None and counted in `nonfinite`. Without `high` the bars are
    single numbers.
    """

    channels: int
    min: float | None
    max: float | None
    nonfinite: NotRequired[int]
    low: list[float | None]
    high: NotRequired[list[float | None]]


OperatorData = TypedDict(
    "OperatorData",
    {
        "op": str,
        "name": str,
        "in": list[int],
        "out": list[int],
        "reads": NotRequired[list[int]],
        "attrs": NotRequired[dict[str, str]],
        "graphs": NotRequired[list[int]],
        "to": NotRequired[list[Position]],
        "from": NotRequired[list[Position]],
        "affine": NotRequired[int],
        "layer": NotRequired[int],
        "status": NotRequired[str],
    },
)
"""An operator of a graph.

`in`, `out` and `reads` (values that its subgraphs read) are positions in the graph's `values`, -1
for an absent one; `graphs` are its subgraphs. `to` and `from` are its counterparts in the compiled
model and in the source. `affine` and `layer` are positions in the lists of the report.
"""


class GraphPage(TypedDict):
    """A graph; a value is a name, a type, and a kind: `value`, `constant` or `outer` of another."""

    title: str
    nodes: list[OperatorData]
    values: list[list[str]]
    inputs: list[int]
    outputs: list[int]


class AffineRow(TypedDict):
    """An affine of the source, and its status after the passes; `layers` are positions.

    `module` is the path of the torch module that it comes from.
    """

    id: str
    op: str
    name: str
    module: str | None
    status: str
    reason: str | None
    detail: str
    notes: list[str]
    channels: int | None
    epsilon: float | None
    layers: list[int]
    params: dict[str, Chart]


class FoldRow(TypedDict):
    """The share of an affine (a position in the report's affines) in a layer."""

    affine: int
    direction: str
    crossed: list[str]
    scale: Chart
    shift: Chart


class LayerRow(TypedDict):
    """A layer into which affines were folded; `ranges` has its weight's before and after."""

    name: str
    op: str
    module: str | None
    weight: str
    bias: str | None
    bias_created: bool
    remainder: str | None
    ranges: list[Chart | None]
    folds: list[FoldRow]


class PassRow(TypedDict):
    """A pass that was run, and how it changed the IR text (see `text_diff.Diff`)."""

    name: str
    seconds: float | None
    changed: bool
    operators: int
    added: int
    removed: int
    lines: tuple[str, ...]
    left_out: int | None


class MeasureRow(TypedDict):
    """The error of one tensor; numbers that are not finite are texts, because JSON has none."""

    tensor: str
    max_abs: float | str | None
    max_rel: float | str | None
    sqnr: float | str | None
    bound: float | str | None


class ModelFacts(TypedDict):
    """The source model."""

    name: str
    producer: str
    ir_version: int
    opsets: dict[str, int]


class SummaryData(TypedDict):
    """Numbers before and after, affines by status (None without a compile), seconds, warnings.

    `held_back` is the number of folds that overridable initializers prevent.
    """

    operators: list[int]
    bytes: list[int]
    affines: dict[str, int] | None
    held_back: int
    seconds: float | None
    warnings: list[str]


class ReportData(TypedDict):
    """All data of a report; `graphs` has the graphs of both models."""

    irc: str
    model: ModelFacts
    summary: SummaryData
    passes: list[PassRow]
    graphs: list[list[GraphPage]]
    affines: list[AffineRow]
    layers: list[LayerRow]
    alignment: list[MeasureRow] | None
