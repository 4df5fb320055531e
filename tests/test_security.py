"""What SECURITY.md promises, as far as no other test is about it."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import harness
import irc
import numpy as np
import onnx
import pytest
from harness import EXAMPLE
from irc.tools.cli.main import main
from onnx import TensorProto, helper, numpy_helper

RUNS_CODE = {
    "eval",
    "exec",
    "compile",
    "__import__",
    "system",
    "popen",
    "execv",
    "execve",
    "spawnv",
    "CDLL",
    "LoadLibrary",
}
"""Calls that make code of data."""

PROCESSES = {
    "support/jobs.py": "irc itself, by loky",
    "tools/verify/bisection.py": "the user's --command",
    "support/isolation.py": (
        "a copy of itself, for shape inference, and irc itself, for onnxruntime"
    ),
}
"""Files that start processes, by `subprocess`, `multiprocessing` or `os.fork`, and which."""


LOADS_LIBRARIES = "backends/runtime/sessions.py"
"""The file that loads the libraries of --custom-ops, which a user names, never a model."""


def sources() -> Iterator[tuple[str, ast.AST]]:
    """Every module of the package, parsed."""
    for path in [
        *harness.ROOT.glob("*.py"),
        *(p for folder in harness.FOLDERS for p in (harness.ROOT / folder).rglob("*.py")),
    ]:
        yield path.relative_to(harness.ROOT).as_posix(), ast.parse(path.read_text(encoding="utf-8"))


def imports(tree: ast.AST) -> set[str]:
    """The top-level names of all modules that are imported, anywhere."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found


@pytest.mark.slow
def test_nothing_makes_code_of_data_or_opens_a_connection() -> None:
    started = {}
    for name, tree in sources():
        assert not imports(tree) & {
            "socket",
            "http",
            "urllib",
            "ssl",
            "asyncio",
            "ftplib",
            "requests",
        }, name
        assert not imports(tree) & {
            "pickle",
            "marshal",
            "shelve",
            "dill",
            "cloudpickle",
            "ctypes",
            "code",
            "runpy",
        }, name
        if imports(tree) & {"subprocess", "multiprocessing", "concurrent"}:
            started[name] = PROCESSES.get(name)
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            function = node.func
            called = (
                function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
            )
            if called == "fork":
                started[name] = PROCESSES.get(name)
            plain = isinstance(function, ast.Name) or ast.unparse(function).startswith(
                ("os.", "builtins.")
            )
            runs_code = plain and called in RUNS_CODE and name != "__init__.py"
            assert not runs_code, f"{name}:{node.lineno}: {called}"
            if ast.unparse(function) in ("np.load", "np.lib.format.read_array"):
                pickles = [
                    ast.unparse(keyword.value)
                    for keyword in node.keywords
                    if keyword.arg == "allow_pickle"
                ]
                assert pickles == ["False"], f"{name}:{node.lineno}: {called}"
            if ast.unparse(function) == "torch.load":
                assert "weights_only=True" in map(ast.unparse, node.keywords), (
                    f"{name}:{node.lineno}"
                )
            if "register_custom_ops_library" in called:
                assert name == LOADS_LIBRARIES, f"{name}:{node.lineno}"
    assert started == PROCESSES


def referring(folder: Path, location: str) -> Path:
    """A model in `folder` whose weight stands at `location`."""
    weight = TensorProto(
        name="w", dims=[4, 4], data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL
    )
    weight.external_data.add(key="location", value=location)
    info = [helper.make_tensor_value_info(name, 1, [4, 4]) for name in "xy"]
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], "g", info[:1], info[1:], [weight]
    )
    path = folder / "model.onnx"
    path.write_bytes(helper.make_model(graph).SerializeToString())
    return path


