"""The command line, from outside: exit codes, messages, files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import harness
import numpy as np
import onnx
import pytest
from harness import EXAMPLE
from irc.passes import PASSES, default_pipeline
from irc.passes.pipelines import DEFAULT, DEFAULT_STAGES
from irc.tools.cli.main import main
from onnx import helper, numpy_helper


def irc(
    *arguments: str | Path, stdin: bytes = b"", cwd: Path | None = None
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "irc", *map(str, arguments)],
        input=stdin,
        capture_output=True,
        cwd=cwd,
        check=False,
    )


def one_sentence(stderr: str) -> str:
    """The message, which must be a single line without a traceback."""
    assert "Traceback" not in stderr
    assert stderr.count("\n") == 1, stderr
    assert stderr.startswith("irc: ")
    return stderr


def test_compile_writes_the_model_and_the_map(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, fold_map = tmp_path / "out.onnx", tmp_path / "map.json"
    assert main(["compile", str(EXAMPLE), "-o", str(output), "--fold-map", str(fold_map)]) == 0
    assert harness.batch_norms(onnx.load(output)) == 0
    assert len(json.loads(fold_map.read_text())["sources"]) == 8
    summary = capsys.readouterr().err
    assert "27 -> 19 operators; scales and shifts: 8 folded" in summary
    assert sorted(path.name for path in tmp_path.iterdir()) == ["map.json", "map.npz", "out.onnx"]


def test_compile_from_standard_input_to_standard_output() -> None:
    done = irc("compile", "-", "-o", "-", "-q", stdin=EXAMPLE.read_bytes())
    assert done.returncode == 0, done.stderr
    assert harness.batch_norms(onnx.load_model_from_string(done.stdout)) == 0


def test_the_default_output_stands_beside_the_model(tmp_path: Path) -> None:
    model = tmp_path / "net.onnx"
    model.write_bytes(EXAMPLE.read_bytes())
    assert main(["compile", str(model), "-q"]) == 0
    assert (tmp_path / "net.irc.onnx").exists()


def test_compiling_in_place(tmp_path: Path) -> None:
    model = tmp_path / "net.onnx"
    model.write_bytes(EXAMPLE.read_bytes())
    assert main(["compile", str(model), "-o", str(model), "--in-place", "-q"]) == 0
    assert harness.batch_norms(onnx.load(model)) == 0


def broken_files(folder: Path) -> dict[str, Path]:
    data = EXAMPLE.read_bytes()
    contents = {
        "empty": b"",
        "truncated": data[: len(data) // 2],
        "text": b"hello",
        "png": b"\x89PNG\r\n\x1a\n" * 9,
    }
    files = {name: folder / f"{name}.onnx" for name in contents}
    for name, path in files.items():
        path.write_bytes(contents[name])
    (folder / "folder.onnx").mkdir()
    external = numpy_helper.from_array(np.ones((4, 4), np.float32), "w")
    external.ClearField("raw_data")
    external.data_location = onnx.TensorProto.EXTERNAL
    external.external_data.add(key="location", value="gone.bin")
    graph = helper.make_graph([helper.make_node("Identity", ["w"], ["y"])], "g", [], [], [external])
    graph.output.append(helper.make_tensor_value_info("y", 1, [4, 4]))
    (folder / "external.onnx").write_bytes(helper.make_model(graph).SerializeToString())
    named = {"missing": "no_such", "directory": "folder", "external": "external"}
    return files | {name: folder / f"{file}.onnx" for name, file in named.items()}


EXPECTED = {
    "empty": "the file is empty",
    "truncated": "not an ONNX model, or it is truncated",
    "text": "not an ONNX model",
    "png": "not an ONNX model",
    "missing": "there is no such file",
    "directory": "is a folder",
    "external": "external data 'gone.bin' is missing",
}


@pytest.mark.parametrize("kind", EXPECTED)
def test_a_file_that_is_no_model_gives_one_sentence(kind: str, tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    path = broken_files(source)[kind]
    output = tmp_path / "out.onnx"
    done = irc("compile", path, "-o", output, "--fold-map", tmp_path / "map.json")
    assert done.returncode == 1
    message = one_sentence(done.stderr.decode())
    assert EXPECTED[kind] in message
    assert str(path) in message
    assert sorted(item.name for item in tmp_path.iterdir()) == ["in"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--passes", "FoldScaleAxes"], "did you mean FoldScaleAxis?"),
        (["--passes", "FoldConstant{limit=1}"], "options: max_bytes"),
        (["--passes", "FoldConstant{max_bytes=many}"], "takes a value of type int"),
        (["--passes", "A{"], "cannot read the passes"),
        (["--print-after", "Nothing"], "there is no pass 'Nothing'"),
    ],
)
def test_usage_errors_exit_with_2_and_write_nothing(
    arguments: list[str], expected: str, tmp_path: Path
) -> None:
    done = irc("compile", EXAMPLE, "-o", tmp_path / "out.onnx", *arguments)
    assert done.returncode == 2
    assert expected in one_sentence(done.stderr.decode())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "arguments", [["align", "-", EXAMPLE], ["align", EXAMPLE, "-"], ["diff", "-", EXAMPLE]]
)
def test_one_of_two_models_may_be_standard_input(
    arguments: list[str | Path], tmp_path: Path
) -> None:
    page = ["--html", tmp_path / "page.html"] if arguments[0] == "align" else []
    done = irc(*arguments, *page, stdin=EXAMPLE.read_bytes())
    assert done.returncode == 0, done.stderr
    if page:
        assert "standard input" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["align", "-", "-"], "only one of the models can be standard input"),
        (["diff", "-", "-"], "only one of the models can be standard input"),
        (["bisect", "-"], "bisect needs a file, not standard input"),
    ],
)
def test_standard_input_is_read_once(arguments: list[str], expected: str) -> None:
    done = irc(*arguments, stdin=EXAMPLE.read_bytes())
    assert done.returncode == 2
    assert expected in one_sentence(done.stderr.decode())


@pytest.mark.parametrize(
    "arguments", [[], ["frobnicate"], ["compile"], ["compile", "a", "--no-such-option"]]
)
def test_what_argparse_refuses_exits_with_2(arguments: list[str]) -> None:
    done = irc(*arguments)
    assert done.returncode == 2
    assert done.stderr.endswith(b" --help\n")


def test_an_output_folder_that_is_missing_is_an_error_not_a_traceback(tmp_path: Path) -> None:
    done = irc("compile", EXAMPLE, "-o", tmp_path / "no" / "out.onnx")
    assert done.returncode == 1
    assert "cannot be written" in one_sentence(done.stderr.decode())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_write_permission_is_an_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    done = irc("compile", EXAMPLE, "-o", tmp_path / "out.onnx")
    assert done.returncode == 1
    assert "cannot be written" in one_sentence(done.stderr.decode())


def test_dump_prints_text_that_dump_reads_again(tmp_path: Path) -> None:
    text = irc("dump", EXAMPLE).stdout
    assert b"nn.conv" in text
    assert b"nn.batch_norm" in text
    (tmp_path / "net.irc").write_bytes(text)
    assert irc("dump", tmp_path / "net.irc").stdout == text


def test_dump_runs_passes_and_shows_bias_add() -> None:
    text = irc("dump", EXAMPLE, "--passes", "default,UnfuseBias").stdout.decode()
    assert text.count("nn.bias_add") == 9
    assert "nn.batch_norm" not in text


def test_passes_lists_every_pass_with_its_options() -> None:
    expected = [f"default pipeline: {DEFAULT}"]
    for stage in DEFAULT_STAGES:
        expected += ["", f"{stage.purpose}, repeated until nothing changes"]
        expected += [f"    {step}: {step.reason}" for step in stage.steps]
    for name, pass_ in sorted(PASSES.items()):
        expected += ["", name, f"    {(pass_.__doc__ or '').strip().splitlines()[0]}"]
        for option in fields(pass_):  # type: ignore[arg-type]
            default = str(option.default)
            expected.append(
                f"    {option.name}={default.lower() if isinstance(option.default, bool) else default}"
            )
    assert irc("passes").stdout.decode().splitlines() == expected
    assert "    max_bytes=65536" in expected


def test_instruments_of_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [
        "--print-after",
        "SimplifyInference",
        "--dump-ir",
        str(tmp_path / "ir"),
        "--time-passes",
        "--verify-ir",
    ]
    assert (
        main(["compile", str(EXAMPLE), "-o", str(tmp_path / "out.onnx"), *options, "--explain"])
        == 0
    )
    out, error = capsys.readouterr()
    assert "// IR after SimplifyInference" in error
    assert "FoldScaleAxis" in error
    assert " ms" in error
    assert "BatchNormalization stem/bn: folded into stem/conv" in out
    names = sorted(path.name for path in (tmp_path / "ir").iterdir())
    assert names[:2] == ["00-source.irc", "01-InlineFunctions.irc"]
    assert len(names) > len(default_pipeline().flat)


def test_overridable_initializers_give_one_warning_and_an_option(tmp_path: Path) -> None:
    model = onnx.load(EXAMPLE)
    for tensor in model.graph.initializer:
        model.graph.input.append(
            helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        )
    onnx.save(model, tmp_path / "net.onnx")
    kept = irc("compile", tmp_path / "net.onnx", "-o", tmp_path / "a.onnx").stderr.decode()
    assert kept.count("warning: ") == 1
    assert "8 folds are held back" in kept
    (first,) = [line for line in kept.splitlines() if " operators; " in line]
    assert "; 8 folds held back by overridable initializers (--freeze-initializers); " in first
    assert "--freeze-initializers" in kept
    assert len(onnx.load(tmp_path / "a.onnx").graph.input) == len(model.graph.input)
    frozen = irc(
        "compile", tmp_path / "net.onnx", "-o", tmp_path / "b.onnx", "--freeze-initializers"
    ).stderr.decode()
    assert "warning" not in frozen
    assert "held back" not in frozen
    assert "8 folded" in frozen
    assert [info.name for info in onnx.load(tmp_path / "b.onnx").graph.input] == ["image"]


def test_the_same_bytes_for_any_hash_seed(tmp_path: Path) -> None:
    outputs = []
    for seed in ("0", "1", "4711"):
        folder = tmp_path / seed
        folder.mkdir()
        output, fold_map, arrays = (folder / name for name in ("out.onnx", "map.json", "map.npz"))
        command = [
            sys.executable,
            "-m",
            "irc",
            "compile",
            EXAMPLE,
            "-o",
            output,
            "--fold-map",
            fold_map,
            "-q",
        ]
        subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": seed}, check=True)
        outputs.append((output.read_bytes(), fold_map.read_bytes(), arrays.read_bytes()))
    assert len(set(outputs)) == 1


@pytest.mark.parametrize(
    ("arguments", "status"), [(["compile", str(EXAMPLE), "-o-"], 0), (["inspect", "gone.onnx"], 1)]
)
def test_a_process_ends_after_its_exit_handlers_with_all_output(
    arguments: list[str], status: int
) -> None:
    code = (
        "import atexit, os, sys; from irc.tools.cli.main import program; atexit.register(os.write,"
        f" 2, b'handled');sys.argv[1:] = {arguments!r}; sys.exit(program())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert (done.returncode, done.stderr.endswith(b"handled")) == (status, True)
    assert done.stdout == irc(*arguments).stdout


def test_a_profiler_of_the_process_has_the_last_word(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "cProfile",
        "-m",
        "irc",
        "compile",
        EXAMPLE,
        "-o",
        tmp_path / "o.onnx",
        "-q",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "function calls" in done.stdout


def test_version() -> None:
    import irc as package

    assert irc("--version").stdout.decode() == f"irc {package.__version__}\n"


@pytest.mark.parametrize(
    "locale", [{}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}]
)
def test_names_that_are_no_ascii_and_no_text_are_kept_in_any_locale(
    locale: dict[str, str], tmp_path: Path
) -> None:
    for name in ("größe".encode(), b"\xff\xfe"):
        model, fold_map, page = (
            os.fsencode(tmp_path) + b"/" + name + end for end in (b".onnx", b".json", b".html")
        )
        Path(os.fsdecode(model)).write_bytes(EXAMPLE.read_bytes())
        command = [
            sys.executable,
            "-m",
            "irc",
            "compile",
            model,
            "--in-place",
            "--fold-map",
            fold_map,
        ]
        command += ["--report", page, "--no-durations", "-q"]
        subprocess.run(command, env={**os.environ, **locale}, check=True)
        stored = json.loads(Path(os.fsdecode(fold_map)).read_bytes())["tensor_store"]["path"]
        assert stored.encode(errors="surrogateescape") == name + b".npz"
        command = [sys.executable, "-m", "irc", "foldmap", "check", model, fold_map]
        shown = subprocess.run(
            command, env={**os.environ, **locale}, capture_output=True, check=False
        )
        assert shown.returncode == 0, shown.stderr
    assert "größe.onnx".encode() in (tmp_path / "größe.html").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    "arguments",
    [
        *(["--version"], ["--help"], ["passes"], ["dump", EXAMPLE], ["diff", EXAMPLE, EXAMPLE]),
        *(
            ["compile", EXAMPLE, "-o-"],
            ["align", EXAMPLE, EXAMPLE],
            ["align", EXAMPLE, EXAMPLE, "--json=-"],
        ),
    ],
)
def test_a_full_disk_under_standard_output_is_an_error(
    arguments: list[str | Path], unbuffered: str
) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "irc", *map(str, arguments)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )
    assert done.returncode == 1
    assert (
        one_sentence(done.stderr)
        == "irc: standard output: cannot be written: No space left on device\n"
    )


@pytest.mark.slow
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("count", [1, 2])
def test_what_cannot_be_said_changes_no_status(count: int, unbuffered: str, tmp_path: Path) -> None:
    names = ["a.onnx", "b.onnx"][:count]
    for name in names:
        (tmp_path / name).write_bytes(EXAMPLE.read_bytes())
    for more, status in (([], 0), (["gone.onnx"], 1)):
        with Path("/dev/full").open("wb") as full:
            done = subprocess.run(
                [sys.executable, "-m", "irc", "compile", *names, *more, "-o", "out", "--explain"],
                stderr=full,
                cwd=tmp_path,
                check=False,
                env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            )
        assert done.returncode == status
        out = tmp_path / "out"
        written = [out] if out.is_file() else sorted(out.iterdir())
        assert len(written) == count
        for path in written:
            onnx.load(path)
            path.unlink()
