"""Ways of channels that no planner asks for with these numbers.

Counts that do not fit, and copies that are none.
"""

from __future__ import annotations

import pytest
from irc.ir.evaluate import ConstantEvaluator
from irc.ir.graph import Node
from irc.ir.ops.channel_map import ChannelAxis
from irc.ir.ops.indexing import MAX_REPEATS, split_channels, tiled_channels
from irc.ir.provenance import Refused
from irc.ir.text.parser import parse

SPLIT = """module {ir_version=10, opsets={"": 13}}

graph @main(%x: f32[2,6]) {
  %parts = constant {value=i64[2] [2, 4]}
  %a, %b = split(%x, %parts) {axis=1} : f32[2,2], f32[2,4]
  return(%a, %b)
}
"""
TILE = """module {ir_version=10, opsets={"": 13}}

graph @main(%x: f32[2,3]) {
  %repeats = constant {value=i64[2] [1, COPIES]}
  %y = tile(%x, %repeats) : f32[2,?]
  return(%y)
}
"""


def node_of(text: str, op: str) -> Node:
    (found,) = (node for node in parse(text).graph if node.op == op)
    return found


def test_a_split_takes_as_many_channels_as_it_has() -> None:
    node, constants = node_of(SPLIT, "split"), ConstantEvaluator()
    whole = split_channels(node, ChannelAxis(1, 6, of_data=True), constants)
    assert whole.data_of_result is not None
    assert list(whole.data_of_result) == [0, 1]
    with pytest.raises(Refused):
        split_channels(node, ChannelAxis(1, 5, of_data=True), constants)


def test_a_result_of_a_split_has_as_many_channels_as_its_part() -> None:
    text = SPLIT.replace("return(%a, %b)", "return(%b)")
    node, constants = node_of(text, "split"), ConstantEvaluator()
    part = split_channels(node, ChannelAxis(1, 4, result=1), constants)
    assert part.data_of_result is not None
    assert list(part.data_of_result) == [2, 3, 4, 5]
    with pytest.raises(Refused):
        split_channels(node, ChannelAxis(1, 2, result=1), constants)


@pytest.mark.parametrize("of_data", [True, False])
@pytest.mark.parametrize("copies", [0, -1, 2, MAX_REPEATS + 1])
def test_a_tile_passes_channels_that_it_copies(copies: int, of_data: bool) -> None:
    node, constants = node_of(TILE.replace("COPIES", str(copies)), "tile"), ConstantEvaluator()
    at = ChannelAxis(1, 3 if of_data else 6, of_data=of_data)
    if copies == 2:
        found = tiled_channels(node, at, constants)
        assert found.data_of_result is not None
        assert list(found.data_of_result) == [0, 1, 2, 0, 1, 2]
    else:
        with pytest.raises(Refused):
            tiled_channels(node, at, constants)