@pytest.mark.parametrize("kind", ["above", "absolute", "through", "link", "linked folder"])
def test_external_data_outside_the_models_folder_is_not_read(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    secret = tmp_path / "secret.bin"
    secret.write_bytes(np.ones((4, 4), np.float32).tobytes())
    (folder / "link.bin").symlink_to(secret)
    (folder / "linked").symlink_to(tmp_path)
    locations = {
        "above": "../secret.bin",
        "absolute": str(secret),
        "through": "sub/../../secret.bin",
        "link": "link.bin",
        "linked folder": "linked/secret.bin",
    }
    path = referring(folder, locations[kind])
    with pytest.raises(irc.ModelError, match="lies outside the model's folder"):
        irc.compile(path)


def test_external_data_that_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for location in (".", "pipe", "", "/dev/zero"):
        with pytest.raises(
            irc.ModelError, match=r"outside the model's folder|is not a regular file"
        ):
            irc.compile(referring(tmp_path, location))


def test_an_output_is_the_old_one_until_the_new_one_is_complete(tmp_path: Path) -> None:
    model, output = tmp_path / "kill.onnx", tmp_path / "kill.irc.onnx"
    model.write_bytes(EXAMPLE.read_bytes())
    output.write_bytes(b"old")
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent / "support" / "accidents")}
    done = subprocess.run(
        [sys.executable, "-m", "irc", "compile", model], env=env, capture_output=True, check=False
    )
    assert done.returncode < 0
    assert output.read_bytes() == b"old"


EVIL = "\x1b]0;title\x07\x1b[31m\r\u202e\u2028\x85[red]\nirc: made up"


def evil_model(folder: Path, name: str, *, fault: bool = False) -> Path:
    """Conv and BatchNormalization, all of whose names a terminal would obey.

    With `fault` no runtime takes it.
    """
    weight, vector = np.ones((3, 3, 1, 1), np.float32), np.arange(1, 4, dtype=np.float32)
    tensors = [
        numpy_helper.from_array(weight, "w" + EVIL),
        numpy_helper.from_array(vector, "p" + EVIL),
    ]
    nodes = [
        helper.make_node("Conv", ["x", tensors[0].name], ["c" + EVIL], "conv" + EVIL),
        helper.make_node(
            "BatchNormalization", ["c" + EVIL, *[tensors[1].name] * 4], ["n" + EVIL], "bn" + EVIL
        ),
        helper.make_node("Mul", ["n" + EVIL, "n" + EVIL], ["m" + EVIL]),
        helper.make_node("Add", ["m" + EVIL, tensors[1].name], ["y"], "add" + EVIL),
    ]
    opsets = [helper.make_opsetid("", 17)]
    if fault:
        nodes.append(helper.make_node("Op" + EVIL, ["y"], ["z"], "odd" + EVIL, domain="d" + EVIL))
        opsets.append(helper.make_opsetid("d" + EVIL, 1))
    info = helper.make_tensor_value_info
    result = info(nodes[-1].output[0], 1, None)
    graph = helper.make_graph(nodes, "g", [info("x", 1, [1, 3, 4, 3])], [result], tensors)
    path = folder / name
    path.write_bytes(
        helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()
    )
    return path


def test_names_of_a_model_do_not_reach_the_terminal_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    evil_model(tmp_path, "a.onnx")
    evil_model(tmp_path, "f.onnx", fault=True)
    broken = onnx.load("a.onnx")
    broken.graph.node[1].input[1] = "gone" + EVIL
    onnx.save(broken, "b.onnx")
    (tmp_path / "t.irc").write_text("graph(%x: f32[3]) { %y = \x1b[31m abs(%x)\r return(%y) }")
    calls = [
        "compile a.onnx -o o.onnx --fold-map m.json --explain --time-passes --verify-ir",
        "compile f.onnx -o fo.onnx --fold-map fm.json --explain --print-after all --diff",
        "compile f.onnx -o g.onnx --verify",
        "compile b.onnx",
        "compile t.irc",
        "dump f.onnx",
        "dump f.onnx --diff --passes default",
        "diff a.onnx f.onnx",
        "align a.onnx o.onnx --map m.json",
        "align f.onnx fo.onnx",
        "foldmap show m.json",
        "foldmap check o.onnx fm.json",
        "foldmap check a.onnx m.json",
        "foldmap export o.onnx m.json --to nncf -o e.json",
        "bisect a.onnx -q",
        "unfold a.onnx m.json -o u.onnx",
    ]
    seen = ""
    for call in calls:
        main(call.split())
        out, err = capsys.readouterr()
        for line in [*out.split("\n"), *err.split("\n")]:
            assert all(char.isprintable() or char == "\t" for char in line), (call, line)
            assert not line.startswith("irc: made up"), call
        seen += out + err
    assert "\\u{1b}]0;title\\u{7}" in seen
