"""Weights and norms before a fold: from a state_dict in a file, or from the unfolded model."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...backends.onnx.emitter import emit_model
from ...frontends.onnx import from_model, read_model
from ...frontends.onnx.codec.external_data import embed_external_data
from ...frontends.onnx.codec.module_paths import module_path, parameter_path
from ...frontends.onnx.codec.protos import ModelProto, NodeProto
from ...frontends.onnx.codec.streaming import materialize
from ...frontends.onnx.codec.traversal import all_nodes
from ...frontends.torch import load_state
from ...ir.ops import DEFAULT_DOMAINS
from ...ir.record import Record
from ...ir.tensor import Array, numpy_dtype
from ...ir.types import DTYPES
from ...passes.registry import parse_pipeline
from ...support.errors import FoldMapError, clipped
from .folded_layers import FoldedLayer, constants_of, layers_of

DEFAULT_EPSILON = 1e-5
"""The epsilon of ONNX if the attribute is left out."""

_SAFETENSORS = {
    "F64": "f64", "F32": "f32", "F16": "f16", "BF16": "bf16",
    "I64": "i64", "I32": "i32", "I16": "i16", "I8": "i8", "U8": "u8", "BOOL": "bool",
}  # fmt: skip
_MAX_HEADER = 100 << 20
_WRAPPERS = ("module.", "_orig_mod.")
"""Prefixes of DataParallel and torch.compile."""


class Norm(Record):
    """A BatchNormalization of the checkpoint: gamma, beta, mean, var in `params`, and `names`.

    `epsilon` is None if the checkpoint does not say it, `result` is its result in the unfolded
    model.
    """

    path: str
    params: tuple[Array, Array, Array, Array]
    names: tuple[str, str, str, str]
    order: int
    epsilon: float | None = None
    result: str = ""

    @property
    def channels(self) -> int:
        """Number of channels."""
        return int(self.params[0].size)


class Kernel(Record):
    """A weight of the checkpoint with its bias.

    In the unfolded model it belongs to `layer`, and only `norm` stands behind it.
    """

    path: str
    name: str
    weight: Array
    bias: Array | None
    bias_name: str | None
    order: int
    layer: FoldedLayer | None = None
    norm: Norm | None = None

    def rows_for(self, layer: FoldedLayer) -> Array | None:
        """Return the weights of each output channel as `layer` has them, None if shapes differ."""
        if self.layer is not None:
            has_type = self.layer.node.op_type == layer.node.op_type
            alike = has_type and self.layer.rows.shape == layer.rows.shape
            return self.layer.rows if alike else None
        stored = self.stored_for(layer)
        return None if stored is None else layer.rows_of(stored)

    def stored_for(self, layer: FoldedLayer) -> Array | None:
        """Return the weight in the layout of the weight of `layer`, None if the shapes differ."""
        weight = self.weight.T if layer.is_transposed and self.layer is None else self.weight
        return np.ascontiguousarray(weight) if weight.shape == layer.weight.shape else None


class Checkpoint(Record):
    """The weights and BatchNormalizations of a file, and the unfolded model if the file is one."""

    kernels: list[Kernel]
    norms: list[Norm]
    source: ModelProto | None = None


def read_checkpoint(path: str | Path) -> Checkpoint:
    """Read a state_dict (.pt, .pth, .bin by weights_only; .safetensors; .npz) or an ONNX model.

    Raises FoldMapError if the file cannot be read or has no BatchNormalization, ModelError for a
    file of torch or ONNX.
    """
    suffix = Path(path).suffix.lower()
    if suffix == ".onnx":
        found = from_onnx(path)
    elif suffix in (".pt", ".pth", ".bin", ".ckpt"):
        found = from_state(_state_in(load_state(path), str(path)))
    elif suffix in (".npz", ".safetensors"):
        read = _read_npz if suffix == ".npz" else _read_safetensors
        try:
            found = from_state(read(Path(path)))
        except (OSError, ValueError, KeyError, TypeError, EOFError) as error:
            why = (error.strerror if isinstance(error, OSError) else None) or error
            raise FoldMapError(f"{path}: cannot be read as a checkpoint: {why}") from None
    else:
        raise FoldMapError(
            f"{path}: a checkpoint is .pt, .pth, .bin, .ckpt, .safetensors, .npz or .onnx"
        )
    if not found.norms:
        raise FoldMapError(f"{path}: {_why_none(found)}")
    return found


def _why_none(checkpoint: Checkpoint) -> str:
    """Return why a checkpoint has no norms: some may follow no layer, or be in a body."""
    nodes = () if checkpoint.source is None else all_nodes(checkpoint.source)
    present = [node for node in nodes if node.op_type == "BatchNormalization"]
    if not present:
        return "the checkpoint has no BatchNormalization"
    label = clipped(present[0].name or list(present[0].output))
    return (
        "no BatchNormalization is right behind a layer of constant weights in the"
        f" main graph ({label} is not)"
    )


def from_state(state: Mapping[str, Array]) -> Checkpoint:
    """Return the checkpoint in a state_dict."""
    state = {_unwrapped(key): array for key, array in state.items()}
    kernels: list[Kernel] = []
    norms: list[Norm] = []
    for order, (name, array) in enumerate(state.items()):
        path = parameter_path(name, "running_mean")
        if path is not None:
            norm = _norm(path, state, order)
            if norm is not None:
                norms.append(norm)
        path = parameter_path(name, "weight")
        # "V" is bfloat16. The weight of a norm or a bias has one axis.
        if path is not None and array.ndim >= 2 and array.dtype.kind in "fV":
            bias = state.get(_join(path, "bias"))
            bias_name = None if bias is None else _join(path, "bias")
            kernels.append(Kernel(path, name, array, bias, bias_name, order))
    return Checkpoint(kernels, norms)


def from_onnx(path: str | Path) -> Checkpoint:
    """Return the checkpoint in an unfolded model: layers with norms that alone read them."""
    model, folder = read_model(path)
    embed_external_data(model, folder)
    return from_unfolded(model)


def from_unfolded(source: ModelProto) -> Checkpoint:
    """Return the checkpoint in an unfolded model whose tensors are in its messages."""
    model = _simplified(source)
    constants = constants_of(model, Path())
    readers: dict[str, list[int]] = {}
    for i, node in enumerate(model.graph.node):
        for name in node.input:
            readers.setdefault(name, []).append(i)
    outputs = {info.name for info in model.graph.output}
    kernels: list[Kernel] = []
    norms: list[Norm] = []
    for layer in layers_of(model, constants):
        (name,) = layer.node.output[:1]
        found = readers.get(name, [])
        norm = None
        if len(found) == 1 and name not in outputs:
            norm = _norm_of_node(model.graph.node[found[0]], found[0], constants)
        if norm is not None:
            norms.append(norm)
        bias_name = layer.node.input[2] if layer.bias is not None else None
        parameters = (layer.node.input[1], layer.weight, layer.bias, bias_name)
        kernels.append(Kernel(_path_of(layer.node), *parameters, layer.index, layer, norm))
    return Checkpoint(kernels, norms, source)


def _simplified(model: ModelProto) -> ModelProto:
    """Return the model with constants that torch's exporter computes, such as zero biases."""
    module = from_model(model)
    parse_pipeline("SimplifyExpr{affines=keep},FoldConstant")(module)
    return materialize(emit_model(module)[0])


