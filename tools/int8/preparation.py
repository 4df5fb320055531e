"""The float model that the quantizer gets: folded, equalized and corrected, with names."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from onnx import ModelProto

from ...backends.quantizers.ranges import Activation, Activations, Range, activations
from ...compiler import compile as compile_model
from ...frontends.onnx import from_model
from ...frontends.onnx.codec.domains import with_canonical_domains
from ...frontends.onnx.codec.external_data import embed_external_data
from ...frontends.onnx.raising import raise_opset
from ...passes.data_free.bias_correction import BiasCorrection
from ...passes.infra import PassContext
from ...result import Result, copied
from ...support.errors import EmitError, UsageError
from ...support.limits import Limits
from .coverage import LAYERS
from .engine import constants_to_initializers
from .free_names import numbered, underscored
from .integer_limits import remove_unread
from .taps import Taps, apply_taps, find_taps

PASSES = (
    "default,CrossLayerEqualization{{objective=noise,reduce_range={}}},"
    "HighBiasAbsorption{{sigmas=6}},FoldConstant{{widen=true}}"
)
"""Passes that prepare a model, with whether weights have 7 bits.

Absorption keeps 6 deviations, as the ranges do: with 3, as published, results change more than they
gain.
"""
CORRECTION = "BiasCorrection{{{}}},FoldConstant{{widen=true}}"
"""Passes after these for the layers whose weights are rounded, with the options of the rounding."""
WIDER = 8.0
"""Factor of the deviations that a range of 16 bits covers.

