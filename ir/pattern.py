r"""Patterns of operators: the expression that a rewrite looks for, written as one.

    x = value("x")
    RELU6 = op("clip", op("add", x, const(3)), const(0), const(6))
    HARD_SWISH = op("divide", op("multiply", x, RELU6), const(6))

    found = HARD_SWISH.match(node)    # a Match: found["x"], found.root, found.nodes
    found = HARD_SWISH.bind(node)     # in a rule: declines if the pattern does not match

| pattern | matches |
| --- | --- |
| `value("x")` | any value; a name that occurs twice is one value |
| `const()`, `const(6)` | a constant; one whose elements are all 6, rounded to its element type |
| `op("nn.conv", a, b)` | a result of this operator, with these operands; `op("nn.conv")` with any |
| `op("nn.conv", a, ...)` | operands beyond those listed may follow |
| `op(("nn.relu", "clip"), a, ...)` | one of several operators |
| `op("onnx::Gelu", a, attrs={"approximate": "tanh"})` | an attribute: its value, or a test of it |
| `p.once()` | a result that nothing else reads |
| `p.maybe()` | the operator, or its first operand in its place |
| `p.absent()` | the operand, or none |
| `p \| q` | one of two patterns, tried in this order |

Operands of `add`, `multiply` and the like match in either order. A match is exact: operators have
their names in the IR. An operator of ONNX that irc knows has its name in the operator table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import EllipsisType

import numpy as np

from ..support.errors import UsageError, did_you_mean
from .attributes import Attribute, AttributeRef
from .graph import ONNX_NAMES, Node, Value
from .ops import BY_ONNX_NAME, OPS, canonical_domain
from .provenance import Declined
from .record import Record
from .rewriter import Rewriter
from .rule_driver import ANY, AffineEffect, Rule, Rules
from .tensor import Tensor, numpy_dtype

COMMUTATIVE = frozenset(
    ("add", "multiply", "equal", "logical_and", "logical_or", "logical_xor", "maximum", "minimum",
     "::BitwiseAnd", "::BitwiseOr", "::BitwiseXor")
)  # fmt: skip
"""Operators whose two operands a pattern may find in either order."""

MAX_STEPS = 10_000
"""Most comparisons of one match: alternatives within alternatives may multiply."""

AttributeTest = Attribute | Callable[[Attribute | None], bool]


class Match:
    """The values by the names of the pattern, and the nodes that it covers, `root` first.

    `root` is the node that was matched.
    """

    def __init__(self, root: Node, values: Mapping[str, Value], nodes: Sequence[Node]) -> None:
        self.root = root
        self.values = dict(values)
        self.nodes = tuple(dict.fromkeys(nodes))

    def __getitem__(self, name: str) -> Value:
        return self.values[name]

    def get(self, name: str) -> Value | None:
        """Return the value of a name, None if an optional part is absent."""
        return self.values.get(name)

    def node(self, name: str) -> Node:
        """Return the node that computes the value of a name."""
        node = self.values[name].node
        if node is None:
            raise KeyError(f"{name!r} is an input of the graph")
        return node

    def __repr__(self) -> str:
        return (
            f"<Match at {self.root.label}:"
            f" {', '.join(f'{k}=%{v.name}' for k, v in self.values.items())}>"
        )


class Mismatch:
    """Why a pattern does not match; false."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return f"<Mismatch: {self.reason}>"


class _State(Record):
    """The bindings so far: values by name, and the nodes that are covered."""

    values: Mapping[str, Value]
    nodes: tuple[Node, ...]


class _Attempt:
    """One attempt. `reason` is the one of the way that got farthest."""

    def __init__(self) -> None:
        self.steps = 0
        self.depth = -1
        self.reason = ""

    def fail(self, state: _State, reason: str) -> None:
        if len(state.nodes) > self.depth:
            self.depth, self.reason = len(state.nodes), reason


Ways = Iterator[_State]


