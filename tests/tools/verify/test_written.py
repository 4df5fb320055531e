"""What verification runs is the file that was written, before it is in place."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

import harness
import onnx
import pytest
from graphs import F32, Graph, batch_norm
from irc.backends.onnx import data_file, saving
from irc.backends.onnx.output_stream import write_pieces
from irc.tools.cli.main import main
from onnx import ModelProto

Write = Callable[..., None]


def network() -> ModelProto:
    """A convolution that is folded into, and one that stays as it is."""
    graph = Graph(dtype=F32)
    x = graph.input("x", ["N", 4, 9, 9])
    hidden = graph.node(
        "Conv", [x, graph.initializer(graph.random(4, 4, 3, 3), "w0")], "c0", "conv0"
    )
    hidden = graph.node("Relu", [graph.batch_norm(hidden, batch_norm(4, 1), "b0", "bn0")], "r0")
    graph.output(
        graph.node(
            "Conv", [hidden, graph.initializer(graph.random(4, 4, 3, 3), "w1")], "y", "conv1"
        )
    )
    return graph.model()


def damaging(write: Write) -> Write:
    """The writer, with 64 bytes of zeros in the middle of the weights that it wrote."""

    def damage(stream: BinaryIO, *rest: Any) -> None:
        write(stream, *rest)
        stream.flush()
        path = Path(stream.name)
        data = path.read_bytes()
        at = data.rindex(b"\x3f") - 64
        path.write_bytes(data[:at] + bytes(64) + data[at + 64 :])

    return damage


STORES = {"one file": (False, False), "external": (True, False), "folded external": (True, True)}


@pytest.mark.parametrize(("external", "large"), STORES.values(), ids=STORES)
@pytest.mark.parametrize("when", ["each", "end"])
def test_what_is_damaged_when_it_is_written_does_not_come_into_place(
    when: str,
    external: bool,
    large: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Data that nobody changed are copied before, and stay."""
    if large:
        harness.take_all_for_large(monkeypatch)
    source, folder = tmp_path / "in.onnx", tmp_path / "out"
    onnx.save(
        network(), source, save_as_external_data=external, location="in.bin", size_threshold=0
    )
    folder.mkdir()
    command = ["compile", str(source), "-o", str(folder / "out.onnx"), f"--verify={when}", "-q"]
    command += ["--fold-map", str(folder / "map.json"), "--report", str(folder / "report.html")]
    assert main(command) == 0, capsys.readouterr().err
    good = names_in(folder)
    assert {"map.json", "out.onnx", "report.html"} < good
    assert any(name.endswith(".data") for name in good) == large
    for name in good:
        (folder / name).unlink()
    for module in (saving, data_file):
        monkeypatch.setattr(module, "write_pieces", damaging(write_pieces))
    assert main(command) == 1
    message = capsys.readouterr().err
    assert "is off by" in message or "the written file is not a model" in message, message
    assert names_in(folder) <= {"out.onnx.deviation"} | (
        {"in.bin"} if external and not large else set()
    )


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names here")
@pytest.mark.parametrize("place", ["-", "pipe"])
def test_what_cannot_be_read_back_is_verified_first(
    place: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    source, pipe = tmp_path / "in.onnx", tmp_path / "pipe"
    onnx.save(network(), source)
    os.mkfifo(pipe)

    def compiled() -> tuple[int, bytes, bytes]:
        """Status, what was written, and what was said."""
        command = ["compile", str(source), "--verify", "-q", "-o"]
        if place == "-":
            return main([*command, "-"]), *capfdbinary.readouterr()
        with ThreadPoolExecutor(1) as pool:
            read = pool.submit(pipe.read_bytes)
            return main([*command, str(pipe)]), read.result(), capfdbinary.readouterr().err

    status, out, err = compiled()
    assert (status, err) == (0, b"")
    assert len(onnx.load_from_string(out).graph.node) == 3
    blocks = saving._raw_blocks
    monkeypatch.setattr(
        saving, "_raw_blocks", lambda *given: [b"".join(blocks(*given)).replace(b"Relu", b"Tanh")]
    )
    status, out, err = compiled()
    assert (status, out) == (1, b"")
    assert err.startswith(b"irc: the written model: tensor 'r0' is off by")
