"""FoldScaleAxis: graphs that no importer makes are left alone, with the words that say why.

Nothing is to change: neither an affine that goes where it may not, nor half of a BatchNormalization taken for a whole.
"""

from __future__ import annotations

import pytest
from irc.ir import to_text
from irc.ir.text.parser import parse
from irc.passes.registry import parse_pipeline

MODULE = """\
module {{ir_version=10, opsets={{"": 21}}}}

graph @main(%x: f32[2,3,6,5], %d: f32[2,4,6,5], %u: f32[*], %r: f32[4], %b: bool[*], %e: f32[2,0,6,5]) {{
  %w = constant {{value=f32[4,3,1,1] [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]}}
  %c = constant {{value=f32[4,1,1] [1, 2, 3, 4]}}
  %row = constant {{value=f32[6] [1, 2, 3, 4, 5, 6]}}
  %two = constant {{value=f32[] 2}}
  %g = constant {{value=f32[4] [1, 2, 3, 4]}}
  %g3 = constant {{value=f32[3] [1, 2, 3]}}
  %none = constant {{value=f32[0,1,1] []}}
  %s, %t = nn.batch_norm_to_affine(%g, %g, %g, %g)
  %v = nn.conv(%x, %w) : f32[2,4,6,5]
{body}
  return(%z)
}}
"""
SHAPE = "a shape that decides where the channels go is unknown"
HALF = "is half of a BatchNormalization"
ROWS: dict[str, tuple[str, str]] = {
    "a bias along another axis": (
        "its parameter is a vector along another axis",
        """
        %y = nn.bias_add(%v, %row) {axis=2} : f32[2,4,6,5]
        %z = multiply(%y, %c) : f32[2,4,6,5]
        """,
    ),
    "an operand of unknown rank": (
        SHAPE,
        """
        %y = add(%v, %u) : f32[2,4,6,5]
        %z = multiply(%y, %c) : f32[2,4,6,5]
        """,
    ),
    "branches that are constant": (
        SHAPE,
        """
        %y = where(%b, %row, %row) : f32[*]
        %z = multiply(%y, %g) {axis=1} : f32[*]
        """,
    ),
    "a chain that begins where the rank is unknown": (
        "%u is an input of the graph",
        """
        %p = multiply(%u, %two) : f32[2,4,6,5]
        %y = multiply(%p, %c) : f32[2,4,6,5]
        %z = add(%y, %c) : f32[2,4,6,5]
        """,
    ),
    "a constant without elements": ("", "%z = multiply(%e, %none) : f32[2,0,6,5]"),
    "a product without its sum": ("", "%z = multiply(%d, %s) {axis=1} : f32[2,4,6,5]"),
    "a product and another sum": (
        "",
        """
        %p = multiply(%d, %s) {axis=1} : f32[2,4,6,5]
        %z = add(%p, %d) : f32[2,4,6,5]
        """,
    ),
    "parameters that are not constant": (
        "",
        """
        %s1, %t1 = nn.batch_norm_to_affine(%g, %r, %g, %g)
        %p = multiply(%d, %s1) {axis=1} : f32[2,4,6,5]
        %z = add(%p, %t1) {axis=1} : f32[2,4,6,5]
        """,
    ),
    "a difference in place of the sum": (
        HALF,
        """
        %p = multiply(%d, %s) {axis=1} : f32[2,4,6,5]
        %y = subtract(%p, %t) {axis=1} : f32[2,4,6,5]
        %z = multiply(%y, %c) : f32[2,4,6,5]
        """,
    ),
    "a sum without its product": (
        HALF,
        """
        %p = nn.relu(%d) : f32[2,4,6,5]
        %y = add(%p, %t) {axis=1} : f32[2,4,6,5]
        %z = multiply(%y, %c) : f32[2,4,6,5]
        """,
    ),
    "the shift in place of the scale": (
        HALF,
        """
        %p = multiply(%d, %t) {axis=1} : f32[2,4,6,5]
        %y = add(%p, %t) {axis=1} : f32[2,4,6,5]
        %z = multiply(%y, %c) : f32[2,4,6,5]
        """,
    ),
    "another scale": (
        HALF,
        """
        %p = multiply(%d, %g) {axis=1} : f32[2,4,6,5]
        %y = add(%p, %t) {axis=1} : f32[2,4,6,5]
        %m = multiply(%y, %c) : f32[2,4,6,5]
        %o = multiply(%d, %s) {axis=1} : f32[2,4,6,5]
        %z = "Sink"(%m, %o)
        """,
    ),
    "parameters of two BatchNormalizations": (
        HALF,
        """
        %p = multiply(%d, %s) {axis=1} : f32[2,4,6,5]
        %y = add(%p, %t) {axis=1} : f32[2,4,6,5]
        %q = multiply(%x, %s) {axis=1} : f32[2,4,6,5]
        %o = add(%q, %t) {axis=1} : f32[2,4,6,5]
        %a = nn.relu(%y) : f32[2,4,6,5]
        %m = multiply(%a, %c) : f32[2,4,6,5]
        %z = "Sink"(%m, %o)
        """,
    ),
    "a sum along no axis": (
        "",
        """
        %p = multiply(%v, %s) {axis=1} : f32[2,4,6,5]
        %z = add(%p, %t) : f32[2,4,6,5]
        """,
    ),
    "an operand that is absent": (
        "operand 1 is absent",
        """
        %y = add_n(%v, _, %v) : f32[2,4,6,5]
        %z = multiply(%y, %c) : f32[2,4,6,5]
        """,
    ),
    "a parameter in front of the first axis": (
        "its parameter does not fit at axis -7",
        """
        %y = add(%v, %g) {axis=-7} : f32[2,4,6,5]
        %z = multiply(%y, %c) : f32[2,4,6,5]
        """,
    ),
    "a reduction of axes that are not there": (
        "its data has no such axes",
        """
        %y = mean(%v) {axes=[7]} : f32[2,4,6,5]
        %z = multiply(%y, %c) : f32[2,4,6,5]
        """,
    ),
    "rows of one operand among channels": (
        "not all operands have the same affine",
        """
        %p = multiply(%d, %row) {axis=2} : f32[2,4,6,5]
        %z = concatenate(%p, %d) {axis=1} : f32[2,8,6,5]
        """,
    ),
    "channels that are said to be fewer": (
        SHAPE,
        """
        %p = multiply(%d, %c) : f32[2,3,6,5]
        %z = concatenate(%p, %d) {axis=1} : f32[2,7,6,5]
        """,
    ),
    "channels of data without such an axis": (
        "which has no such channels",
        """
        %y = nn.relu(%v) : f32[4]
        %z = multiply(%y, %g) {axis=1} : f32[4]
        """,
    ),
    "an axis that no memory holds": (
        "has an axis of more than 16777216 elements",
        """
        %y = nn.relu(%v) : f32[2,4,99999999,5]
        %z = multiply(%y, %c) : f32[2,4,99999999,5]
        """,
    ),
    "blocks that no memory holds, behind": (
        SHAPE,
        """
        %y = nn.depth_to_space(%v) {blocksize=65} : f32[2,4,6,5]
        %z = multiply(%y, %c) : f32[2,4,6,5]
        """,
    ),
    "blocks that no memory holds, in front": (
        SHAPE,
        """
        %p = multiply(%d, %c) : f32[2,4,6,5]
        %z = nn.space_to_depth(%p) {blocksize=65} : f32[2,4,6,5]
        """,
    ),
    "repeats that no memory holds": (
        SHAPE,
        """
        %n = constant {value=i64[4] [1, 65537, 1, 1]}
        %p = multiply(%d, %c) : f32[2,4,6,5]
        %z = tile(%p, %n) : f32[2,262148,6,5]
        """,
    ),
    "parameters of different lengths": (
        "its parameters are no vectors of one length",
        """
        %s1, %t1 = nn.batch_norm_to_affine(%g, %g3, %g, %g)
        %p = multiply(%d, %s1) {axis=1} : f32[2,4,6,5]
        %y = add(%p, %t1) {axis=1} : f32[2,4,6,5]
        %a = nn.relu(%y) : f32[2,4,6,5]
        %z = multiply(%a, %c) : f32[2,4,6,5]
        """,
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_graph_is_left_alone(name: str) -> None:
    words, body = ROWS[name]
    module = parse(MODULE.format(body=body))
    parse_pipeline("DeadCodeElimination")(module)
    before = to_text(module)
    parse_pipeline("FoldScaleAxis")(module)
    assert words in str(module.provenance.refusals)
    assert to_text(module) == before
