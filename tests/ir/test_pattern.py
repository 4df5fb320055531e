"""Patterns of operators.

Each element in a case that matches, and beside it one that does not, with the reason.
"""

from __future__ import annotations

import re

import irc
import pytest
from irc.ir import Rewriter
from irc.ir.pattern import Match, Mismatch, Pattern, const, op, rewrite, rule_table, value
from irc.ir.provenance import Declined
from irc.ir.rule_driver import RuleDriver
from irc.support.errors import UsageError

TEXT = """graph(%x: f32[N,4,8,8], %z: f32[N,4,8,8]) {{
  %three = constant {{value=f32[] 3.0}}
  %w = constant {{value=f32[4,1,1] [1, 1, 1, 2]}}
  %ones = constant {{value=f32[4,1,1] [1, 1, 1, 1]}}
{}
  return({})
}}"""


def match(pattern: Pattern, *lines: str, returns: str = "%y") -> Match | Mismatch:
    module = irc.parse(TEXT.format("\n".join(f"  {line}" for line in lines), returns))
    return pattern.match(module.graph.outputs[0])


X = value("x")

CASES: list[tuple[str, Pattern, list[str], str]] = [
    ("operator", op("nn.relu", X), ["%y = nn.relu(%x)"], ""),
    ("onnx name", op("onnx::Relu", X), ["%y = nn.relu(%x)"], ""),
    (
        "another operator",
        op("nn.relu", X),
        ["%y = sigmoid(%x)"],
        "the value is not the result of Relu, but of Sigmoid",
    ),
    ("one of several", op(("nn.relu", "sigmoid"), X), ["%y = sigmoid(%x)"], ""),
    ("constant", op("add", X, const(3)), ["%y = add(%x, %three)"], ""),
    ("constant on the left", op("add", X, const(3)), ["%y = add(%three, %x)"], ""),
    (
        "no commuting",
        op("subtract", X, const(3)),
        ["%y = subtract(%three, %x)"],
        "operand of Sub .* is not constant",
    ),
    (
        "another number",
        op("add", X, const(4)),
        ["%y = add(%x, %three)"],
        r"constant %three of Add .* is not 4",
    ),
    ("all elements", op("add", X, const(1)), ["%y = add(%x, %ones)"], ""),
    (
        "not all elements",
        op("add", X, const(1)),
        ["%y = add(%x, %w)"],
        "constant %w of Add .* is not 1",
    ),
    ("any constant", op("add", X, const()), ["%y = add(%x, %w)"], ""),
    ("not constant", op("add", X, const()), ["%y = add(%x, %z)"], "is not constant"),
    (
        "one value twice",
        op("multiply", X, op("sigmoid", X)),
        ["%s = sigmoid(%x)", "%y = multiply(%s, %x)"],
        "",
    ),
    (
        "two values",
        op("multiply", X, op("sigmoid", X)),
        ["%s = sigmoid(%z)", "%y = multiply(%s, %x)"],
        "'x' is %x in one place and %z in another",
    ),
    (
        "attribute",
        op("nn.leaky_relu", X, attrs={"alpha": 0.5}),
        ["%y = nn.leaky_relu(%x) {alpha=0.5}"],
        "",
    ),
    (
        "another attribute",
        op("nn.leaky_relu", X, attrs={"alpha": 0.5}),
        ["%y = nn.leaky_relu(%x) {alpha=0.25}"],
        "attribute alpha of LeakyRelu .* is 0.25",
    ),
    (
        "a test of an attribute",
        op("nn.leaky_relu", X, attrs={"alpha": lambda given: given is not None}),
        ["%y = nn.leaky_relu(%x)"],
        "attribute alpha of LeakyRelu .* is None",
    ),
    (
        "a part that is there",
        op("nn.relu", op("sigmoid", X).maybe()),
        ["%s = sigmoid(%x)", "%y = nn.relu(%s)"],
        "",
    ),
    ("a part that is not", op("nn.relu", op("sigmoid", X).maybe()), ["%y = nn.relu(%x)"], ""),
    ("the second alternative", op("nn.relu", X) | op("sigmoid", X), ["%y = sigmoid(%x)"], ""),
    (
        "no alternative",
        op("nn.relu", X) | op("tanh", X),
        ["%y = sigmoid(%x)"],
        "is not the result of Relu",
    ),
    ("absent", op("clip", X, value().absent(), const()), ["%y = clip(%x, _, %three)"], ""),
    (
        "not absent",
        op("clip", X, value(), const()),
        ["%y = clip(%x, _, %three)"],
        "an operand of Clip .* is absent",
    ),
    ("the rest", op("clip", X, ...), ["%y = clip(%x, _, %three)"], ""),
    ("too many", op("clip", X), ["%y = clip(%x, _, %three)"], "Clip .* has 3 operands, not 1"),
    (
        "read once",
        op("nn.relu", op("sigmoid", X).once()),
        ["%s = sigmoid(%x)", "%y = nn.relu(%s)"],
        "",
    ),
    (
        "read twice",
        op("add", op("sigmoid", X).once(), op("tanh", value())),
        ["%s = sigmoid(%x)", "%t = tanh(%s)", "%y = add(%s, %t)"],
        "%s has other readers than Add",
    ),
    (
        "the deepest reason",
        op("add", op("nn.relu", op("tanh", X)), X),
        ["%s = sigmoid(%x)", "%r = nn.relu(%s)", "%y = add(%r, %x)"],
        "an operand of Relu .* is not the result of Tanh, but of Sigmoid",
    ),
]


