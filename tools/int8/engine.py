"""onnxruntime's `quantize_static`, with known ranges."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from ...backends.quantizers.onnxruntime import cache_of, override, quantizable_types
from ...backends.quantizers.ranges import Activations
from ...frontends.onnx.opsets import opset_versions
from ...ir.types import F16, F32
from ...result import copied
from ...support.errors import EmitError, UsageError, VerifyError
from ...support.extras import needing
from ..verify.runner import Runner, first_line
from .coverage import LAYERS
from .free_names import underscored

VERSION = (1, 27)
"""The oldest onnxruntime whose quantizer takes ranges without data."""
HINT = "pre-processing"
"""The subject of a warning of onnxruntime that does not hold: irc has prepared the model."""
HIDDEN = ("to be an initializer", "is not constant", "is out-of-range")
"""Its messages on a bias that irc has hidden, and on a vector of one scale among several."""
ELEMENTS = {F16: TensorProto.FLOAT16, F32: TensorProto.FLOAT}
"""The types that the quantizer takes."""
SINCE = 10
"""The first opset with QuantizeLinear. The quantizer lets onnx convert older ones to 11."""
AXIS_SINCE = 13
"""The first opset whose DequantizeLinear has a scale for each channel."""
WIDE_SINCE = 21
"""The first opset whose QuantizeLinear makes integers of 16 bits."""
HALF_SINCE = 19
"""The first opset whose QuantizeLinear takes float16."""


def check_engine() -> None:
    """Raise UsageError unless onnxruntime has a quantizer that takes ranges."""
    advice = f"install onnxruntime {VERSION[0]}.{VERSION[1]} or newer"
    with needing("quantize"):
        import onnxruntime
    version = onnxruntime.__version__
    if tuple(int(part) for part in version.split(".")[:2]) < VERSION:
        raise UsageError(f"irc quantize needs a newer onnxruntime than {version}: {advice}")
    try:
        import_module("onnxruntime.quantization")
    except ImportError as error:
        raise UsageError(
            f"irc quantize needs onnxruntime.quantization ({error}): {advice}"
        ) from None


class Engine:
    """The quantizer of one model, whose nodes have names, with the known ranges of activations."""

    def __init__(
        self,
        model: ModelProto,
        known: Activations,
        *,
        per_channel: bool,
        reduce_range: bool,
        wide: bool = False,
        wide_tensors: Collection[str] = (),
    ) -> None:
        self.wide, self.wide_tensors = wide, wide_tensors
        """Whether activations have 16 bits, and which have them in any case."""
        self.model = model
        self.opset = opset_versions(model.opset_import)[""]
        self.known = known
        self.per_channel, self.reduce_range = per_channel, reduce_range
        # Of the result of a float16 Softmax the quantizer would take a scale in float32.
        self.overrides: dict[str, list[dict[str, Any]]] = {
            node.output[0]: [override(0, 1, known.scale_dtype(node.output[0]))]
            for node in model.graph.node
            if node.op_type == "Softmax" and known.dtypes.get(node.output[0]) is F16
        }
        # The quantizer takes the second axis; the channels of these weights are along another one.
        if per_channel:
            self.overrides |= {name: [{}] for name in _stacked_weights(model)}
        if reduce_range:
            self.overrides |= {name: [{"reduce_range": False}] for name in _other_constants(model)}

    def run(self, exclude: Collection[str]) -> tuple[ModelProto, list[str]]:
        """Return the quantized model and warnings; the nodes in `exclude` stay float.

        Raises EmitError if the quantizer fails, or onnxruntime cannot load its model. The
        message names the operator by which this happens.
        """
        try:
            found, warnings = self._once(exclude)
        except Exception as error:  # the quantizer raises errors of every kind
            is_ours = isinstance(error, VerifyError)
            text = str(error) if is_ours else f"{type(error).__name__}: {first_line(error)}"
            node = self._culprit(exclude)
            if node is None and self.opset < SINCE:
                raise EmitError(
                    f"onnx cannot convert opset {self.opset}, without QuantizeLinear, to 11: {text}"
                ) from None
            if node is None:
                head = "" if is_ours else "onnxruntime's quantizer fails: "
                raise EmitError(f"{head}{text}") from None
            raise EmitError(
                f"onnxruntime's quantizer fails on {node.op_type} {node.name!r} (--exclude, in"
                f" Python exclude=, leaves it float): {text}"
            ) from None
        needs = self._needs_contrib
        if needs is not None:
            runs = "the model has operators of com.microsoft, which onnxruntime runs"
            warnings.append(f"{needs}: {runs}")
        return found, warnings

    @property
    def _needs_contrib(self) -> str | None:
        """The reason why the model needs com.microsoft's QuantizeLinear, None if it does not."""
        if self.opset < HALF_SINCE and F16 in self.known.dtypes.values():
            return f"opset {self.opset} has no QuantizeLinear of float16"
        if self.per_channel and self.opset < AXIS_SINCE:
            return f"opset {self.opset} has no DequantizeLinear with a scale for each channel"
        return None

    def _once(self, exclude: Collection[str]) -> tuple[ModelProto, list[str]]:
        from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

        with (
            tempfile.TemporaryDirectory(prefix="irc-") as folder,
            _collecting_warnings() as warnings,
        ):
            target, cache = Path(folder, "int8.onnx"), Path(folder, "ranges.json")
            cache_of(self.known).save(cache)
            model = copied(self.model)  # the quantizer moves its tensors away
            overrides = dict(self.overrides)
            for name in self.wide_tensors:
                (known,) = overrides.get(name, [{}])
                overrides[name] = [{**known, "quant_type": QuantType.QUInt16}]
            _scale_weights(model, exclude)
            biases = _adapt_biases(model, per_channel=self.per_channel)
            self._declare_types(model)
            quantize_static(
                model,
                target,
                quant_format=QuantFormat.QDQ,
                per_channel=self.per_channel,
                reduce_range=self.reduce_range,
                activation_type=QuantType.QUInt16 if self.wide else QuantType.QUInt8,
                weight_type=QuantType.QInt8,
                nodes_to_exclude=list(exclude),
                calibration_cache_path=cache,
                extra_options={
                    "TensorQuantOverrides": overrides,
                    "UseQDQContribOps": self._needs_contrib is not None,
                },
            )
            found = onnx.load(target)
            constants_to_initializers(found, biases)
            Runner(found, Path(folder)).check_loads()
            return found, warnings

    def _declare_types(self, model: ModelProto) -> None:
        """Declare the types of the values in place: onnx infers none behind unknown operators."""
        graph = model.graph
        declared = {info.name for info in (*graph.input, *graph.output, *graph.value_info)}
        for name, shape in self.known.shapes.items():
            dtype = self.known.dtypes.get(name)
            if shape is None or dtype is None or name in declared:
                continue
            if dtype in ELEMENTS:
                extents = [extent if isinstance(extent, int) else None for extent in shape]
                info = helper.make_tensor_value_info(name, ELEMENTS[dtype], extents)
                graph.value_info.append(info)

    def _culprit(self, exclude: Collection[str]) -> NodeProto | None:
        """Return the node from which on the quantizer fails, as nodes are quantized in turn.

        None if it fails without any.
        """
        types = quantizable_types()
        graph = self.model.graph
        nodes = [n for n in graph.node if n.op_type in types and n.name not in exclude]
        works, fails = -1, len(nodes)
        while fails - works > 1:
            middle = (works + fails) // 2
            try:
                self._once([*exclude, *(node.name for node in nodes[middle:])])
                works = middle
            except Exception:  # of every kind, as above
                fails = middle
        return nodes[fails - 1] if fails else None


