"""The table of `irc align` on terminals of any width.

Names stay legible, what matters less gives way.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from pathlib import Path

import onnx
import pytest
from rich.cells import cell_len
from verification import text

BODY = "g (float[2,4] x) => (float[2,4] y) {{ a = Relu(x) b = {}(a) y = Sigmoid(b) }}"
NAMES = (
    "/model/encoder/layers.0/self_attn/{}Relu_output_0",
    "/model/encoder/layers.0/self_attn/{}Sin_output_0",
)
COLUMNS = ("shape", "max abs", "max rel", "cosine", "SQNR dB", "of bound", "undecided", "inputs")


def model(operator: str, prefix: str = "", names: tuple[str, ...] = NAMES) -> onnx.ModelProto:
    made = text(BODY.format(operator))
    for node in made.graph.node:
        for fields in (node.input, node.output):
            for i, name in enumerate(fields):
                if name in "ab":
                    fields[i] = names["ab".index(name)].format(prefix)
    return made


def printed(
    folder: Path, width: int | None, first: onnx.ModelProto, second: onnx.ModelProto
) -> str:
    """What `irc align` prints on a terminal of some width; None is a pipe."""
    for name, proto in (("a.onnx", first), ("b.onnx", second)):
        onnx.save(proto, folder / name)
    command = [sys.executable, "-m", "irc", "align", "a.onnx", "b.onnx"]
    if width is None:
        return subprocess.run(
            command, cwd=folder, stdout=subprocess.PIPE, text=True, check=False
        ).stdout
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
    env = {
        key: value
        for key, value in os.environ.items()
        if key not in ("COLUMNS", "LINES", "NO_COLOR")
    }
    with subprocess.Popen(
        command, cwd=folder, stdout=theirs, stderr=subprocess.PIPE, env={**env, "TERM": "xterm"}
    ):
        os.close(theirs)
        found = b""
        with suppress(OSError):  # that the other end is closed
            while block := os.read(ours, 1 << 16):
                found += block
    os.close(ours)
    return re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", found.decode()).replace("\r\n", "\n")


def heading(out: str) -> list[str]:
    return [
        cell.strip()
        for cell in next(line for line in out.split("\n") if "┃" in line).split("┃")[1:-1]
    ]


@pytest.mark.parametrize(("width", "missing"), [(80, 4), (120, 0), (60, 5)])
def test_names_are_legible_and_the_rest_fits(width: int, missing: int, tmp_path: Path) -> None:
    out = printed(tmp_path, width, model("Sin"), model("Cos"))
    assert max(map(cell_len, out.split("\n"))) <= width
    assert "/self_attn/Relu_output_0 " in out and "/self_attn/Sin_output_0 " in out
    left_out = [name for name in COLUMNS if name not in heading(out)]
    assert len(left_out) == missing
    assert "of bound" in heading(out)
    said = re.search(
        r"there is no room for ([^:]*): --json has all", out.replace("\n", " ").replace("  ", " ")
    )
    assert set(left_out) == (set(said[1].split(", ")) if said else set())
    assert (
        "the first to diverge is '/model/encoder/layers.0/self_attn/Sin_output_0'"
        in out.replace(" \n", " ")
    )


def test_both_names_are_legible_where_they_differ(tmp_path: Path) -> None:
    out = printed(tmp_path, 80, model("Sin"), model("Sin", "renamed_"))
    assert heading(out) == ["tensor", "in the second", "max abs", "of bound"]
    assert "tn/Relu_output_0 " in out
    assert "Sin_output_0 (structure)" in out
    assert max(map(cell_len, out.split("\n"))) <= 80


def test_wide_characters_take_two_columns(tmp_path: Path) -> None:
    names = (
        "モデル/エンコーダ/レイヤー/注意機構/活性化関数/出力/一",
        "モデル/エンコーダ/レイヤー/注意機構/活性化関数/出力/二",
    )
    out = printed(tmp_path, 60, model("Sin", names=names), model("Sin", names=names))
    assert max(map(cell_len, out.split("\n"))) <= 60
    assert "活性化関数/出力/一 " in out


def test_a_pipe_takes_every_column(tmp_path: Path) -> None:
    out = printed(tmp_path, None, model("Sin"), model("Sin", "renamed_"))
    assert heading(out) == ["tensor", "in the second", *COLUMNS]
    assert NAMES[0].format("") in out


@pytest.mark.parametrize("width", [1, 10, 20])
def test_no_width_is_too_small(width: int, tmp_path: Path) -> None:
    assert "diverge" in re.sub(r"\s", "", printed(tmp_path, width, model("Sin"), model("Cos")))