@pytest.mark.parametrize(
    ("pattern", "lines", "reason"), [each[1:] for each in CASES], ids=[each[0] for each in CASES]
)
def test_patterns_match_or_say_why_not(pattern: Pattern, lines: list[str], reason: str) -> None:
    found = match(pattern, *lines)
    if reason:
        assert isinstance(found, Mismatch)
        assert not found
        assert re.search(reason, found.reason), found.reason
    else:
        assert isinstance(found, Match)
        assert found["x"].name == "x"


def test_commuting_is_tried_at_every_level() -> None:
    pattern = op("add", op("multiply", X, const(3)), op("add", X, op("nn.relu", value("z"))))
    lines = [
        "%m = multiply(%three, %x)",
        "%r = nn.relu(%z)",
        "%a = add(%r, %x)",
        "%y = add(%a, %m)",
    ]
    found = match(pattern, *lines)
    assert isinstance(found, Match)
    assert found["z"].name == "z"
    assert [node.op for node in found.nodes] == ["add", "multiply", "add", "nn.relu"]


def test_the_search_is_bounded() -> None:
    pattern: Pattern = op("tanh", X)
    for _ in range(40):
        pattern = op("add", pattern, pattern)
    lines = ["%v0 = sigmoid(%x)"]
    lines += [f"%v{i + 1} = add(%v{i}, %w)" for i in range(40)]
    assert isinstance(match(pattern, *lines, returns="%v40"), Mismatch)


@rewrite(op("negative", op("negative", X)))
def drop_pair(found: Match, rewriter: Rewriter) -> irc.ir.Value:
    """negative(negative(x)) -> x"""
    return found["x"]


def test_a_rewrite_is_a_rule_with_a_reason() -> None:
    source = (
        "graph(%x: f32[2]) {\n  %a = negative(%x)\n  %b = negative(%a)\n  %y = nn.relu(%b)\n "
        " return(%y)\n}"
    )
    module = irc.parse(source)
    rewriter = Rewriter(module)
    assert "negative" in rule_table([drop_pair])
    RuleDriver(rewriter, rule_table([drop_pair]), None).to_fixpoint(module.graph)
    assert [node.op for node in module.graph.operators()] == ["nn.relu"]
    with pytest.raises(Declined, match="not the result of Neg"):
        drop_pair.pattern.bind(module.graph.outputs[0])


def test_operands_are_patterns() -> None:
    with pytest.raises(TypeError, match="operands of a pattern are patterns"):
        op("add", X, 3)  # type: ignore[arg-type]


def test_names_of_operators_are_checked_where_a_pattern_is_made() -> None:
    assert op("Mul").roots == op("onnx::Mul").roots == op("multiply").roots
    assert op("com.acme::Foo").roots == {"com.acme::Foo"}
    with pytest.raises(UsageError, match=r"no operator 'conv'; did you mean Conv"):
        op("conv")
    with pytest.raises(UsageError, match=r"no operator 'Bernoulli'.*others are written onnx::Name"):
        op("Bernoulli")
