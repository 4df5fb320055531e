"""The output of `irc align` for a quantized model on a terminal."""

from __future__ import annotations

from math import isnan

from rich.console import Console

from ...support.errors import visible
from ..verify.align_table import Column, print_columns, print_line
from .layer_errors import ENOUGH, QuantizedAlignment
from .noise_table import NoiseTable, power_of

MOST = 0.95
"""Share of the noise whose roundings are listed."""
DISPENSABLE = ("operator", "weights", "rounding", "clipping", "accumulated", "repair")
"""Columns that are left out if there is no room, in this order."""


def print_layers(alignment: QuantizedAlignment, noises: NoiseTable, console: Console) -> None:
    """Print a table of the errors of layers in dB, one of roundings, and the errors of results."""
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
    _print_noises(noises, console)
    for name, reason in alignment.left_out.items():
        print_line(console, f"{name}: not compared: {reason}")
    for result in alignment.results:
        sqnr, agreed = _decibels(result.sqnr), result.agreed_text()
        print_line(console, f"{result.name}: SQNR {sqnr} dB{agreed}, on {alignment.samples}")


def _print_noises(table: NoiseTable, console: Console) -> None:
    """Print the roundings that make MOST of the noise, each alone, and the ratio by their sum."""
    if table.lacking:
        print_line(console, f"the noise of each rounding is not known: {table.lacking}")
        return
    powers = [power_of(noise.alone) for noise in table.noises]
    total, shown = sum(powers), 0
    while sum(powers[:shown]) < MOST * total:
        shown += 1
    noises = table.noises[:shown]
    columns = [
        Column("rounding of", [visible(noise.name) for noise in noises], is_name=True),
        Column("kind", [noise.kind for noise in noises]),
        Column("alone", [_decibels(noise.alone) for noise in noises]),
        Column("share %", [f"{100 * power / total:.1f}" for power in powers[:shown]]),
    ]
    print_columns(console, columns, [""] * shown, ("kind",))
    count = len(powers)
    print_line(console, f"noise: {table.predicted:.1f} dB by the sum of {count} roundings")


def _decibels(number: float) -> str:
    return "" if isnan(number) else f"{number:.1f}"
