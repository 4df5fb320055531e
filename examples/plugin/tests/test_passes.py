"""The passes of the example as IR text: before, pass, after."""

from __future__ import annotations

import irc
import pytest
from irc.passes import PassContext, Verify, parse_pipeline

BODY = "graph @g(%x: f32[N,8,4,4]) {{\n{}}}\n"
CONSTANTS = """  %three = constant {value=f32[] 3.0}
  %zero = constant {value=f32[] 0.0}
  %six = constant {value=f32[] 6.0}
"""


def run(passes: str, text: str) -> str:
    """Return the body of the module after the passes, without its header."""
    module = irc.parse(BODY.format(CONSTANTS + text))
    parse_pipeline(passes)(module, PassContext([Verify()]))
    lines = str(module).splitlines()[2:]
    return "\n".join(line.strip() for line in lines if "constant" not in line)


@pytest.mark.parametrize(
    "steps",
    [
        """  %a = add(%x, %three)
  %c = clip(%a, %zero, %six)
  %m = multiply(%x, %c)
  %y = divide(%m, %six)
  return(%y)
""",
        """  %a = add(%three, %x)
  %c = clip(%a, %zero, %six)
  %d = divide(%c, %six)
  %y = multiply(%d, %x)
  return(%y)
""",
    ],
)
def test_a_hard_swish_becomes_one_operator(steps: str) -> None:
    assert run("FuseHardSwish", steps) == (
        "graph @g(%x: f32[N,8,4,4]) {\n%y = nn.hard_swish(%x) : f32[N,8,4,4]\nreturn(%y)\n}"
    )


def test_a_step_that_something_else_reads_keeps_it() -> None:
    steps = """  %a = add(%x, %three)
  %c = clip(%a, %zero, %six)
  %m = multiply(%x, %c)
  %y = divide(%m, %six)
  return(%y, %c)
"""
    assert "hard_swish" not in run("FuseHardSwish", steps)


def test_another_bound_keeps_it() -> None:
    steps = """  %a = add(%x, %three)
  %c = clip(%a, %zero, %three)
  %m = multiply(%x, %c)
  %y = divide(%m, %six)
  return(%y)
"""
    assert "hard_swish" not in run("FuseHardSwish", steps)


def conv(bound: str) -> str:
    return f"""  %w = variable {{value=f32[1,8,1,1] [1, 2, 3, 4, 5, 6, 7, 8]}}
  %v = nn.conv(%x, %w)
  %y = clip(%v, %zero, %{bound})
  return(%y)
"""


def test_a_conv_before_a_relu6_is_marked() -> None:
    text = run("MarkRelu6{key=acme.activation}", conv("six"))
    assert '%v = nn.conv(%x, %w) : f32[N,1,4,4] meta {"acme.activation": "relu6"}' in text


def test_a_conv_before_another_clip_is_not() -> None:
    assert "meta" not in run("MarkRelu6", conv("three"))
