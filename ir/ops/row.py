"""The form of a row of the operator table, and the types of the functions that stand in one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from functools import cached_property
from typing import Protocol

from msgspec import Struct, field

from ..attributes import Attribute, EmptyList
from ..graph import Node, Value
from ..provenance import Refusal
from ..record import Record
from ..tensor import Array
from ..types import Dim, Type
from .channel_map import ChannelAxis, ChannelMap
from .interval import Interval


class Constants(Protocol):
    """A source of constant elements, on which shapes may depend in type inference."""

    def array(self, value: Value | None) -> Array | None:
        """Return the elements of a constant value, None if it is not constant."""

    def extents(self, value: Value | None) -> tuple[Dim, ...] | None:
        """Return the elements of a vector of extents as far as they are known: numbers and symbols.

        None if not even their number is known.
        """


class NodeView(Struct, eq=False):
    """An ONNX node that is being imported, as a condition sees it."""

    opset: int
    attrs: Mapping[str, Attribute]
    inputs: tuple[Value | None, ...]
    outputs: tuple[str, ...]


Infer = Callable[[Node, Constants], tuple[Type, ...]]
"""Return the types of a node's outputs; unknown parts are left open."""

_COMPLETE: set[Infer] = set()
_BY_TYPES: set[Infer] = set()


def complete(infer: Infer) -> Infer:
    """Declare that onnx's shape inference knows no rank and no extent that `infer` leaves open.

    An extent is left open if it depends on elements that are not constant, or on an extent that is
    not a number.
    """
    _COMPLETE.add(infer)
    return infer


def complete_by_types(infer: Infer) -> Infer:
    """Declare the same of an `infer` that reads the types of operands and no elements."""
    _BY_TYPES.add(infer)
    return complete(infer)


Inputs = Sequence[Array | None]
Evaluate = Callable[[Node, Inputs], tuple[Array, ...]]
"""Return the elements of a node's outputs.

Raises NotEvaluable if ONNX leaves them to the runtime.
"""

Function = Callable[[Array], Array]
"""A real function of one variable, on every element of a float64 array."""

MakeFunction = Callable[[Node], Function]
"""Return the function that a node computes on each element, up to rounding."""

Bounds = Callable[[Node, Sequence[Interval], Constants], Sequence[Interval]]
"""Return bounds of a node's results, the first ones at least, for bounds of its operands.

An absent operand is unbounded.
"""

Terms = Callable[[Node], float]
"""Return how many products an element of the result sums, by shapes; infinity if unknown."""

Grouped = Callable[[Node, Array, int], Array]
"""View the weight of a layer, operand `index`, by what its elements connect.

It is [groups, channels of the result, channels of the data, taps].
"""

Condition = Callable[[NodeView], Refusal | None]
"""Return why an ONNX node is not the in-house operator, None if it is."""

Channels = Callable[[Node, ChannelAxis, Constants], ChannelMap]
"""Return the place of channels of the data or of a result on the other side of a node.

Raises Refused if that is unknown, or they are not channels there.
"""

Check = Callable[[Attribute], bool]
"""Return whether an attribute has a value of the right kind and range."""


class Trait(Enum):
    """A fact about an operator that passes ask for."""

    MADE_BY_PASSES = "no ONNX node becomes it, though it is written as one"
    DECIDES_RANK = "its result has the rank of its weight, whatever the model declares"
    ABSORBS = "a layer whose weights or biases take in affines"
    LINEAR = "a convolution, dense layer or matrix product"
    BIASED = "a linear layer that takes a bias as its third operand"
    HEAVY = "it computes more than it reads and writes"

    ELEMENTWISE = (
        "it maps each element of its first operand by itself, other operands are scalars or types"
    )
    BROADCASTS = "it combines corresponding elements of all operands, as numpy broadcasts them"
    ALIGNED = "its attribute `axis`, if given, aligns the second operand"
    REDUCES = "it reduces the axes of its attribute or operand `axes`"
    RECTIFIER = "it multiplies negative numbers by a slope, and keeps the others"
    SUM = "it adds or subtracts its operands"
    COMBINES = (
        "its operands are data of equal standing, such as the branches of a residual connection"
    )

    MOVES = "each element of its result is an element of its data"
    RESHAPES = "it keeps all elements in their order"
    AVERAGES = "each element of its result is a weighted mean of elements of its data"
    EXTREMUM = "each element of its result is the greatest or least of some elements of its data"

    SATURATES = "its usual results fill its bounds, unlike those of a Softmax"
    STEEP = "its result may be anywhere for likely data"
    DECIDES = (
        "its result is a choice or a share, which depends on the order of its data or on their"
        " differences"
    )

    SEVERAL_AXES = "the channels of its data may lie on several axes"

    EXACT_AT_RUNTIME = "a runtime computes it to the same bits as irc"
    EVALUATED_FOR_INTEGERS = "irc evaluates it for integers only"
    ATOMIC = (
        "neither folded nor merged with an equal one: a payload, or a BatchNormalization that may"
        " come back"
    )
    KEPT_UNREAD = "rewrites leave it to DeadCodeElimination if nobody reads it"
    GROWS = "its result is larger than its operands"

    __hash__ = object.__hash__  # Enum has one in Python, which is slow