def _norm(path: str, state: Mapping[str, Array], order: int) -> Norm | None:
    mean, var = state[_join(path, "running_mean")], state.get(_join(path, "running_var"))
    gamma = state.get(_join(path, "weight"), np.ones_like(mean))
    beta = state.get(_join(path, "bias"), np.zeros_like(mean))
    # A norm has one number for each channel; of others no layer absorbs the scale.
    if var is None or mean.ndim != 1 or not mean.shape == var.shape == gamma.shape == beta.shape:
        return None
    names = [_join(path, each) for each in ("weight", "bias", "running_mean", "running_var")]
    return Norm(path, (gamma, beta, mean, var), (names[0], names[1], names[2], names[3]), order)


def _norm_of_node(node: NodeProto, index: int, constants: Mapping[str, Array]) -> Norm | None:
    if node.op_type != "BatchNormalization" or node.domain not in DEFAULT_DOMAINS:
        return None
    if len(node.input) < 5 or not all(name in constants for name in node.input[1:5]):
        return None
    gamma, beta, mean, var = (constants[name] for name in node.input[1:5])
    attributes = {attribute.name: attribute for attribute in node.attribute}
    if "training_mode" in attributes and attributes["training_mode"].i:
        return None
    if gamma.ndim != 1 or not gamma.shape == beta.shape == mean.shape == var.shape:
        return None
    epsilon = float(np.float32(DEFAULT_EPSILON))
    if "epsilon" in attributes:
        epsilon = attributes["epsilon"].f
    a, b, c, d = node.input[1:5]
    parameters = (gamma, beta, mean, var)
    return Norm(_path_of(node), parameters, (a, b, c, d), index, epsilon, node.output[0])


