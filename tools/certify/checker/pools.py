"""Windows that are the same though an attribute differs."""

from __future__ import annotations

from collections.abc import Sequence

from .program import Datum, Operation, Unproved, static

POOLS = frozenset(("MaxPool", "AveragePool", "LpPool"))


def windows(pool: Operation, axis: int, extent: object) -> int | None:
    """Return the windows along an axis of a pool with `ceil_mode`, None if runtimes differ."""
    given, place = pool.attributes, axis + len(pool.attributes.get("kernel_shape", ()))
    if (
        not isinstance(extent, int)
        or not given.get("ceil_mode")
        or given.get("auto_pad", b"NOTSET") != b"NOTSET"
    ):
        return None
    pads, stride = given.get("pads", (0,) * 2 * place), given.get("strides", (1,) * place)[axis]
    reach = given.get("dilations", (1,) * place)[axis] * (given["kernel_shape"][axis] - 1) + 1
    last = -(-(extent + pads[axis] + pads[place] - reach) // stride)
    return last + 1 if 0 <= last * stride < extent + pads[axis] else None


def zero_padding(value: Datum, perm: Sequence[int] | None = None) -> tuple[Datum, list[int]] | None:
    """Return the data of a Pad of zeros around positions, and its pads along these.

    With `perm` the positions are the last axes of the value with its axes permuted.
    """
    pad = value.producer
    if (
        pad is None
        or pad.domain
        or pad.kind != "Pad"
        or pad.attributes.get("mode", b"constant") != b"constant"
    ):
        return None
    pads = pad.integers("pads" if pad.version > 1 else "paddings", 1)
    data, number = pad.operand(0), pad.operand(2)
    rank = 0 if pads is None else len(pads) // 2
    if (
        pads is None
        or data is None
        or data.rank != rank
        or rank < 3
        or pad.operand(3) is not None
        or min(pads) < 0
    ):
        return None
    if pad.attributes.get("value", 0.0) or (
        number is not None and (number.stored is None or number.stored.array.any())
    ):
        return None
    order = range(rank) if perm is None else perm
    pads = [*(pads[axis] for axis in order), *(pads[axis + rank] for axis in order)]
    if any((*pads[:2], *pads[rank : rank + 2])):
        return None
    return data, [*pads[2:rank], *pads[rank + 2 :]]


def check_padded(source: Operation, result: Operation, padding: list[int]) -> None:
    """Prove that a Conv, or an AveragePool that counts its padding, is the source's behind a Pad.

    Raises Unproved.
    """
    if source.kind not in ("AveragePool", "Conv"):
        raise Unproved(f"{source.kind} is no AveragePool, and no Conv")
    own = [dict(each.attributes) for each in (source, result)]
    pads = [tuple(each.pop("pads", (0,) * len(padding))) for each in own]
    counts = [each.pop("count_include_pad", 0) for each in own]
    automatic = [each.pop("auto_pad", b"NOTSET") for each in own]
    pairs = zip(automatic, pads, strict=True)
    is_stated = [auto == b"NOTSET" or (auto == b"VALID" and not any(each)) for auto, each in pairs]
    if own[0] != own[1] or any(each.get("ceil_mode", 0) for each in own) or not all(is_stated):
        raise Unproved("an attribute differs, or pads are not stated")
    if source.kind == "Conv":
        counts = [1, 1]
    else:
        _check_pads_of_pool(result, pads[1])
    if not counts[1] or (not counts[0] and any(pads[0])):
        raise Unproved("zeros of the padding are not counted")
    if len(pads[0]) != len(padding) or pads[1] != tuple(
        a + b for a, b in zip(pads[0], padding, strict=True)
    ):
        raise Unproved("the pads differ")


def _check_pads_of_pool(pool: Operation, pads: Sequence[int]) -> None:
    """Refuse pads that runtimes refuse: wider than the window, or around no elements."""
    kernel, data = pool.attributes.get("kernel_shape", ()), pool.operand(0)
    if len(pads) != 2 * len(kernel) or any(
        pad >= size for pad, size in zip(pads, kernel * 2, strict=True)
    ):
        raise Unproved("a pad of the pool is no smaller than its window")
    if data is None or data.extents is None or 0 in data.extents:
        raise Unproved("the data of the pool have no elements, or an unknown rank")


def check_same_windows(source: Operation, result: Operation) -> None:
    """Prove that `ceil_mode` has no effect: the strides cover the padded data without a rest.

    Raises Unproved.
    """
    if source.kind not in POOLS:
        raise Unproved(f"{source.kind} is no pool")
    attributes = [
        {k: v for k, v in each.attributes.items() if k != "ceil_mode"} for each in (source, result)
    ]
    if attributes[0] != attributes[1] or len(source.outputs) != len(result.outputs):
        raise Unproved("another attribute differs")
    check_exact(source)


def check_filled(pool: Operation) -> None:
    """Prove that each window has an element of the data. Raises Unproved.

    Pads are smaller than windows, so only one with dilations can lie around data that it steps
    over.
    """
    given, data = pool.attributes, pool.operand(0)
    dilations = given.get("dilations", ())
    has_pads = any(given.get("pads", ())) or given.get("auto_pad", b"NOTSET") not in (
        b"NOTSET",
        b"VALID",
    )
    if not has_pads or set(dilations) <= {1}:
        return
    extents = () if data is None or data.extents is None else data.extents[2:]
    pairs = list(zip(extents, dilations, strict=False))
    if len(pairs) < len(dilations) or any(
        not isinstance(extent, int) or extent < d for extent, d in pairs if d > 1
    ):
        raise Unproved("a window may have no element of the data")


def check_exact(pool: Operation) -> None:
    """Prove that the strides of a pool cover the padded data without a rest. Raises Unproved."""
    given = pool.attributes
    data = pool.operand(0)
    extents = None if data is None or data.extents is None else static(data.extents[2:])
    if extents is None or given.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
        raise Unproved("the extents are unknown")
    rank = len(extents)
    kernel, pads = given.get("kernel_shape", ()), given.get("pads", (0,) * 2 * rank)
    strides, dilations = given.get("strides", (1,) * rank), given.get("dilations", (1,) * rank)
    if len(kernel) != rank or len(pads) != 2 * rank:
        raise Unproved("the windows have another rank")
    for axis, extent in enumerate(extents):
        covered = (
            extent + pads[axis] + pads[axis + rank] - (dilations[axis] * (kernel[axis] - 1) + 1)
        )
        if covered < 0 or covered % strides[axis]:
            raise Unproved("a window reaches beyond the data")