class Pattern:
    """Base of all patterns: use the functions of this module to make one."""

    def ways(
        self, found: Value | None, reader: Node | None, state: _State, search: _Attempt
    ) -> Ways:
        """Yield the ways in which the pattern matches a value, which is an operand of `reader`."""
        raise NotImplementedError

    @property
    def roots(self) -> frozenset[str]:
        """The operators whose results the pattern may match; empty for every value."""
        return frozenset()

    def match(self, found: Node | Value) -> Match | Mismatch:
        """Return the first match at a value or the first result of a node, else a Mismatch.

        This has the `reason`. Raises UsageError for anything else.
        """
        value_ = found.output if isinstance(found, Node) else found
        if not isinstance(value_, Value):
            raise UsageError(
                f"a pattern matches at a Node or a Value, and {type(found).__name__} is neither"
            )
        if value_.node is None:
            return Mismatch(f"%{value_.name} is an input of the graph")
        search = _Attempt()
        for state in self.ways(value_, None, _State({}, ()), search):
            return Match(value_.node, state.values, state.nodes)
        return Mismatch(search.reason)

    def bind(self, found: Node | Value) -> Match:
        """Return the match. Raises Declined with the reason if there is none."""
        match = self.match(found)
        if isinstance(match, Mismatch):
            raise Declined(match.reason)
        return match

    def __or__(self, other: Pattern) -> Pattern:
        return _Either((self, other))

    def once(self) -> Pattern:
        """Return the pattern for a result that one operand alone reads."""
        return _Once(self)

    def absent(self) -> Pattern:
        """Return the pattern for an operand that may be absent."""
        return _Absent(self)


class _Named(Pattern):
    """A pattern with a name, under which the value is bound."""

    def __init__(self, name: str) -> None:
        self.name = name

    def bound(self, found: Value, state: _State, search: _Attempt) -> _State | None:
        """Return the state with `found` under the name, None if the name is another value."""
        if not self.name:
            return state
        known = state.values.get(self.name)
        if known is not None and known is not found:
            search.fail(
                state,
                f"{self.name!r} is %{known.source_name} in one place and %{found.source_name} in"
                " another",
            )
            return None
        return _State({**state.values, self.name: found}, state.nodes)


class _AnyValue(_Named):
    def ways(
        self, found: Value | None, reader: Node | None, state: _State, search: _Attempt
    ) -> Ways:
        if found is None:
            search.fail(state, f"an operand of {_described(reader)} is absent")
        elif (bound := self.bound(found, state, search)) is not None:
            yield bound


class _Constant(_Named):
    def __init__(self, number: float | None, name: str) -> None:
        super().__init__(name)
        self.number = number

    def ways(
        self, found: Value | None, reader: Node | None, state: _State, search: _Attempt
    ) -> Ways:
        node = None if found is None else found.node
        payload = node.attrs.get("value") if node is not None and node.op == "constant" else None
        if found is None or not isinstance(payload, Tensor):
            search.fail(state, f"an operand of {_described(reader)} is not constant")
        elif self.number is not None and not _is_all(payload, self.number):
            search.fail(
                state,
                f"the constant %{found.source_name} of {_described(reader)} is not {self.number}",
            )
        elif (bound := self.bound(found, state, search)) is not None:
            yield bound


def _is_all(payload: Tensor, number: float) -> bool:
    """Return whether all elements of a constant are `number`, rounded to its element type."""
    if payload.dtype.kind not in ("float", "int", "uint", "bool"):
        return False
    array = payload.numpy()
    with np.errstate(all="ignore"):
        expected = np.asarray(number).astype(numpy_dtype(payload.dtype))
    exact = payload.dtype.kind == "float" or expected == number
    return bool(array.size and exact and np.all(array == expected))


