"""Integers that ONNX leaves to a runtime: a constant that does not depend on them is proved."""

from __future__ import annotations

import base64
import zlib

import irc
import numpy as np
import pytest
from irc.tools.certify.checker.certificate import check
from irc.tools.certify.checker.document import digest_of_content
from onnx import numpy_helper

from .pairs import is_proved, model, proof_of

BUCKETS = """(float[4,2] x) => (float[4,2] y) <int64[4] n = {0, 1, 2, 8}, int64[4] big = {2, 2, 2, 2},
 float two = {2}, float[16,2] table = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23,
 24, 25, 26, 27, 28, 29, 30, 31}, int64 most = {15}, int64 few = {2}> {
  f = Cast<to = 1>(n)  l = Log(f)  h = Mul(l, two)  k = Cast<to = 7>(h)  v = Add(k, big)  m = Min(v, most)
  s = Less(n, few)  i = Where(s, n, m)  e = Gather(table, i)  y = Add(x, e)
}"""
"""The buckets of relative positions, as T5 has them: the logarithm of 0 is no integer."""


def test_elements_that_nothing_takes_may_be_open() -> None:
    source = model(BUCKETS)
    result = irc.compile(source, certificate=True)
    assert [node.op_type for node in result.model.graph.node] == ["Add"]
    document = proof_of(source, result.model, result.certificate())
    assert not check(source, result.model, document).unproved
    table = numpy_helper.to_array(result.model.graph.initializer[0]).copy()
    assert table[:, 0].tolist() == [0.0, 2.0, 6.0, 12.0]


HEAD = "(int64[2] x) => (int64[2] y)"
CONSTANTS = "float[2] f = {1e30, 3}, int64[2] n = {5, 6}, bool[2] b = {1, 0}, int64[2] o = {0, 0}"
COMPUTED = {
    "the other element is taken": ("w = Where(b, n, k)", [5, 3], True),
    "an element is open": ("w = Where(b, k, n)", [-(2**63), 6], False),
    "the condition is open": ("l = Less(k, n)  w = Where(l, n, n)", [5, 6], False),
    "it is added": ("v = Add(k, n)  w = Where(b, n, v)", [5, 9], True),
    "the sum is open": ("v = Add(k, n)  w = Where(b, v, n)", [-(2**63) + 5, 6], False),
    "a product with zero": ("w = Mul(k, o)", [0, 0], False),
    "in another order": ("v = Slice(k, o1, e1, a1, s1)  w = Where(b, v, n)", [3, 6], True),
    "opened in another order": ("v = Slice(k, o1, e1, a1, s1)  w = Where(b, n, v)", [5, 0], False),
    "a quotient ends a runtime": ("v = Div(n, k)  w = Where(b, n, v)", [5, 2], False),
    "a type that is narrower": (
        "v = Cast<to = 6>(k)  u = Cast<to = 7>(v)  w = Where(b, n, u)",
        [5, 3],
        True,
    ),
    "positions": ("v = Gather(n, k)  w = Where(b, n, v)", [5, 0], False),
}


@pytest.mark.parametrize(("body", "numbers", "holds"), COMPUTED.values(), ids=COMPUTED)
def test_an_open_element_has_no_number(body: str, numbers: list[int], holds: bool) -> None:
    slices = "int64[1] o1 = {1}, int64[1] e1 = {-3}, int64[1] a1 = {0}, int64[1] s1 = {-1}"
    source = f"{HEAD} <{CONSTANTS}, {slices}> {{ k = Cast<to = 7>(f)  {body}  y = Add(x, w) }}"
    made = ", ".join(map(str, numbers))
    result = f"{HEAD} <int64[2] w = {{{made}}}> {{ y = Add(x, w) }}"
    steps = [
        {"at": "source", "operation": each.partition(" = ")[0], "identity": "constant"}
        for each in f"k = Cast  {body}".split("  ")
    ]
    assert is_proved(source, result, *steps) == holds
    if holds:
        wrong = result.replace(made, ", ".join(map(str, np.add(numbers, [0, 1]))))
        assert not is_proved(source, wrong, *steps)


@pytest.mark.parametrize(("place", "holds"), [(0, False), (2, True)])
def test_the_logarithm_of_zero_is_minus_infinity(place: int, holds: bool) -> None:
    """A step cannot say that it is another number, as it can of the logarithm of 2."""
    source = model(BUCKETS)
    result = irc.compile(source, certificate=True)
    document = proof_of(source, result.model, result.certificate())
    (step,) = [each for each in document["steps"] if "ulps" in each]
    ulps = np.frombuffer(zlib.decompress(base64.b64decode(step["ulps"])), "<i2").copy()
    ulps[place] += 1
    step["ulps"] = base64.b64encode(zlib.compress(ulps.tobytes())).decode()
    document["seal"] = digest_of_content(document)
    if holds:
        assert check(source, result.model, document).steps
        return
    with pytest.raises(irc.Rejected, match="not finite"):
        check(source, result.model, document)
