"""ConvertToFloat16: float32 operators, and the constants they read, become float16."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ...ir.graph import Graph, Node, Value, is_constant
from ...ir.module import Module
from ...ir.ops import has_trait
from ...ir.ops.row import Trait
from ...ir.rewriter import Rewriter
from ...ir.tensor import ArrayTensor, Tensor, float64, round_to
from ...ir.types import F32, DType, TensorType, shape_of
from ...support.errors import ModelError, UsageError
from ..infra import Pass, PassContext
from .conversion import ChangedConstant, StayedFloat32, conversion
from .convertible_models import check_model
from .half_constants import RoundedConstant
from .half_forms import CAST_CODES, HalfForm, is_single, no_form
from .inner_values import check_accumulator
from .narrow_types import NAMES, check_opset, narrow_type_of, opset_of
from .selection import Selection, is_float32_operator


@dataclass(frozen=True)
class ConvertToFloat16(Pass):
    """Compute in float16, and leave in float32 what float16 cannot hold, each with a reason.

    1. An operator becomes float16 if ONNX's schema of its opset allows it. Calls of functions,
       operators of other domains and operators with bodies stay float32, as do the results of
       `variable`s and inputs with a default value.
    2. Constants are rounded once, from the exact value. An operator stays float32 if a number of
       its constant exceeds float16, or if all of them would be 0. A mask, which nothing but Softmax
       reads in the end, becomes -32768; a bound of Clip, Max or Min becomes 65504.
       A bias takes back the mean error of the rounded weights of its layer, where the means of the
       data are known.
    3. Angles, numbers that integers are computed of, and operands that ONNX has in float32 only are
       computed in float32.
    4. Values of a range above 65504 / 2^`margin`, as far as ranges are known, are computed and read
       in float32. With `accumulate=float16` so are operators whose sums may exceed it.
    5. Between such operators others stay float32 if that is cheaper than casts: a minimum cut. A
       value is cast once, where it is made.
    6. Inputs and outputs stay float32; `io=float16` makes them float16.
    7. `dtype=bfloat16` converts to bfloat16, as `io=bfloat16` does. A model of which the opset has
       no layer in bfloat16 is refused.

    Models that have float16 or quantized operators already, and training graphs, are refused.
    """

    name: ClassVar[str] = "ConvertToFloat16"
    after: ClassVar[tuple[str, ...]] = ("FoldScaleAxis", "FoldConstant", "ScaleByPowersOfTwo")
    io: str = "float32"
    margin: float = 0.0
    accumulate: str = "float32"
    dtype: str = "float16"

    def __post_init__(self) -> None:
        """Check the options. Raises UsageError for a value that an option does not take."""
        narrow_type_of(self.name, self.dtype)
        if self.io not in ("float32", self.dtype):
            raise UsageError(f"{self.name}: option io has to be one of float32, {self.dtype}")
        check_accumulator(self.name, self.accumulate)

    @property
    def preserves(self) -> bool:
        return False

    def run(self, module: Module, ctx: PassContext) -> bool:
        dtype = narrow_type_of(self.name, self.dtype)
        check_model(module)
        check_opset(module, dtype)
        in_half = self.accumulate == "float16"
        selection = Selection(module, self.margin, sums_in_half=in_half, dtype=dtype)
        check_layers(selection)
        converter = _Converter(module, selection, keeps_io=self.io == "float32")
        converter.run()
        return converter.rewriter.changed


def check_layers(selection: Selection) -> None:
    """Raise ModelError if the opset of a model has none of its layers in the narrow type."""
    module = selection.module
    place = f"opset {opset_of(module)}"
    layers = [node for node in module.graph.operators() if has_trait(node, Trait.LINEAR)]
    lacking = no_form(selection.dtype, place)
    if layers and all(selection.reasons.get(node) == lacking for node in layers):
        raise ModelError(
            f"{layers[0].description} has no {NAMES[selection.dtype]} form in {place}: convert the"
            " model to opset 22 or newer, or to float16"
        )


class _Converter:
    """The state of one run: values that are float16, and the casts and constants made so far."""

    def __init__(self, module: Module, selection: Selection, *, keeps_io: bool) -> None:
        self.module = module
        self.graph: Graph = module.graph
        self.selection, self.dtype = selection, selection.dtype
        self.keeps_io = keeps_io
        self.rewriter = Rewriter(module)
        self.half: set[Value] = set()
        self.narrowed: dict[Value, Value] = {}
        """The float16 forms of values that are float32."""
        self.rounded: dict[tuple[Value, bool, Node | None], Value] = {}
        """The float16 forms of constants: by value, whether it is a note, and its only reader."""
        self.converted: set[Node] = set()
        self.records = conversion(module)

    def run(self) -> None:
        """Convert the graph, and record what was done."""
        counter = self.module.debug_counter
        nodes = [node for node in self.graph.nodes() if node in self.selection.forms]
        if not self.keeps_io and not counter.exhausted:
            self.convert_inputs()
        for node in nodes:
            if counter.exhausted:
                break
            with self.rewriter.step("to float16", counter.label(node) or node.op):
                self.convert(node, self.selection.forms[node])
            self.records.converted += node.op != "nn.batch_norm_to_affine"
        with self.rewriter.step("to float16", "the results", is_counted=False):
            self.widen()
        self.rename_constants()
        for node in self.graph.operators():
            if node in self.selection.reasons and is_float32_operator(node):
                reason = self.selection.reasons[node]
                op_type = node.description.partition(" ")[0]
                name = node.name or node.output.source_name
                self.records.stayed.append(StayedFloat32(op_type, name, reason))

    def convert_inputs(self) -> None:
        """Let inputs without a default be float16, and results that operators compute."""
        for value in self.graph.inputs:
            if is_single(value) and value not in self.graph.defaults:
                self.make_half(value)

    def convert(self, node: Node, form: HalfForm) -> None:
        """Let a node read and make float16."""
        inputs = list(node.inputs)
        for index in sorted(form.operands):
            inputs[index] = self.in_half(node.operand(index), node)
        if inputs != list(node.inputs):
            self.rewriter.set_inputs(node, inputs)
        for index in form.results:
            self.make_half(node.outputs[index])
        if node.op == "cast" and form.results:
            self.rewriter.set_attr(node, "to", CAST_CODES[str(self.dtype)])
        if node.op == "full":
            value = node.attrs.get("value")
            filled = float64(value) if isinstance(value, Tensor) else np.zeros(1)
            node.attrs = {
                **node.attrs,
                "value": ArrayTensor(round_to(filled, self.dtype), self.dtype),
            }
        self.converted.add(node)
        self.rewriter.changed = True

    def make_half(self, value: Value) -> None:
        """Change the type of a value, which was declared as another."""
        value.type = TensorType(self.dtype, shape_of(value.type))
        self.half.add(value)
        self.module.notes.misdeclared.setdefault(self.graph, set()).add(value.name)

    def in_half(self, value: Value, reader: Node) -> Value:
        """Return an operand in float16: itself, another constant, or the result of a Cast."""
        if value in self.half:
            return value
        if is_constant(value):
            return self.constant(value, self.selection.constants[value, reader], reader)
        found = self.narrowed.get(value)
        if found is None:
            found = self.narrowed[value] = self.cast(value, self.dtype)
        return found

    def constant(self, value: Value, rounded: RoundedConstant, reader: Node) -> Value:
        """Return a constant in float16, which is made once for all operators that read it."""
        key = value, bool(rounded.note), reader if rounded.is_corrected else None
        found = self.rounded.get(key)
        if found is None:
            assert value.node is not None
            with self.rewriter.rewriting(value.node):
                found = self.rewriter.constant(
                    ArrayTensor(rounded.array, self.dtype), before=value.node, hint=value.name
                )
            self.rounded[key] = found
            if rounded.vanished or rounded.subnormal or rounded.note:
                self.records.constants.append(
                    ChangedConstant(
                        value.source_name or reader.description,
                        rounded.array.size,
                        rounded.vanished,
                        rounded.subnormal,
                        rounded.note,
                    )
                )
        return found

    def first(self) -> Node:
        """Return the first node of the graph, before which the casts of inputs stand."""
        return next(iter(self.graph), self.graph.return_)

    def cast(self, value: Value, dtype: DType) -> Value:
        """Insert a Cast of a value, where it is made."""
        maker = value.node
        before = self.first() if maker is None else maker.next
        assert before is not None
        with self.rewriter.rewriting(maker):
            made = self.rewriter.make(
                "cast",
                [value],
                {"to": CAST_CODES[str(dtype)]},
                before=before,
                hint=f"{value.name}_{dtype}",
                type_=TensorType(dtype, shape_of(value.type)),
            )
        self.records.casts += 1
        return made.output

    def widen(self) -> None:
        """Cast float16 values back for the operators, bodies and results that are float32."""
        values = sorted(self.half, key=lambda value: value.name)
        for value in values:
            places = [
                (user, index)
                for user in value.users
                for index, each in enumerate(user.inputs)
                if each is value and not self.reads_half(user, index)
            ]
            if not places:
                continue
            wide = self.cast(value, F32)
            for user, index in places:
                inputs = list(user.inputs)
                inputs[index] = wide
                user.set_inputs(inputs)
            if self.graph.return_ in wide.users and value.node is not None:
                wide.take_name(value)
                value.rename(self.module.fresh_name(f"{wide.name}_{self.dtype}"))

    def reads_half(self, user: Node, index: int) -> bool:
        """Return whether an input of a reader takes float16 now."""
        if user is self.graph.return_:
            return not self.keeps_io
        return user in self.converted and index in self.selection.forms[user].operands

    def rename_constants(self) -> None:
        """Give float16 constants the names of those that are gone."""
        for (old, *_), new in self.rounded.items():
            if not old.users and old.node is not None and old.node.graph is None:
                new.take_name(old)