NUMPY_BROADCAST = "numpy broadcast"
"""The form of an operator that broadcasts as numpy does, not by `axis` and `broadcast`."""


class Parameter(Record):
    """An operand that older opsets state in another form; `since` is the first opset that has it.

    Before, it is an attribute of the same name, or called `attribute`, and in opset 1 perhaps
    `first`; or it is the operand at another `place`.
    """

    since: int
    attribute: str = ""
    first: str = ""
    place: int | None = None


ScaleAndShift = Callable[[Array], tuple[Array, Array]]
"""Return scale and shift of an affine from a float64 constant. Raises Refused if it is not one."""


class AffineForm(Record):
    """An operator as an affine of one operand, if it has no other or a constant one.

    Fold maps list it under `kind`. `second` makes scale and shift of a constant second operand,
    `first` of a constant first one; None if that is not an affine.
    """

    kind: str
    second: ScaleAndShift | None = None
    first: ScaleAndShift | None = None


MARKS = frozenset(("folded", "form"))
"""Attributes of in-house operators that no schema of ONNX has."""

MANY = 1 << 30
"""More inputs or results than any node has."""


class OpInfo(Record, dict=True):
    """All that irc knows of one operator.

    - `inputs` names the operands and `results` the results that a node may have in every opset: `?`
      marks one that may be absent, `*` one that stands for any number. `node["bias"]` reads an
      operand.
    - `infer` returns the types of the outputs, `evaluate` their elements if irc computes them.
    - `onnx` is the operator's name in ONNX, `since` the first opset that has it, `when` the
      condition under which an ONNX node is this operator.
    - `forms` lists the parts of the operator that later opsets added, with the opset: an attribute,
      an element type, a way of broadcasting. `is_legal` reads it.
    - `parameters` are the operands that older opsets state as attributes. In the IR they are
      operands in every opset: `parameters.py`.
    - `attrs` checks the attributes that irc reads.
    - `by_type` lists the operands that are needed by type only.
    - `wide` is the operand that may be a float64 parameter beside narrower data.
    - `function` makes the real function that the operator computes on each element, up to rounding.
    - `bounds` bounds the results by bounds of the operands, if traits and channels do not.
    - `pole` is the operand of which a zero makes the result infinite.
    - `terms` counts the products that an element of the result sums, if it sums products.
    - `grouped` views the weight of a layer as a map of channels.
    - `affine` says which affine the operator is, and under which kind fold maps list it: mul, add,
      sub, div, ...
    - A `pure` operator may be erased if nobody reads its results.
    - `channels` states how channels pass from the first operand to the results.
    """

    name: str
    inputs: tuple[str, ...]
    infer: Infer
    evaluate: Evaluate | None = None
    onnx: str | None = None
    since: int = 1
    when: Condition | None = None
    forms: Mapping[str, int] = field(default_factory=dict)
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    attrs: Mapping[str, Check] = field(default_factory=dict)
    by_type: tuple[str, ...] = ()
    results: tuple[str, ...] = ("output",)
    wide: str | None = None
    function: MakeFunction | None = None
    bounds: Bounds | None = None
    pole: str | None = None
    terms: Terms | None = None
    grouped: Grouped | None = None
    affine: AffineForm | None = None
    pure: bool = True
    traits: frozenset[Trait] = frozenset()
    channels: Channels | None = None

    @cached_property
    def operands(self) -> dict[str, int]:
        """The position of each operand by name, but of those that stand for any number."""
        return {name.rstrip("?"): i for i, name in enumerate(self.inputs) if name[-1] != "*"}

    @cached_property
    def arity(self) -> tuple[int, int]:
        """The least and the greatest number of inputs."""
        return _count_range(self.inputs)

    @cached_property
    def result_counts(self) -> tuple[int, int]:
        """The least number of results, and the greatest that a node may have in every opset."""
        return _count_range(self.results)

    @cached_property
    def type_operands(self) -> frozenset[int]:
        """The positions of the operands that are needed by type only."""
        return frozenset([self.operands[name] for name in self.by_type])

    @cached_property
    def infers_all(self) -> bool:
        """Whether `infer` is `complete`: onnx's shape inference knows no more of the results."""
        return self.infer in _COMPLETE

    @cached_property
    def infers_by_types(self) -> bool:
        """Whether `infers_all` holds, and constant operands make no difference to it."""
        return self.infer in _BY_TYPES

    @cached_property
    def is_erasable(self) -> bool:
        """Whether rewrites erase the operator if nobody reads its results."""
        return self.pure and Trait.KEPT_UNREAD not in self.traits


