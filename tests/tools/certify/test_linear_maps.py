"""Layers that compute a sum of layers, or layers in a row: what is one, and what only looks so."""

from __future__ import annotations

import irc
import numpy as np
import pytest
from irc.tools.certify.checker.certificate import check
from onnx import ModelProto, numpy_helper
from random_branches import convolutions, products

from .forgeries import sealed
from .pairs import is_found, is_proved, proof_of

STEP = {"at": "result", "operation": "y", "identity": "same map", "source": "y"}

HEAD = "(float[1,2,N,N] x) => (float[1,2,M,K] y)"
A, B, ONE = "a = {1, 2, 3, 4}", "b = {5, 6, 7, 8}", "{1, 0, 0, 1}"
POINTS = f"float[2,2,1,1] {A}, float[2,2,1,1] {B}, float[2] c = {{1, 2}}, float[2] d = {{3, 4}}"

# source, result
CONVOLUTIONS = {
    "two layers of one tap": (
        f"<{POINTS}> {{ p = Conv(x, a, c)  q = Conv(x, b, d)  y = Add(p, q) }}",
        "<float[2,2,1,1] w = {6, 8, 10, 12}, float[2] v = {4, 6}> { y = Conv(x, w, v) }",
        True,
    ),
    "another bias": (
        f"<{POINTS}> {{ p = Conv(x, a, c)  q = Conv(x, b, d)  y = Add(p, q) }}",
        "<float[2,2,1,1] w = {6, 8, 10, 12}, float[2] v = {4, 7}> { y = Conv(x, w, v) }",
        False,
    ),
    "another weight": (
        f"<{POINTS}> {{ p = Conv(x, a, c)  q = Conv(x, b, d)  y = Add(p, q) }}",
        "<float[2,2,1,1] w = {6, 8, 10, 13}, float[2] v = {4, 6}> { y = Conv(x, w, v) }",
        False,
    ),
    "a difference": (
        f"<{POINTS}> {{ p = Conv(x, a, c)  q = Conv(x, b, d)  y = Sub(p, q) }}",
        "<float[2,2,1,1] w = {-4, -4, -4, -4}, float[2] v = {-2, -2}> { y = Conv(x, w, v) }",
        True,
    ),
    "the value itself, scaled": (
        f"<{POINTS}, float[2,1,1] s = {{2, 3}}> {{ p = Conv(x, a)  q = Mul(x, s)  y = Add(p, q) }}",
        "<float[2,2,1,1] w = {3, 2, 3, 7}> { y = Conv(x, w) }",
        True,
    ),
    "the value scaled along another axis": (
        f"<{POINTS}, float[2,1] s = {{2, 3}}> {{ p = Conv(x, a)  q = Mul(x, s)  y = Add(p, q) }}",
        "<float[2,2,1,1] w = {3, 2, 3, 7}> { y = Conv(x, w) }",
        False,
    ),
    "two layers in a row": (
        f"<{POINTS}> {{ p = Conv(x, a, c)  y = Conv(p, b, d) }}",
        "<float[2,2,1,1] w = {23, 34, 31, 46}, float[2] v = {20, 27}> { y = Conv(x, w, v) }",
        True,
    ),
    "two layers in the other order": (
        f"<{POINTS}> {{ p = Conv(x, b, d)  y = Conv(p, a, c) }}",
        "<float[2,2,1,1] w = {23, 34, 31, 46}, float[2] v = {20, 27}> { y = Conv(x, w, v) }",
        False,
    ),
    "an operator between": (
        f"<{POINTS}> {{ p = Conv(x, a, c)  q = Relu(p)  y = Conv(q, b, d) }}",
        "<float[2,2,1,1] w = {23, 34, 31, 46}, float[2] v = {20, 27}> { y = Conv(x, w, v) }",
        False,
    ),
    "other strides": (
        f"<{POINTS}> {{ p = Conv<strides = [2, 2]>(x, a)  q = Conv<strides = [2, 2]>(x, b)"
        "  y = Add(p, q) }",
        "<float[2,2,1,1] w = {6, 8, 10, 12}> { y = Conv(x, w) }",
        False,
    ),
    "strides": (
        f"<{POINTS}> {{ p = Conv<strides = [2, 2]>(x, a)  q = Conv<strides = [2, 2]>(x, b)"
        "  y = Add(p, q) }",
        "<float[2,2,1,1] w = {6, 8, 10, 12}> { y = Conv<strides = [2, 2]>(x, w) }",
        True,
    ),
    "one tap and three": (
        "<float[2,1,1,3] r = {1, 2, 3, 4, 5, 6}> {"
        " p = Conv<group = 2, pads = [0, 1, 0, 1]>(x, r)  y = Add(p, x) }",
        "<float[2,1,1,3] w = {1, 3, 3, 4, 6, 6}> {"
        " y = Conv<group = 2, pads = [0, 1, 0, 1]>(x, w) }",
        True,
    ),
    "the middle tap is another": (
        "<float[2,1,1,3] r = {1, 2, 3, 4, 5, 6}> {"
        " p = Conv<group = 2, pads = [0, 1, 0, 1]>(x, r)  y = Add(p, x) }",
        "<float[2,1,1,3] w = {2, 2, 3, 5, 5, 6}> {"
        " y = Conv<group = 2, pads = [0, 1, 0, 1]>(x, w) }",
        False,
    ),
    "pads at the other end": (
        "<float[2,1,1,3] r = {1, 2, 3, 4, 5, 6}> {"
        " p = Conv<group = 2, pads = [0, 2, 0, 0]>(x, r)  y = Add(p, x) }",
        "<float[2,1,1,3] w = {1, 2, 4, 4, 5, 7}> {"
        " y = Conv<group = 2, pads = [0, 0, 0, 2]>(x, w) }",
        False,
    ),
    "pads at one end": (
        "<float[2,1,1,3] r = {1, 2, 3, 4, 5, 6}> {"
        " p = Conv<group = 2, pads = [0, 2, 0, 0]>(x, r)  y = Add(p, x) }",
        "<float[2,1,1,3] w = {1, 2, 4, 4, 5, 7}> {"
        " y = Conv<group = 2, pads = [0, 2, 0, 0]>(x, w) }",
        True,
    ),
    "a dilation": (
        "<float[2,1,1,2] r = {1, 2, 3, 4}> {"
        " p = Conv<group = 2, pads = [0, 1, 0, 1], dilations = [1, 2]>(x, r)  y = Add(p, x) }",
        "<float[2,1,1,3] w = {1, 1, 2, 3, 1, 4}> {"
        " y = Conv<group = 2, pads = [0, 1, 0, 1]>(x, w) }",
        True,
    ),
    "groups that mix": (
        f"<{POINTS}, float[2,1,1,1] e = {{1, 2}}> {{"
        " p = Conv(x, a)  q = Conv<group = 2>(x, e)  y = Add(p, q) }",
        "<float[2,2,1,1] w = {2, 2, 3, 6}> { y = Conv(x, w) }",
        True,
    ),
    "groups that drop a weight": (
        f"<{POINTS}, float[2,1,1,1] e = {{1, 2}}> {{"
        " p = Conv(x, a)  q = Conv<group = 2>(x, e)  y = Add(p, q) }",
        "<float[2,1,1,1] w = {2, 6}> { y = Conv<group = 2>(x, w) }",
        False,
    ),
    "an average that counts zeros": (
        "<float[2,1,1,3] r = {1, 2, 3, 4, 5, 6}> {"
        " p = Conv<group = 2, pads = [0, 1, 0, 1]>(x, r)"
        "  q = AveragePool<kernel_shape = [1, 1]>(x)  y = Add(p, q) }",
        "<float[2,1,1,3] w = {1, 3, 3, 4, 6, 6}> {"
        " y = Conv<group = 2, pads = [0, 1, 0, 1]>(x, w) }",
        True,
    ),
    "an average of what is there": (
        "<float[2,1,1,2] r = {1, 2, 3, 4}> {"
        " p = Conv<group = 2, pads = [0, 1, 0, 0]>(x, r)"
        "  q = AveragePool<kernel_shape = [1, 2], pads = [0, 1, 0, 0]>(x)  y = Add(p, q) }",
        "<float[2,1,1,2] w = {1.5, 2.5, 3.5, 4.5}> {"
        " y = Conv<group = 2, pads = [0, 1, 0, 0]>(x, w) }",
        False,
    ),
    "a bias that the padding lacks": (
        "<float[2,1,1,1] e = {2, 3}, float[2] c = {1, 2}, float[2,1,1,2] r = {1, 2, 3, 4}> {"
        " p = Conv<group = 2>(x, e, c)  y = Conv<group = 2, pads = [0, 1, 0, 0]>(p, r) }",
        "<float[2,1,1,2] w = {2, 4, 9, 12}, float[2] v = {3, 14}> {"
        " y = Conv<group = 2, pads = [0, 1, 0, 0]>(x, w, v) }",
        False,
    ),
    "a bias without padding": (
        "<float[2,1,1,1] e = {2, 3}, float[2] c = {1, 2}, float[2,1,1,2] r = {1, 2, 3, 4}> {"
        " p = Conv<group = 2>(x, e, c)  y = Conv<group = 2>(p, r) }",
        "<float[2,1,1,2] w = {2, 4, 9, 12}, float[2] v = {3, 14}> { y = Conv<group = 2>(x, w, v) }",
        True,
    ),
    "pads that are not stated": (
        "<float[2,1,1,3] r = {1, 2, 3, 4, 5, 6}> {"
        ' p = Conv<group = 2, auto_pad = "SAME_UPPER">(x, r)  y = Add(p, x) }',
        "<float[2,1,1,3] w = {1, 3, 3, 4, 6, 6}> {"
        " y = Conv<group = 2, pads = [0, 1, 0, 1]>(x, w) }",
        False,
    ),
    "weights that are no normal numbers": (
        f"<{POINTS}, float[2,1,1] s = {{1e-20, 1e-20}}> {{"
        " p = Conv(x, a)  q = Mul(p, s)  o = Mul(q, s)  y = Neg(o) }",
        "<float[2,2,1,1] w = {-1e-40, -2e-40, -3e-40, -4e-40}> { y = Conv(x, w) }",
        False,
    ),
    "channels in another order": (
        f"<{POINTS}, int64[2] k = {{1, 0}}> {{ p = Gather<axis = 1>(x, k)  y = Conv(p, a, c) }}",
        "<float[2,2,1,1] w = {2, 1, 4, 3}, float[2] v = {1, 2}> { y = Conv(x, w, v) }",
        True,
    ),
    "channels in their own order": (
        f"<{POINTS}, int64[2] k = {{1, 0}}> {{ p = Gather<axis = 1>(x, k)  y = Conv(p, a, c) }}",
        "<float[2,2,1,1] w = {1, 2, 3, 4}, float[2] v = {1, 2}> { y = Conv(x, w, v) }",
        False,
    ),
    "a channel twice": (
        f"<{POINTS}, int64[2] k = {{-1, 1}}> {{ p = Gather<axis = 1>(x, k)  y = Conv(p, a, c) }}",
        "<float[2,2,1,1] w = {0, 3, 0, 7}, float[2] v = {1, 2}> { y = Conv(x, w, v) }",
        True,
    ),
    "rows in another order": (
        f"<{POINTS}, int64[2] k = {{1, 0}}> {{ p = Gather<axis = 2>(x, k)  y = Conv(p, a, c) }}",
        "<float[2,2,1,1] w = {2, 1, 4, 3}, float[2] v = {1, 2}> { y = Conv(x, w, v) }",
        False,
    ),
    "channels in another order before they come second": (
        f"<{POINTS}, int64[2] k = {{1, 0}}> {{ q = Transpose<perm = [1, 0, 2, 3]>(x)"
        "  p = Gather<axis = 0>(q, k)  r = Transpose<perm = [1, 0, 2, 3]>(p)  y = Conv(r, a, c) }",
        "<float[2,2,1,1] w = {2, 1, 4, 3}, float[2] v = {1, 2}> { y = Conv(x, w, v) }",
        True,
    ),
    "rows in another order before channels come first": (
        f"<{POINTS}, int64[2] k = {{1, 0}}> {{ p = Gather<axis = 2>(x, k)"
        "  r = Transpose<perm = [1, 0, 2, 3]>(p)  y = Conv(r, a, c) }",
        "<float[2,2,1,1] w = {2, 1, 4, 3}, float[2] v = {1, 2}>"
        " { r = Transpose<perm = [1, 0, 2, 3]>(x)  y = Conv(r, w, v) }",
        False,
    ),
    "an affine": (
        "<float[2,1,1] s = {2, 3}, float[2,1,1] t = {4, 5}> { p = Mul(x, s)  y = Add(p, t) }",
        "<float[2,1,1,1] w = {2, 3}, float[2] v = {4, 5}> { y = Conv<group = 2>(x, w, v) }",
        True,
    ),
    "an affine with another shift": (
        "<float[2,1,1] s = {2, 3}, float[2,1,1] t = {4, 5}> { p = Mul(x, s)  y = Add(p, t) }",
        "<float[2,1,1,1] w = {2, 3}, float[2] v = {5, 4}> { y = Conv<group = 2>(x, w, v) }",
        False,
    ),
}