def _path_of(node: NodeProto) -> str:
    """Return the path of a node's module in metadata of torch's exporter, or else its name."""
    return module_path(node) or node.name or node.output[0]


def are_equal(arrays: Sequence[Array], others: Sequence[Array]) -> bool:
    """Return whether arrays are equal, one by one."""
    return len(arrays) == len(others) and all(map(np.array_equal, arrays, others))


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _unwrapped(key: str) -> str:
    for prefix in _WRAPPERS:
        key = key.removeprefix(prefix)
    return key


def _state_in(loaded: Any, file: str) -> dict[str, Array]:
    """Return the state_dict in a file: itself, or its one dictionary with a running_mean."""
    if not isinstance(loaded, dict):
        raise FoldMapError(f"{file}: this is not a state_dict")
    inner = {str(key): each for key, each in loaded.items() if isinstance(each, dict)}
    found = {key: each for key, each in inner.items() if _has_norms(each)}
    if _has_norms(loaded):
        found = {"": loaded}
    if not found:
        raise FoldMapError(f"{file}: the checkpoint has no BatchNormalization")
    if len(found) > 1:
        raise FoldMapError(
            f"{file}: several state_dicts, {', '.join(map(clipped, found))}: save one of them"
        )
    (state,) = found.values()
    return {str(key): array for key, array in state.items() if isinstance(array, np.ndarray)}


def _has_norms(state: Mapping[Any, Any]) -> bool:
    return any(str(key).endswith("running_mean") for key in state)


def _read_npz(path: Path) -> dict[str, Array]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except zipfile.BadZipFile:
        raise ValueError("it is not an npz file") from None


def _read_safetensors(path: Path) -> dict[str, Array]:
    """Read the tensors: 8 bytes of length, a JSON header with offsets, and the elements."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > min(_MAX_HEADER, len(data) - 8):
        raise ValueError("its header is truncated")
    header = json.loads(data[8 : 8 + length])
    found: dict[str, Array] = {}
    for name, entry in header.items():
        if name == "__metadata__" or entry["dtype"] not in _SAFETENSORS:
            continue
        begin, end = entry["data_offsets"]
        dtype = numpy_dtype(DTYPES[_SAFETENSORS[entry["dtype"]]])
        if not 0 <= begin <= end <= len(data) - 8 - length:
            raise ValueError(f"the tensor {clipped(name)} lies outside the file")
        elements = data[8 + length + begin : 8 + length + end]
        found[name] = np.frombuffer(elements, dtype).reshape(entry["shape"])
    return found