def _count_range(names: Sequence[str]) -> tuple[int, int]:
    """Return how many of `names` are there at least, and at most."""
    least = len([name for name in names if name[-1] != "?"])
    return least, MANY if names and names[-1][-1] == "*" else len(names)


def missing_operands(names: Sequence[str], least: int, inputs: Sequence[object]) -> str:
    """Return which of the first `least` operands are missing: `its input weight`, "" if none is."""
    given = [value is not None for value in inputs[:least]]
    given += [False] * (least - len(given))
    found = [name.rstrip("*") for name, is_given in zip(names, given, strict=False) if not is_given]
    if not found:
        return ""
    return f"its input{'s' if len(found) > 1 else ''} {' and '.join(found)}"


def form_opset(info: OpInfo, opset: int) -> int:
    """Return an opset from `opset` on in which ONNX has the operator in the form of the IR."""
    return max(opset, info.since, *[parameter.since for parameter in info.parameters.values()], 13)


def invalid_attribute(info: OpInfo, attrs: Mapping[str, Attribute]) -> str | None:
    """Return the first attribute of a wrong kind or range, None if all are valid."""
    checks = info.attrs
    for name, value in attrs.items():
        check = checks.get(name)
        if check is not None and not check(value):
            return name
    return None


def plain_attributes(info: OpInfo, attrs: Mapping[str, object]) -> dict[str, Attribute] | None:
    """Return attributes if all are numbers that the row of the operator allows.

    None says that one needs a closer look.
    """
    found: dict[str, Attribute] = {}
    checks = info.attrs
    for name, value in attrs.items():
        if value.__class__ is not int and value.__class__ is not float:
            return None
        check = checks.get(name)
        if name not in MARKS if check is None else not check(value):
            return None
        found[name] = value
    return found


def need_schema(info: OpInfo, attrs: Iterable[str]) -> bool:
    """Return whether the row of an operator does not say all of its attributes.

    Schemas take long to load.
    """
    return any([name not in info.attrs and name not in MARKS for name in attrs])


def integer(value: Attribute) -> bool:
    """Check for one integer."""
    return isinstance(value, int)


def integers(value: Attribute) -> bool:
    """Check for a list of integers."""
    if isinstance(value, tuple):
        return all([isinstance(item, int) for item in value])
    return value == EmptyList("ints")


def positive_integers(value: Attribute) -> bool:
    """Check for a list of integers above zero."""
    if isinstance(value, tuple):
        return all([isinstance(item, int) and item > 0 for item in value])
    return value == EmptyList("ints")


def number(value: Attribute) -> bool:
    """Check for one number."""
    return isinstance(value, int | float)


def real(value: Attribute) -> bool:
    """Check for one float."""
    return isinstance(value, float)


def text_of(node: Node, name: str, default: str) -> str:
    """Return an attribute that is a string."""
    found = node.attrs.get(name, default)
    if isinstance(found, bytes):
        return found.decode(errors="replace")
    return found if isinstance(found, str) else default
