"""Which operators of a module can be float16, and why the others stay float32."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping

from ...ir.graph import Node, Value, is_constant, producer_of
from ...ir.module import Module
from ...ir.ops import is_legal
from ...ir.ops.normalization import OWN_TYPES, batch_norm_of
from ...ir.tensor import all_finite, largest_finite, round_to
from ...ir.types import F16, F32, DType, dtype_of
from .conversion import conversion
from .half_constants import RoundedConstant, round_constant
from .half_forms import HalfForm, half_form, is_single
from .inner_values import inner_values
from .known_ranges import UNKNOWN_RANGE, KnownRange, settle_ranges
from .narrow_types import NAMES
from .precision import exact_nodes
from .regions import joining
from .weight_errors import corrected_biases

AFFINE = "nn.batch_norm_to_affine"
NO_CONSTANT = "a constant that cannot be read"
CHEAPER = "cheaper than casts"
"""The reason of an operator that could be float16, between others that cannot."""


class Selection:
    """The forms of the operators that become float16, and the reasons of those that do not.

    `constants` are the float16 forms of constant operands, by value and reader.
    """

    def __init__(
        self, module: Module, margin: float, *, sums_in_half: bool, dtype: DType = F16
    ) -> None:
        self.module, self.dtype = module, dtype
        self.sums_in_half = sums_in_half
        self.most = largest_finite(dtype) / 2**margin
        self.constants: dict[tuple[Value, Node], RoundedConstant] = {}
        found = {node: half_form(node, module, dtype) for node in module.graph.nodes()}
        self.reasons: dict[Node, str] = {
            node: form for node, form in found.items() if isinstance(form, str)
        }
        self.forms: dict[Node, HalfForm] = {
            node: form
            for node, form in found.items()
            if isinstance(form, HalfForm) and not form.is_empty
        }
        self._add_affines()
        forced = conversion(module).forced
        self._keep(conversion(module).keep)
        self._keep(exact_nodes(module, found), forced)
        self._keep(dict(self._beyond()), forced)
        self._keep(dict(self._beyond_inside()), forced)
        self._keep(dict(self._unreadable()))
        self._keep(dict.fromkeys(joining(module, self.forms, self.reasons), CHEAPER), forced)
        self._keep(dict(self._split_affines()))
        for bias, reader, exact in corrected_biases(module, self.constants):
            rounded = round_to(exact, dtype)
            if reader in self.forms and all_finite(rounded):
                self.constants[bias, reader] = RoundedConstant(rounded, is_corrected=True)

    def _keep(self, reasons: Mapping[Node, str], forced: Collection[Node] = ()) -> None:
        """Let operators stay float32, but for those that are forced."""
        for node, reason in reasons.items():
            if node not in forced and self.forms.pop(node, None) is not None:
                self.reasons[node] = reason

    def _add_affines(self) -> None:
        """Take the parameters of a BatchNormalization that stays one, as its opset has them."""
        for node in self.module.graph.operators_of((AFFINE,)):
            self.reasons.pop(node, None)
            constants = [i for i, value in enumerate(node.inputs) if is_constant(value)]
            if len(constants) == len(node.inputs) and not _may_differ(node):
                self.forms[node] = HalfForm(frozenset(constants))

    def _split_affines(self) -> Iterator[tuple[Node, str]]:
        """Yield the other parts of BatchNormalizations of which a part stays float32."""
        for node in self.module.graph.operators_of(("add",)):
            parts = batch_norm_of(node)
            if parts is None:
                continue
            affine = parts[2]
            users = {user for value in affine.outputs for user in value.users}
            group = users if _may_differ(affine) else {*users, affine}
            whys = [self.reasons[each] for each in group if each in self.reasons]
            if whys:
                yield from ((each, whys[0]) for each in group)

    def _beyond(self) -> Iterator[tuple[Node, str]]:
        """Yield the makers and readers of values that are too large for float16."""
        for value, known in settle_ranges(self.module).items():
            if not known.most > self.most or not is_single(value):
                continue
            ends = [*value.users] if value.node is None else [value.node, *value.users]
            yield from ((node, self.excess(known)) for node in ends)

    def _beyond_inside(self) -> Iterator[tuple[Node, str]]:
        """Yield the operators whose sums are too large for a device that adds up in float16."""
        ranges = settle_ranges(self.module)
        for node in list(self.forms) if self.sums_in_half else ():
            for inner in inner_values(node, self.module, ranges):
                if inner.most > self.most:
                    if not math.isfinite(inner.most):
                        yield node, f"{inner.what} of unknown length"
                        continue
                    excess = math.ceil(math.log2(inner.most / self.most))
                    yield node, f"{inner.what} exceeds {NAMES[self.dtype]} by 2^{excess}"

    def excess(self, known: KnownRange) -> str:
        """Return the reason of a value that is not known to be finite in float16."""
        if known.origin == UNKNOWN_RANGE:
            return "range is not known"
        if not math.isfinite(known.most):
            return "range is not finite"
        excess = math.ceil(math.log2(known.most / self.most))
        return f"range exceeds {NAMES[self.dtype]} by 2^{excess}"

    def _unreadable(self) -> Iterator[tuple[Node, str]]:
        """Yield the operators with a constant that is not to be rounded."""
        for node, form in self.forms.items():
            for index in sorted(form.operands):
                value = node.operand(index)
                if not is_constant(value):
                    continue
                rounded = round_constant(self.module, value, node, self.dtype)
                if rounded is None:
                    yield node, NO_CONSTANT
                elif rounded.refused:
                    yield node, rounded.refused
                    if rounded.vanished:
                        yield from ((each, rounded.refused) for each in _readers_of_small(node))
                else:
                    self.constants[value, node] = rounded


def _readers_of_small(node: Node) -> Iterator[Node]:
    """Yield the operators that read a number near 0, or its square root: float16 may have 0."""
    stack = [node]
    while stack:
        for user in (user for value in stack.pop().outputs for user in value.users):
            if user.op != "return":
                yield user
            if user.op == "sqrt":
                stack.append(user)


def _may_differ(affine: Node) -> bool:
    """Return whether the parameters of a BatchNormalization may stay float32."""
    return is_legal("nn.batch_norm", OWN_TYPES, affine)


def is_float32_operator(node: Node) -> bool:
    """Return whether a node counts as an operator that computes in float32."""
    if node.op in ("constant", "variable", "return", AFFINE):
        return False
    if producer_of(node.input(0), "constant") is not None and node.op == "cast":
        return False
    return any(dtype_of(value.type) is F32 for value in node.outputs)
