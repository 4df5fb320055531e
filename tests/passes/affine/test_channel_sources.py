"""The channels that each result has, for passes that propagate statistics.

Shapes and counts may not agree there.
"""

from __future__ import annotations

import pytest
from irc.ir.evaluate import ConstantEvaluator
from irc.ir.provenance import Refused
from irc.ir.text.parser import parse
from irc.passes.affine.algebra.operands import Parameters
from irc.passes.affine.rules.derived_rules import channel_sources

SLICE = """module {ir_version=10, opsets={"": 13}}

graph @main(%x: f32[2,EXTENT]) {
  %first = constant {value=i64[1] [1]}
  %last = constant {value=i64[1] [3]}
  %axis = constant {value=i64[1] [1]}
  %y = strided_slice(%x, %first, %last, %axis) : f32[2,2]
  return(%y)
}
"""
PAD = """module {ir_version=10, opsets={"": 13}}

graph @main(%x: f32[2,1,4]) {
  %pads = constant {value=i64[6] [0, 0, 1, 0, 0, 1]}
  %y = nn.pad(%x, %pads) : f32[2,1,6]
  return(%y)
}
"""


def sources(text: str, count: int) -> list[tuple[int | None, list[int]]]:
    (node,) = (node for node in parse(text).graph if node.op != "constant")
    found = channel_sources(node, 1, count, Parameters(ConstantEvaluator()))
    return [(axis, list(channels)) for axis, channels in found.values()]


def test_a_slice_has_the_channels_that_it_reads() -> None:
    assert sources(SLICE.replace("EXTENT", "4"), 4) == [(1, [1, 2])]


@pytest.mark.parametrize(("extent", "count"), [(4, 3), (1 << 40, 4)])
def test_a_slice_of_more_channels_than_the_data_has(extent: int, count: int) -> None:
    with pytest.raises(Refused, match="do not fit"):
        sources(SLICE.replace("EXTENT", str(extent)), count)


def test_padding_is_no_channel_of_the_data() -> None:
    """With one channel the padding could change along: for a planner, not for a statistic."""
    with pytest.raises(Refused, match="adds elements of its own"):
        sources(PAD, 1)
