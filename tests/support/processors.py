"""What the processor of this machine computes."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from pathlib import Path


def overflows() -> bool:
    """Whether onnxruntime's int8 kernels add products in 16 bits: x86 without VNNI, on Linux."""
    info = Path("/proc/cpuinfo")
    if platform.machine() != "x86_64" or not info.exists():
        return False
    flags = set(info.read_text().split())
    return flags.isdisjoint(("avx512_vnni", "avx_vnni"))


def of_any_processor(warnings: Iterable[str]) -> tuple[str, ...]:
    """Return the warnings but those that only processors without VNNI cause."""
    return tuple(warning for warning in warnings if "without VNNI" not in warning)
