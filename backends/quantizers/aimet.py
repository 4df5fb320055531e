"""AIMET (aimet_onnx): statistics for its high-bias fold, and encodings for its quantization simulator.

    model, fold_map = result.model, result.fold_map
    known = to_aimet(model, fold_map)
    pairs = CrossLayerScaling(model).scale_model()
    HighBiasFold(model).bias_fold(pairs, known)

AIMET divides what it is given by its own scales, so the statistics are those of the model before `scale_model`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto

from ...ir.tensor import Array
from ...support.errors import UsageError
from ..foldmap import FoldMap
from .folded import Readers, check_belongs
from .ranges import SIGMAS, Range, activations

BITS = 8


@dataclass(frozen=True, slots=True, eq=False)
class ChannelAffine:
    """What a BatchNormalization made of its normalised data, gamma * x + beta, as float64 vectors [C]."""

    gamma: Array
    beta: Array


@dataclass(frozen=True, slots=True, eq=False)
class LayerAffines:
    """The affines of layers' results by node name; `missing` layers have none, `inexact` ones were left out because a
    layer that reads them would not make a constant of a constant.
    """

    layers: dict[str, ChannelAffine]
    missing: tuple[str, ...]
    inexact: tuple[str, ...]


def layer_affines(model: ModelProto, fold_map: FoldMap, *, skip_zero_padded: bool = True) -> LayerAffines:
    """Of every Conv, ConvTranspose, Gemm and MatMul of the main graph into which something was folded backward: what
    was folded forward says nothing of a layer's own result.

    High-bias fold moves a constant from the result of a layer into the bias of the next. With zero padding the border
    does not get its share; `skip_zero_padded` leaves out layers whose result reaches such a reader through activations.
    Raises FoldMapError where the map does not describe the model.
    """
    check_belongs(model, fold_map)
    readers = Readers(model)
    backward = {
        entry["node"]["name"]: entry
        for entry in fold_map.layers
        if not entry["scope"] and any(fold["direction"] == "backward" for fold in entry["folds"])
    }
    layers: dict[str, ChannelAffine] = {}
    missing: list[str] = []
    inexact: list[str] = []
    for node in model.graph.node:
        if node.op_type not in ("Conv", "ConvTranspose", "Gemm", "MatMul"):
            continue
        entry = backward.get(node.name)
        known = None if entry is None else fold_map.output_stats(entry["id"])
        if entry is None or known is None:
            missing.append(node.name or node.output[0])
        elif skip_zero_padded and any(map(_is_inexact, readers.through_activations(entry["output"]["name"]))):
            inexact.append(node.name)
        else:
            layers[node.name] = ChannelAffine(known.gamma, known.mean)
    return LayerAffines(layers, tuple(missing), tuple(inexact))


def to_aimet(model: ModelProto, fold_map: FoldMap, *, skip_zero_padded: bool = True) -> dict[str, Any]:
    """The `bn_layers` of AIMET's `HighBiasFold.bias_fold`: its BNLayer by node name, as `layer_affines` finds them.

    Raises FoldMapError where the map does not describe the model, UsageError where aimet_onnx is not installed.
    """
    found = layer_affines(model, fold_map, skip_zero_padded=skip_zero_padded)
    try:
        from aimet_onnx.batch_norm_fold import BNLayer
    except ImportError as error:
        raise UsageError(f"to_aimet needs aimet_onnx, which cannot be imported here: {error}") from None
    return {name: BNLayer(None, gamma=known.gamma, beta=known.beta) for name, known in found.layers.items()}


@dataclass(frozen=True, slots=True)
class Encodings:
    """`document` is AIMET's encodings, schema 1.0.0; activations in `missing` have none."""

    document: dict[str, Any]
    missing: tuple[str, ...]


def to_aimet_encodings(
    model: ModelProto,
    fold_map: FoldMap,
    *,
    input_ranges: Mapping[str, Range] | None = None,
    ranges: Mapping[str, Range] | None = None,
    sigmas: float = SIGMAS,
    tensors: Collection[str] | None = None,
) -> Encodings:
    """Asymmetric 8-bit encodings of activations for AIMET's `load_encodings_to_sim` (with `strict=False`,
    `disable_missing_quantizers=False`), JSON-able; the arguments are those of `activations`.

    `tensors` are those that the simulator quantizes, names of `sim.qc_quantize_op_dict` with `enabled`; by default all
    are taken, and loading makes it quantize them all, in front of an activation as well. Weights have no entry: AIMET
    makes theirs from the weights. Raises FoldMapError where the map does not describe the
    model, UsageError where a range is none.
    """
    found = activations(model, fold_map, input_ranges=input_ranges, ranges=ranges, sigmas=sigmas)
    wanted = set(found.shapes if tensors is None else tensors)
    entries = [_encoding(name, *known.range) for name, known in found.known.items() if name in wanted]
    missing = tuple(name for name in found.missing if name in wanted)
    return Encodings({"version": "1.0.0", "activation_encodings": entries, "param_encodings": []}, missing)


def _encoding(name: str, low: float, high: float) -> dict[str, Any]:
    """An encoding whose grid holds zero: q * scale + offset * scale for q in 0..255 covers `low` to `high`."""
    low, high = min(low, 0.0), max(high, 0.0)
    scale = (high - low) / (2**BITS - 1) or 1.0
    return {
        "name": name,
        "bw": BITS,
        "dtype": "INT",
        "enc_type": "PER_TENSOR",
        "is_sym": False,
        "scale": [scale],
        "offset": [round(low / scale)],
    }


def _is_inexact(node: NodeProto) -> bool:
    """Whether a convolution makes something else of a constant than one constant per channel: at the border, where it
    pads with zeros, or anywhere, where it spreads its data out.
    """
    attributes = {attribute.name: attribute for attribute in node.attribute}
    pads = any(attributes["pads"].ints) if "pads" in attributes else False
    automatic = "auto_pad" in attributes and attributes["auto_pad"].s not in (b"", b"NOTSET", b"VALID")
    if node.op_type == "Conv":
        return pads or automatic
    if node.op_type == "ConvTranspose":
        spread = [k for key in ("kernel_shape", "strides") if key in attributes for k in attributes[key].ints]
        return bool(np.any(np.array(spread) != 1)) or "kernel_shape" not in attributes
    return False