Rounding is then 30 dB finer than with 8 bits, and tails of 48 deviations are not cut off.
"""
IR_OF_OPSET_21 = 10
"""The IR version that came with opset 21."""
MAX_BYTES = 2**31 - 1
"""Bytes of a protobuf message."""


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """A float model whose nodes have names, and the facts of its activations."""

    model: ModelProto
    known: Activations


class Preparation:
    """Prepares a source for the quantizer. `passes` replace the passes before it."""

    def __init__(
        self,
        source: ModelProto,
        base_dir: Path,
        *,
        passes: str | None,
        per_channel: bool,
        reduce_range: bool,
        keep: Iterable[str],
        limits: Limits,
        ctx: PassContext,
        opset: int = 0,
    ) -> None:
        self.opset = opset
        """The least opset of the models."""
        self.source, self.base_dir = source, base_dir
        self.passes = passes
        self.per_channel = per_channel
        self.top = BiasCorrection(reduce_range=reduce_range).top
        self._taps: dict[str, Taps] | None = None
        rounding = f"per_channel={per_channel},reduce_range={reduce_range}"
        self.correction = CORRECTION.format(rounding.lower())
        self.ctx = ctx
        self.input_ranges: Mapping[str, Range] | Range = {}
        self.ranges: Mapping[str, Range] = {}
        self.sigmas = 0.0
        self.module = from_model(source, base_dir, limits)
        text = PASSES.format(str(reduce_range).lower()) if passes is None else passes
        self.result = compile_model(
            self.module, text, freeze_initializers=True, keep=keep, context=ctx
        )
        self._wide: Mapping[str, Activation] | None = None
        self.last: Result | None = None
        """The result with corrections of all biases: the module is changed in place."""
        self.first = self.named(self.result)
        """The model before corrections of biases."""

    def with_ranges(
        self,
        input_ranges: Mapping[str, Range] | Range,
        ranges: Mapping[str, Range],
        sigmas: float,
    ) -> Prepared:
        """Return the model before bias corrections, with ranges that follow from given ones."""
        self.input_ranges, self.ranges, self.sigmas = input_ranges, ranges, sigmas
        self._check_names(ranges)
        return Prepared(self.first, self._known(self.result))

    def corrected(self, left: Collection[str]) -> Prepared:
        """Return the model with corrected biases, but for the biases of the nodes in `left`.

        A layer whose weight stays float has no error that a bias could correct. Other spatial
        kernels are rounded such that errors cancel over neighbours.
        """
        if self.passes is not None:
            return Prepared(self.first, self._known(self.result))
        if self.last is None:
            self.last = compile_model(self.module, self.correction, context=self.ctx)
        model = self.named(self.last)
        _take_back(model, self.first, left)
        if self._taps is None:
            self._taps = find_taps(self.module, per_channel=self.per_channel, top=self.top)
        apply_taps(model, self._taps, left)
        return Prepared(model, self._known(self.last))

    def widened(self, known: Activations, names: Collection[str]) -> Activations:
        """Return activations of which some have ranges of WIDER times as many deviations."""
        if self._wide is None:
            self._wide = self._known(self.last or self.result, WIDER).known
        wide = {name: self._wide[name] for name in names if name in self._wide}
        return replace(known, known={**known.known, **wide})

    def named(self, result: Result) -> ModelProto:
        """Return a copy of a folded model whose main graph's nodes have names.

        By default they are those of their results. Constants are initializers, which need no input
        since IR version 4, and ONNX's own domain is imported once, as the engine asks. Raises
        EmitError if the model is too large, or an operator means something else in the least
        opset.
        """
        model = copied(with_canonical_domains(self._folded(result)))
        model.ir_version = max(model.ir_version, 4)
        self._raise(model)
        constants_to_initializers(model)
        taken = {node.name for node in model.graph.node}
        seen: set[str] = set()
        for node in model.graph.node:
            if not node.name or node.name in seen:
                node.name = numbered(next(filter(None, node.output), node.op_type), taken)
                taken.add(node.name)
            seen.add(node.name)
        if model.ByteSize() > MAX_BYTES:
            raise EmitError(
                "the model is too large to be quantized: onnxruntime's"
                " quantizer takes less than 2 GiB"
            )
        return model

    def _raise(self, model: ModelProto) -> None:
        """Let a model import the least opset, in place."""
        if not self.opset:
            return
        model.ir_version = max(model.ir_version, IR_OF_OPSET_21)
        (entry,) = (each for each in model.opset_import if not each.domain)
        if entry.version >= self.opset:
            return
        obstacle = raise_opset(model, self.opset)
        if obstacle is not None:
            raise EmitError(f"integers of 16 bits need opset {self.opset}: {obstacle}")

    def _folded(self, result: Result) -> ModelProto:
        folded = copied(result.model)
        embed_external_data(folded, self.base_dir)
        return folded

    def _known(self, result: Result, factor: float = 1.0) -> Activations:
        return activations(
            self._folded(result),
            result.fold_map,
            input_ranges=self.input_ranges,
            ranges=self.ranges,
            sigmas=self.sigmas * factor,
        )

    def _check_names(self, ranges: Mapping[str, Range]) -> None:
        """Raise UsageError if a value of the source has a range, but is not in the folded model."""
        before, after = (
            {name for node in model.graph.node for name in node.output}
            for model in (self.source, self.result.model)
        )
        gone = next((name for name in ranges if name in before - after), None)
        if gone is not None:
            raise UsageError(
                f"the passes replaced {gone!r} by a value of another range: name a value of the"
                " model that --float writes, or equalize nothing (--passes default)"
            )


def _take_back(model: ModelProto, before: ModelProto, names: Collection[str]) -> None:
    """Give layers of these names, and the Adds that read them, the constants of before, in place.

    O(nodes).
    """
    tensors = {tensor.name: tensor for tensor in before.graph.initializer}
    own = {tensor.name: tensor for tensor in model.graph.initializer}
    others = {node.name: node for node in before.graph.node}
    layers = [n for n in model.graph.node if n.name in names and n.op_type in LAYERS]
    results = {node.output[0] for node in layers}
    adds = (n for n in model.graph.node if n.op_type == "Add" and not results.isdisjoint(n.input))
    for node in (*layers, *adds):
        other = others.get(node.name)
        if other is None or other.op_type != node.op_type:
            continue
        if len(node.input) > len(other.input):
            del node.input[len(other.input) :]
        for index, (name, old) in enumerate(zip(node.input, other.input, strict=False)):
            if name not in own or old not in tensors:
                continue
            if own[name].SerializeToString() == tensors[old].SerializeToString():
                continue
            tensor = model.graph.initializer.add()
            tensor.CopyFrom(tensors[old])
            tensor.name = node.input[index] = underscored(old, own)
            own[tensor.name] = tensor
    remove_unread(model, set(own))