class _Operator(_Named):
    def __init__(
        self,
        ops: Sequence[str],
        operands: Sequence[Pattern] | None,
        more: bool,
        attrs: Mapping[str, AttributeTest],
        name: str,
        result: int | None,
    ) -> None:
        super().__init__(name)
        self.result = result
        self.ops = tuple(map(canonical, ops))
        self.operands = None if operands is None else tuple(operands)
        self.more = more
        self.attrs = dict(attrs)

    @property
    def roots(self) -> frozenset[str]:
        return frozenset(self.ops)

    def maybe(self) -> Pattern:
        """Return the pattern for the operator, or for its first operand in its place."""
        if not self.operands:
            raise ValueError("a part that may be missing needs an operand that takes its place")
        return _Either((self, self.operands[0]))

    def ways(
        self, found: Value | None, reader: Node | None, state: _State, search: _Attempt
    ) -> Ways:
        node = None if found is None else found.node
        # Any result, or the one that the pattern names.
        is_result = found is not None and self.result in (None, found.index)
        if found is None or node is None or node.op not in self.ops or not is_result:
            names = " or ".join(ONNX_NAMES.get(op, op.removeprefix("::")) for op in self.ops)
            where = "the value" if reader is None else f"an operand of {_described(reader)}"
            search.fail(
                state,
                f"{where} is not the result of {names}"
                + ("" if node is None else f", but of {node.description}"),
            )
            return
        if not self.fits(node, state, search):
            return
        bound = self.bound(found, _State(state.values, (*state.nodes, node)), search)
        if bound is None:
            return
        if self.operands is None:
            yield bound
            return
        inputs = node.inputs
        while inputs and inputs[-1] is None:
            inputs = inputs[:-1]
        if len(inputs) > len(self.operands) and not self.more:
            search.fail(
                bound, f"{node.description} has {len(inputs)} operands, not {len(self.operands)}"
            )
            return
        given = [node.input(i) for i in range(len(self.operands))]
        yield from _in_order(self.operands, given, node, bound, search)
        if node.op in COMMUTATIVE and len(given) == 2 and given[0] is not given[1]:
            yield from _in_order(self.operands, given[::-1], node, bound, search)

    def fits(self, node: Node, state: _State, search: _Attempt) -> bool:
        """Return whether the attributes are as in the pattern."""
        for name, test in self.attrs.items():
            given = node.attrs.get(name)
            if isinstance(given, AttributeRef):
                search.fail(
                    state, f"attribute {name} of {node.description} is a parameter of its function"
                )
                return False
            if not (test(given) if callable(test) else _equal(given, test)):
                search.fail(state, f"attribute {name} of {node.description} is {given!r}")
                return False
        return True


def _equal(given: Attribute | None, wanted: object) -> bool:
    if isinstance(given, bytes) and isinstance(wanted, str):
        return given == wanted.encode()
    return given == (tuple(wanted) if isinstance(wanted, list) else wanted)


def _in_order(
    operands: Sequence[Pattern],
    given: Sequence[Value | None],
    reader: Node,
    state: _State,
    search: _Attempt,
) -> Ways:
    """Yield the ways in which all operands match, in this order."""
    search.steps += 1
    if search.steps > MAX_STEPS:
        search.depth, search.reason = 1 << 30, "there are too many ways to match the pattern"
        return
    if not operands:
        yield state
        return
    for first in operands[0].ways(given[0], reader, state, search):
        yield from _in_order(operands[1:], given[1:], reader, first, search)


class _Either(Pattern):
    def __init__(self, patterns: tuple[Pattern, ...]) -> None:
        self.patterns = patterns

    @property
    def roots(self) -> frozenset[str]:
        each = [pattern.roots for pattern in self.patterns]
        return frozenset().union(*each) if all(each) else frozenset()

    def ways(
        self, found: Value | None, reader: Node | None, state: _State, search: _Attempt
    ) -> Ways:
        for pattern in self.patterns:
            yield from pattern.ways(found, reader, state, search)