def _stacked_weights(model: ModelProto) -> Iterator[str]:
    """Yield the weights of MatMuls that are several matrices."""
    ranks = {tensor.name: len(tensor.dims) for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "MatMul":
            yield from (name for name in node.input if ranks.get(name, 0) > 2)


def _other_constants(model: ModelProto) -> Iterator[str]:
    """Yield the floating-point initializers that operators read, but no layers: all bits are good.

    Their products are not added up in few bits.
    """
    layers = {name for n in model.graph.node if n.op_type in LAYERS for name in n.input}
    read = {name for node in model.graph.node for name in node.input} - layers
    for tensor in model.graph.initializer:
        if tensor.name in read and tensor.data_type in ELEMENTS.values():
            yield tensor.name


def _scale_weights(model: ModelProto, exclude: Collection[str]) -> None:
    """Put the factor alpha of each Gemm into its constant weight, in place.

    With such a factor onnxruntime computes the Gemm in float, or (1.27) a wrong result in integers.
    A weight of which a number would not be a normal one any more stays as it is.
    """
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    taken = {*tensors, *(name for node in model.graph.node for name in node.output)}
    for node in model.graph.node:
        if node.op_type != "Gemm" or node.name in exclude or node.input[1] not in tensors:
            continue
        alpha = next((each for each in node.attribute if each.name == "alpha"), None)
        if alpha is None or alpha.f == 1:
            continue
        name = underscored(node.input[1], taken)
        scaled = _times(tensors[node.input[1]], alpha.f, name)
        sizes = np.abs(numpy_helper.to_array(scaled))
        limits = np.finfo(sizes.dtype)
        if not np.all((limits.smallest_normal <= sizes) & (sizes <= limits.max) | (sizes == 0)):
            continue
        taken.add(name)
        node.input[1] = name
        node.attribute.remove(alpha)
        model.graph.initializer.append(scaled)


def _times(tensor: TensorProto, factor: float, name: str) -> TensorProto:
    """Return a tensor of another name, times a number, rounded once."""
    array = numpy_helper.to_array(tensor)
    with np.errstate(over="ignore"):
        return numpy_helper.from_array((array * np.float64(factor)).astype(array.dtype), name)


def _adapt_biases(model: ModelProto, *, per_channel: bool) -> set[str]:
    """Prepare in place the biases that the quantizer gets wrong; return the ones left float.

    It forgets the factor beta of a Gemm. It takes as many scales for a bias as the weight has along
    the axis of its channels, and fails if a ConvTranspose groups these, or the bias has another
    shape: such a bias becomes the result of a Constant, of which the quantizer keeps off.
    """
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    taken = {*tensors, *(name for node in model.graph.node for name in node.output)}
    hidden: set[str] = set()
    for node in list(model.graph.node):
        # The quantizer takes a bias with the layer only if it is a constant.
        if node.op_type not in LAYERS or len(node.input) < 3 or node.input[2] not in tensors:
            continue
        attributes = {each.name: each for each in node.attribute}
        bias = tensors[node.input[2]]
        weight = tensors.get(node.input[1])
        beta = attributes.get("beta")
        is_fit = True
        if per_channel and weight is not None:
            is_fit = list(bias.dims) == [weight.dims[_channel_axis(node)]]
        factor = 1.0 if beta is None else beta.f
        if is_fit and factor == 1:
            continue
        name = underscored(node.input[2], taken)
        taken.add(name)
        node.input[2] = name
        if beta is not None:
            node.attribute.remove(beta)
        tensor = _times(bias, factor, name)
        if is_fit:
            model.graph.initializer.append(tensor)
        else:
            hidden.add(name)
            model.graph.node.insert(0, helper.make_node("Constant", [], [name], value=tensor))
    return hidden


def _channel_axis(node: NodeProto) -> int:
    """Return the axis of the weight of a layer along which its channels lie."""
    if node.op_type == "Gemm":
        is_transposed = any(each.name == "transB" and each.i for each in node.attribute)
        return 0 if is_transposed else 1
    return 1 if node.op_type == "ConvTranspose" else 0


def constants_to_initializers(model: ModelProto, names: Collection[str] | None = None) -> None:
    """Make initializers of Constants of the main graph, of `names` or all, in place.

    The quantizer takes the result of a Constant for an activation.
    """
    results = {info.name for info in model.graph.output}
    for i in reversed(range(len(model.graph.node))):
        node = model.graph.node[i]
        if node.op_type != "Constant":
            continue
        name = node.output[0]
        if names is not None and name not in names:
            continue
        if name in results:  # which an initializer cannot be
            continue
        (attribute,) = node.attribute
        tensor = TensorProto()
        if attribute.name == "value":
            tensor.CopyFrom(attribute.t)
        elif attribute.name in ("value_float", "value_floats"):
            tensor.CopyFrom(
                numpy_helper.from_array(np.array(helper.get_attribute_value(attribute), np.float32))
            )
        else:
            continue
        tensor.name = node.output[0]
        model.graph.initializer.append(tensor)
        del model.graph.node[i]


@contextmanager
def _collecting_warnings() -> Iterator[list[str]]:
    """Collect the warnings that the quantizer logs, and keep them off standard error."""
    found: list[str] = []

    class Collector(logging.Handler):
        """A handler that keeps each message once."""

        def emit(self, record: logging.LogRecord) -> None:
            """Keep a message."""
            text = f"onnxruntime's quantizer: {record.getMessage()}"
            if text not in found and not any(each in text for each in (HINT, *HIDDEN)):
                found.append(text)

    root = logging.getLogger()
    handlers, root.handlers = root.handlers, [Collector(logging.WARNING)]
    try:
        yield found
    finally:
        root.handlers = handlers
