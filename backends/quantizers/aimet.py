"""AIMET (aimet_onnx): statistics for its high-bias fold, encodings for its simulator.

    model, fold_map = result.model, result.fold_map
    known = to_aimet(model, fold_map)
    pairs = CrossLayerScaling(model).scale_model()
    HighBiasFold(model).bias_fold(pairs, known)

AIMET divides the statistics by its own scales, so they describe the model before `scale_model`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from onnx import ModelProto, NodeProto

from ...ir.tensor import Array
from ...support.errors import UsageError
from ..foldmap.fold_map import FoldMap
from .folded import Readers, check_belongs
from .ranges import SIGMAS, Range, activations

BITS = 8
VERSIONS = ("0.6.1", "1.0.0")
"""Layouts of encodings."""


@dataclass(frozen=True, slots=True, eq=False)
class ChannelAffine:
    """The affine gamma * x + beta of a BatchNormalization, as float64 vectors [C].

    x is normalised: its mean is 0, its variance 1.
    """

    gamma: Array
    beta: Array


@dataclass(frozen=True, slots=True, eq=False)
class LayerAffines:
    """The affines of layers' results by node name.

    Nothing is known of `missing` layers. `inexact` layers were left out, because a layer that reads
    their result does not map a constant per channel to a constant per channel.
    """

    layers: dict[str, ChannelAffine]
    missing: tuple[str, ...]
    inexact: tuple[str, ...]


def layer_affines(
    model: ModelProto, fold_map: FoldMap, *, skip_zero_padded: bool = True
) -> LayerAffines:
    """Return the affines of layers of the main graph with a backward fold.

    Layers are Conv, ConvTranspose, Gemm and MatMul. A forward fold says nothing about the layer's
    own result. High-bias fold moves a constant from the result of a layer into the bias of the next
    one, which is wrong at a border that is padded with zeros: `skip_zero_padded` leaves out layers
    whose result reaches such a border through activations. Raises FoldMapError if the map does not
    describe the model.
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
            continue
        after = readers.through_activations(entry["output"]["name"])
        if skip_zero_padded and any(map(_is_inexact, after)):
            inexact.append(node.name)
        else:
            layers[node.name] = ChannelAffine(known.gamma, known.mean)
    return LayerAffines(layers, tuple(missing), tuple(inexact))


def to_aimet(
    model: ModelProto, fold_map: FoldMap, *, skip_zero_padded: bool = True
) -> dict[str, Any]:
    """Return the `bn_layers` of AIMET's `HighBiasFold.bias_fold`, a BNLayer by node name.

    The layers are those of `layer_affines`. Raises FoldMapError if the map does not describe the
    model, UsageError if aimet_onnx is not installed.
    """
    found = layer_affines(model, fold_map, skip_zero_padded=skip_zero_padded)
    try:
        from aimet_onnx.batch_norm_fold import BNLayer
    except ImportError as error:
        raise UsageError(f"to_aimet needs aimet_onnx, which cannot be imported: {error}") from None
    return {
        name: BNLayer(None, gamma=known.gamma, beta=known.beta)
        for name, known in found.layers.items()
    }


@dataclass(frozen=True, slots=True)
class Encodings:
    """AIMET's encodings, and the activations without one (`missing`).

    Encodings of `guessed` activations come from guesses: pass `ranges` if you know better.
    """

    document: dict[str, object]
    missing: tuple[str, ...]
    guessed: tuple[str, ...] = ()


def to_aimet_encodings(
    model: ModelProto,
    fold_map: FoldMap,
    *,
    input_ranges: Mapping[str, Range] | Range | None = None,
    ranges: Mapping[str, Range] | None = None,
    sigmas: float = SIGMAS,
    tensors: Collection[str] | None = None,
    version: str = "1.0.0",
) -> Encodings:
    """Return asymmetric 8-bit encodings of activations for AIMET's `load_encodings_to_sim`.

    Load them with `strict=False` and `disable_missing_quantizers=False`. `tensors` are the names
    that the simulator quantizes: those in `sim.qc_quantize_op_dict` that are `enabled`. By default
    all activations have an encoding, and loading adds a quantizer for each. AIMET computes
    encodings of weights itself. `version` is one of VERSIONS; 0.6.1 is for
    `--quantization_overrides` of Qualcomm's converters. The other arguments are as for
    `activations`. Raises FoldMapError if the map does not describe the model, UsageError for an
    invalid range and an unknown version.
    """
    if version not in VERSIONS:
        raise UsageError(
            f"encodings have no version {version!r}: choose from {', '.join(VERSIONS)}"
        )
    found = activations(model, fold_map, input_ranges=input_ranges, ranges=ranges, sigmas=sigmas)
    wanted = set(found.shapes if tensors is None else tensors)
    missing, guessed = (
        tuple(name for name in names if name in wanted) for names in (found.missing, found.guessed)
    )
    grids = {name: _grid(*known.range) for name, known in found.known.items() if name in wanted}
    activation: object = [_encoding(name, *grid) for name, grid in grids.items()]
    param: object = []
    if version == "0.6.1":
        activation, param = {name: [_old_encoding(*grid)] for name, grid in grids.items()}, {}
    document = {"version": version, "activation_encodings": activation, "param_encodings": param}
    return Encodings(document, missing, guessed)


def _grid(low: float, high: float) -> tuple[float, int]:
    """Return scale and offset of a grid with zero that covers `low` to `high`.

    Its numbers are (q + offset) * scale with q in 0..255.
    """
    low, high = min(low, 0.0), max(high, 0.0)
    scale = (high - low) / (2**BITS - 1) or 1.0
    return scale, round(low / scale)


def _encoding(name: str, scale: float, offset: int) -> dict[str, object]:
    """Return an entry of version 1.0.0."""
    return {
        "name": name,
        "bw": BITS,
        "dtype": "INT",
        "enc_type": "PER_TENSOR",
        "is_sym": False,
        "scale": [scale],
        "offset": [offset],
    }


def _old_encoding(scale: float, offset: int) -> dict[str, object]:
    """Return an entry of version 0.6.1; `min` and `max` are the ends of the grid."""
    return {
        "bitwidth": BITS,
        "dtype": "int",
        "is_symmetric": "False",
        "scale": scale,
        "offset": offset,
        "min": scale * offset,
        "max": scale * (offset + 2**BITS - 1),
    }


def _is_inexact(node: NodeProto) -> bool:
    """Return whether a convolution may map a constant per channel to something else.

    Zero padding does so at the border. A ConvTranspose does so anywhere if its kernel or stride is
    not 1.
    """
    attributes = {attribute.name: attribute for attribute in node.attribute}
    pads = any(attributes["pads"].ints) if "pads" in attributes else False
    auto_pad = attributes["auto_pad"].s if "auto_pad" in attributes else b""
    if node.op_type == "Conv":
        return pads or auto_pad not in (b"", b"NOTSET", b"VALID")
    if node.op_type == "ConvTranspose":
        if "kernel_shape" not in attributes:
            return True
        known = [attributes[key] for key in ("kernel_shape", "strides") if key in attributes]
        return any(extent != 1 for attribute in known for extent in attribute.ints)
    return False