@pytest.mark.parametrize(("source", "result", "holds"), CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_convolutions(source: str, result: str, holds: bool) -> None:
    assert is_proved(f"{HEAD} {source}", f"{HEAD} {result}", STEP) == holds


ROWS = "(float[K,2,2] x) => (float[K,2,2] y)"
MATRICES = f"float[2,2] {A}, float[2,2] {B}, float[2] c = {{1, 2}}"
PRODUCTS = {
    "a sum": ("p = MatMul(x, a)  q = MatMul(x, b)  y = Add(p, q)", "{6, 8, 10, 12}", True),
    "in a row": ("p = MatMul(x, a)  y = MatMul(p, b)", "{19, 22, 43, 50}", True),
    "in the other order": ("p = MatMul(x, b)  y = MatMul(p, a)", "{19, 22, 43, 50}", False),
    "the value itself": ("p = MatMul(x, a)  y = Add(p, x)", "{2, 2, 3, 5}", True),
    "the value twice": ("p = MatMul(x, a)  q = Sum(p, x, x)  y = Add(q, x)", "{4, 2, 3, 7}", True),
    "from the left": ("p = MatMul(a, x)  q = MatMul(b, x)  y = Add(p, q)", "{6, 8, 10, 12}", False),
    "a product of data": ("p = MatMul(x, x)  y = MatMul(p, a)", "{1, 2, 3, 4}", False),
    "a bias": ("p = MatMul(x, a)  q = Add(p, c)  y = Add(q, x)", "{2, 2, 3, 5}", False),
}


@pytest.mark.parametrize(("body", "weight", "holds"), PRODUCTS.values(), ids=PRODUCTS)
def test_products(body: str, weight: str, holds: bool) -> None:
    result = f"{ROWS} <float[2,2] w = {weight}> {{ y = MatMul(x, w) }}"
    assert is_proved(f"{ROWS} <{MATRICES}> {{ {body} }}", result, STEP) == holds


def test_a_product_without_a_bias_has_the_sum_before_it() -> None:
    """The layer has no name of the source; the Add behind it has."""
    head = f"{ROWS} <{MATRICES}, float[2,2] w = {{2, 2, 3, 5}}>"
    source = "p = MatMul(x, a)  q = Add(p, c)  y = Add(q, x)"
    assert is_found(head, source, "m = MatMul(x, w)  y = Add(m, c)")
    assert not is_found(head, source, "m = MatMul(x, w)  y = Sub(m, c)")


BEHIND = """(float[1,2,4,4] x) => (float[1,2,M,K] y) <float[2,2,1,1] a = {{1, 2, 3, 4}},
    float[2,2,1,1] b = {{5, 6, 7, 8}}, float[2,1,1] k = {{2, 4}}, float[2,1,1] t = {{{t}, 0}},
    float[2,2,1,1] w = {{{w}}}, float[2] v = {{{v}}}>"""


@pytest.mark.parametrize(
    ("t", "w", "v", "pads", "holds"),
    [
        ("0", "12, 32, 20, 48", "0, 0", "0, 0, 0, 0", True),
        ("0", "12, 32, 20, 49", "0, 0", "0, 0, 0, 0", False),
        ("0", "6, 8, 10, 12", "0, 0", "0, 0, 0, 0", False),
        ("3", "12, 32, 20, 48", "18, 30", "0, 0, 0, 0", True),
        ("3", "12, 32, 20, 48", "18, 31", "0, 0, 0, 0", False),
        ("0", "12, 32, 20, 48", "0, 0", "1, 1, 1, 1", True),
        ("3", "12, 32, 20, 48", "18, 30", "1, 1, 1, 1", False),
    ],
)
def test_layers_that_become_one_take_an_affine_that_passed_a_pool(
    t: str, w: str, v: str, pads: str, holds: bool
) -> None:
    layers = f"p = Conv<pads = [{pads}]>(m, a)  q = Conv<pads = [{pads}]>(m, b)  y = Add(p, q)"
    pool = "AveragePool<kernel_shape = [2, 2], strides = [2, 2]>"
    source = f"s = Mul(x, k)  r = Add(s, t)  m = {pool}(r)  {layers}"
    result = f"m = {pool}(x)  y = Conv<pads = [{pads}]>(m, w, v)"
    assert is_found(BEHIND.format(t=t, w=w, v=v), source, result) is holds


@pytest.mark.parametrize(
    ("sums", "result", "holds"),
    [
        ("r = Add(p, q)  y = Add(r, z)", "m = Conv(x, w, c)  y = Add(m, z)", True),
        ("r = Add(p, q)  t = Mul(r, s)  y = Add(t, z)",
         "m = Conv(x, w, c)  t = Mul(m, s)  y = Add(t, z)", True),
        ("r = Add(p, q)  y = Add(r, z)", "m = Conv(x, a, c)  y = Add(m, z)", False),
        ("r = Add(p, z)  y = Add(r, q)", "m = Conv(x, a, c)  y = Add(m, z)", False),
    ],
)  # fmt: skip
def test_a_merged_layer_with_a_name_of_its_own_is_found(
    sums: str, result: str, holds: bool
) -> None:
    head = f"""(float[1, 2, N, N] x, float[1, 2, N, N] z) => (float[1, 2, N, N] y) <{POINTS},
    float[2, 1, 1] s = {{2, 3}}, float[2, 2, 1, 1] w = {{3, 2, 3, 7}}>"""
    assert is_found(head, f"p = Conv(x, a, c)  q = Mul(x, s)  {sums}", result) is holds


def test_paths_through_sums_are_followed_once() -> None:
    """64 sums of a value and itself: 2^64 paths, and a weight of 2^64."""
    sums = "  ".join(f"x{i + 1} = Add(x{i}, x{i})" for i in range(64))
    weight = f"{{{2.0**64}, {2.0**65}, {3 * 2.0**64}, {2.0**66}}}"
    source = f"{ROWS} <{MATRICES}> {{ x0 = MatMul(x, a)  {sums}  y = Identity(x64) }}"
    result = f"{ROWS} <float[2,2] w = {weight}> {{ y = MatMul(x, w) }}"
    assert is_proved(source, result, STEP)
    assert not is_proved(source, result.replace(f"{2.0**66}", f"{2.0**67}"), STEP)


@pytest.mark.parametrize("grow", [convolutions, products])
def test_random_sums_are_proved_or_unproved(grow: object) -> None:
    """And a weight or bias that is another number is refused."""
    mapped = 0
    for seed in range(24):
        source: ModelProto = grow(seed)  # type: ignore[operator]
        result = irc.compile(source, certificate=True)
        document = proof_of(source, result.model, result.certificate())
        check(source, result.model, document)
        steps = [each for each in document["steps"] if each["identity"] == "same map"]
        mapped += bool(steps)
        for step in steps:
            forged = ModelProto()
            forged.CopyFrom(result.model)
            (node,) = [n for n in forged.graph.node if n.output[0] == step["operation"]]
            (tensor,) = [t for t in forged.graph.initializer if t.name == node.input[1]]
            array = numpy_helper.to_array(tensor).copy()
            array.flat[seed % array.size] += np.float32(0.125)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
            with pytest.raises(irc.Rejected):
                check(source, forged, sealed(document, source, forged))
    assert mapped >= 3
