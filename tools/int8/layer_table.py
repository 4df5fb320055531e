"""The output of `irc align` for a quantized model on a terminal."""

from __future__ import annotations

from math import isnan

from rich.console import Console

from ...support.errors import visible
from ..verify.align_table import Column, print_columns, print_line
from .layer_errors import ENOUGH, QuantizedAlignment

DISPENSABLE = ("operator", "weights", "rounding", "clipping", "accumulated", "repair")
"""Columns that are left out if there is no room, in this order."""


def print_layers(alignment: QuantizedAlignment, console: Console) -> None:
    """Print a table with the errors of every layer in dB, and below it the errors of results."""
    layers = alignment.layers
    columns = [
        Column("layer", [visible(layer.layer) for layer in layers], is_name=True),
        Column("operator", [layer.op_type for layer in layers]),
        *(
            Column(key, [_decibels(getattr(layer, key)) for layer in layers])
            for key in ("alone", "accumulated", "weights", "rounding", "clipping")
        ),
        Column("repair", [visible(layer.repair) for layer in layers]),
    ]
    styles = ["bold red" if layer.alone < ENOUGH / 2 else "" for layer in layers]
    print_columns(console, columns, styles, DISPENSABLE)
    for name, reason in alignment.left_out.items():
        print_line(console, f"{name}: not compared: {reason}")
    for result in alignment.results:
        sqnr, agreed = _decibels(result.sqnr), result.agreed_text()
        print_line(console, f"{result.name}: SQNR {sqnr} dB{agreed}, on {alignment.samples}")


def _decibels(number: float) -> str:
    return "" if isnan(number) else f"{number:.1f}"
