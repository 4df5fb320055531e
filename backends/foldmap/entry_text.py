"""JSON of the entries of which a fold map has thousands, in a third of the time that `json` takes for them.

The texts are those of `serialize.encode`, byte by byte; a test holds it. They have the fields that `MapBuilder` makes:
a map that was loaded may have more.
"""

from __future__ import annotations

from collections.abc import Sequence
from json.encoder import encode_basestring as quoted
from math import isfinite
from typing import TYPE_CHECKING

from .serialize import EntryTexts, encode

if TYPE_CHECKING:
    from .entries import ArrayEntry, BiasEntry, FoldEntry, LayerEntry, ParameterEntry, SourceEntry, StatisticEntry


def source_text(entry: SourceEntry) -> str:
    """Return the JSON of an affine of the source."""
    node, reason = entry["node"], entry["reason"]
    params = ", ".join([f'"{key}": {_parameter(param)}' for key, param in entry["params"].items()])
    return (
        f'{{"id": "{entry["id"]}", "kind": "{entry["kind"]}", "scope": {_list(entry["scope"])}, '
        f'"module": {_text(entry["module"])}, '
        f'"node": {{"name": {quoted(node["name"])}, "op_type": "{node["op_type"]}", "index": {node["index"]}}}, '
        f'"input": {quoted(entry["input"])}, "output": {quoted(entry["output"])}, "axis": {_integer(entry["axis"])}, '
        f'"channels": {_integer(entry["channels"])}, "epsilon": {_number(entry["epsilon"])}, "params": {{{params}}}, '
        f'"status": "{entry["status"]}", "reason": {_text(reason)}, "detail": {quoted(entry["detail"])}, '
        f'"notes": {_list(entry["notes"])}, "layers": {_texts(entry["layers"])}}}'
    )


def layer_text(entry: LayerEntry) -> str:
    """Return the JSON of a layer into which affines were folded."""
    node, weight, output = entry["node"], entry["weight"], entry["output"]
    remainder = "null" if entry["remainder"] is None else encode(entry["remainder"])
    quantized = "null" if entry["quantized"] is None else encode(entry["quantized"])
    return (
        f'{{"id": "{entry["id"]}", "scope": {_list(entry["scope"])}, "module": {_text(entry["module"])}, '
        f'"node": {{"name": {quoted(node["name"])}, '
        f'"op_type": "{node["op_type"]}", "original_name": {quoted(node["original_name"])}}}, '
        f'"weight": {{"name": {quoted(weight["name"])}, "original_name": {quoted(weight["original_name"])}, '
        f'"out_axis": {weight["out_axis"]}, "group": {weight["group"]}, "digest": {_text(weight["digest"])}}}, '
        f'"bias": {_bias(entry["bias"])}, "input": {quoted(entry["input"])}, '
        f'"output": {{"name": {quoted(output["name"])}, "original_names": {_texts(output["original_names"])}}}, '
        f'"remainder": {remainder}, "quantized": {quantized}, '
        f'"folds": [{", ".join([_fold(fold) for fold in entry["folds"]])}]}}'
    )


def statistic_text(entry: StatisticEntry) -> str:
    """Return the JSON of the statistics of a value."""
    return (
        f'{{"tensor": {quoted(entry["tensor"])}, "scope": {_list(entry["scope"])}, '
        f'"module": {_text(entry["module"])}, "axis": {entry["axis"]}, '
        f'"mean": {_array(entry["mean"])}, "std": {_array(entry["std"])}, "gamma": {_array(entry["gamma"])}, '
        f'"source": "{entry["source"]}"}}'
    )


ENTRY_TEXTS: EntryTexts = {
    "sources": source_text,
    "layers": layer_text,
    "statistics": statistic_text,
}
"""By field of the document, the function that returns the JSON of each of its entries."""


def _parameter(entry: ParameterEntry) -> str:
    value = "null" if entry["value"] is None else _array(entry["value"])
    return f'{{"name": {quoted(entry["name"])}, "value": {value}}}'


def _bias(entry: BiasEntry | None) -> str:
    if entry is None:
        return "null"
    return (
        f'{{"name": {quoted(entry["name"])}, "original_name": {_text(entry["original_name"])}, '
        f'"created": {"true" if entry["created"] else "false"}, "digest": {_text(entry["digest"])}}}'
    )


def _fold(entry: FoldEntry) -> str:
    return (
        f'{{"source": "{entry["source"]}", "direction": "{entry["direction"]}", "axis": {_integer(entry["axis"])}, '
        f'"crossed": {_texts(entry["crossed"])}, "scale": {_array(entry["scale"])}, "shift": {_array(entry["shift"])}}}'
    )


def _array(entry: ArrayEntry) -> str:
    begin = f'{{"dtype": "{entry["dtype"]}", "shape": {entry["shape"]}, "ref": {quoted(entry["ref"])}'
    return f'{begin}, "offset": {entry["offset"]}}}' if "offset" in entry else f"{begin}}}"


def _number(number: float | None) -> str:
    return repr(number) if number is not None and isfinite(number) else encode(number)


def _integer(number: int | None) -> str:
    return "null" if number is None else str(number)


def _text(text: str | None) -> str:
    return "null" if text is None else quoted(text)


def _texts(texts: Sequence[str]) -> str:
    return f"[{', '.join([quoted(text) for text in texts])}]"


def _list(items: Sequence[object]) -> str:
    return encode(items) if items else "[]"