class _Once(Pattern):
    def __init__(self, pattern: Pattern) -> None:
        self.pattern = pattern

    @property
    def roots(self) -> frozenset[str]:
        return self.pattern.roots

    def ways(
        self, found: Value | None, reader: Node | None, state: _State, search: _Attempt
    ) -> Ways:
        for way in self.pattern.ways(found, reader, state, search):
            assert found is not None
            if reader is None or found.sole_user() is reader:
                yield way
            else:
                search.fail(
                    way, f"%{found.source_name} has other readers than {_described(reader)}"
                )


class _Absent(Pattern):
    def __init__(self, pattern: Pattern) -> None:
        self.pattern = pattern

    def ways(
        self, found: Value | None, reader: Node | None, state: _State, search: _Attempt
    ) -> Ways:
        if found is None:
            yield state
        else:
            yield from self.pattern.ways(found, reader, state, search)


def _described(node: Node | None) -> str:
    return "the match" if node is None else node.description


def value(name: str = "") -> Pattern:
    """Return the pattern of any value."""
    return _AnyValue(name)


def const(number: float | None = None, *, name: str = "") -> Pattern:
    """Return the pattern of a constant, or of one whose elements are all `number`."""
    return _Constant(number, name)


def op(
    ops: str | Sequence[str],
    *operands: Pattern | EllipsisType,
    attrs: Mapping[str, AttributeTest] | None = None,
    name: str = "",
    result: int | None = 0,
) -> _Operator:
    """Return the pattern of a result of one of `ops`: the one at `result`, or any if None.

    Without operands any are taken; `...` takes the rest.
    """
    more = bool(operands) and operands[-1] is ...
    listed = [operand for operand in operands if isinstance(operand, Pattern)]
    if len(listed) + more != len(operands):
        raise TypeError(
            "the operands of a pattern are patterns: value(), const(6), op(...), and ... as the"
            " last"
        )
    names = (ops,) if isinstance(ops, str) else tuple(ops)
    return _Operator(names, listed if operands else None, more, attrs or {}, name, result)


def canonical(op_name: str) -> str:
    """Return the name that an operator has in the IR: `onnx::Add` and `Add` are `add`.

    Raises UsageError for a name without a domain that no operator of the IR has.
    """
    domain, separator, op_type = op_name.partition("::")
    if op_name in OPS or (separator and canonical_domain(domain) not in ("", "onnx")):
        return op_name
    if not separator:
        op_type = op_name
        if op_type not in BY_ONNX_NAME:
            near = did_you_mean(op_name, [*OPS, *BY_ONNX_NAME])
            raise UsageError(
                f"the IR has no operator {op_name!r}{near} (others are written onnx::Name or"
                " domain::Name)"
            )
    row = BY_ONNX_NAME.get(op_type)
    return f"::{op_type}" if row is None else row.name


Replace = Callable[[Match, Rewriter], Value | None]


class Rewrite(Record):
    """A pattern, and the rule that replaces its matches."""

    pattern: Pattern
    rule: Rule[object]


def rewrite(pattern: Pattern, *, affine: AffineEffect = "merges") -> Callable[[Replace], Rewrite]:
    """Make a rewrite of a function that returns a replacement for the matched value.

    It returns None to decline. The function gets the match and the Rewriter; it may raise Declined,
    or return `rewriter.decline(reason) or None`. It changes nothing before it is sure.
    """

    def made(function: Replace) -> Rewrite:
        def apply(node: Node, rewriter: Rewriter, context: object) -> bool:
            new = function(pattern.bind(node), rewriter)
            return new is not None and rewriter.forward(node.output, new)

        apply.__doc__ = function.__doc__
        return Rewrite(pattern, Rule(getattr(function, "__name__", "rewrite"), apply, affine, None))

    return made


def rule_table(rewrites: Sequence[Rewrite]) -> Rules[object]:
    """Return the rules of a driver, by operator, each operator's in the given order."""
    table: dict[str, tuple[Rule[object], ...]] = {}
    named = sorted({root for each in rewrites for root in each.pattern.roots})
    for root in (*named, ANY):
        found = tuple(
            each.rule for each in rewrites if not each.pattern.roots or root in each.pattern.roots
        )
        if found:
            table[root] = found
    return table
