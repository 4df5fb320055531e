"""Models of many parts."""

from collections.abc import Iterator
from itertools import pairwise

from ._build import Item, floats, node, raw_floats, simple


def chains() -> Iterator[Item]:
    """A long chain, with and without an initializer per node."""
    count = 3000
    names = ["x", *(f"v{index}" for index in range(count - 1)), "y"]
    yield (
        "chain_3000",
        simple([node("Relu", [source], [target]) for source, target in pairwise(names)]),
    )
    yield (
        "chain_600_with_weights",
        simple(
            [
                node("Add", [source, f"w{index}"], [target])
                for index, (source, target) in enumerate(
                    zip(names[:600], [*names[1:600], "y"], strict=True)
                )
            ],
            initializers=[floats(f"w{index}", [4], index) for index in range(600)],
        ),
    )


def wide() -> Iterator[Item]:
    """One value with many readers, one node with many inputs, one tensor of a mebibyte."""
    branches = [f"b{index}" for index in range(500)]
    readers = [node("Neg", ["x"], [name]) for name in branches]
    yield "fan_500", simple([*readers, node("Sum", branches, ["y"])])
    yield "outputs_500", simple(readers, outputs=branches)
    yield (
        "tensor_1_mib",
        simple([node("Add", ["x", "w"], ["y"])], initializers=[raw_floats("w", [512, 512])]),
    )
