"""Several models in one `irc compile`, from outside.

Where files go, what one failure leaves of the others, bytes.
"""

from __future__ import annotations

import json
import os
import pty
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import harness
import numpy as np
import onnx
import pytest
import zoo
from harness import EXAMPLE, files
from onnx import ModelProto, TensorProto, helper, numpy_helper

ACCIDENTS = {"PYTHONPATH": str(harness.ROOT / "tests" / "support" / "accidents")}
"""Lets models meet with an accident by their names."""

IRC = [sys.executable, "-m", "irc", "compile"]


def irc(
    *arguments: str | Path, cwd: Path, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    command = [*IRC, *map(str, arguments)]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, **(env or {})},
        check=False,
    )


def place(folder: Path, *names: str, data: bytes | None = None) -> None:
    """Put the example, or `data`, to `names` in `folder`."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(EXAMPLE.read_bytes() if data is None else data)


def external(folder: Path, name: str, value: float) -> None:
    """A model `y = x * w` whose w, all `value`, stands in weights.bin beside it."""
    w = numpy_helper.from_array(np.full((4, 4), value, np.float32), "w")
    (folder / "weights.bin").write_bytes(w.raw_data)
    w.ClearField("raw_data")
    w.data_location = TensorProto.EXTERNAL
    w.external_data.add(key="location", value="weights.bin")
    info = [helper.make_tensor_value_info(value, 1, [4, 4]) for value in "xy"]
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], "g", info[:1], info[1:], [w]
    )
    (folder / name).write_bytes(helper.make_model(graph).SerializeToString())


def test_models_of_one_folder_lie_side_by_side(tmp_path: Path) -> None:
    place(tmp_path, "a.onnx", "b.onnx")
    done = irc(
        tmp_path / "a.onnx",
        "b.onnx",
        "-o",
        "out/deep",
        "--fold-map",
        "maps",
        "--jobs",
        "2",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert lines[0].startswith(
        f"{tmp_path / 'a.onnx'}: 27 -> 19 operators; scales and shifts: 8 folded; "
    )
    assert lines[1].startswith("b.onnx: 27 -> 19 operators; ")
    assert lines[2].startswith("2 models; ")
    assert sorted(files(tmp_path / "out")) == ["deep/a.irc.onnx", "deep/b.irc.onnx"]
    maps = ["a.foldmap.json", "a.foldmap.npz", "b.foldmap.json", "b.foldmap.npz"]
    assert sorted(files(tmp_path / "maps")) == maps
    assert irc(tmp_path / "a.onnx", "-o", "one.onnx", cwd=tmp_path).returncode == 0
    assert (tmp_path / "one.onnx").read_bytes() == (tmp_path / "out/deep/b.irc.onnx").read_bytes()


def test_models_of_several_folders_keep_them_and_without_a_folder_their_places(
    tmp_path: Path,
) -> None:
    place(tmp_path, "in/x/a.onnx", "in/y/z/a.onnx")
    arguments = ["in/x/a.onnx", "in/y/z/a.onnx", "-q", "--report", "pages", "--dump-ir", "ir"]
    done = irc(*arguments, "-o", "out", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(files(tmp_path / "out")) == ["x/a.irc.onnx", "y/z/a.irc.onnx"]
    assert sorted(files(tmp_path / "pages")) == ["x/a.html", "y/z/a.html"]
    assert {str(Path(name).parent) for name in files(tmp_path / "ir")} == {"x/a", "y/z/a"}
    assert irc(*arguments[:3], "-j1", cwd=tmp_path).returncode == 0
    assert [name for name in files(tmp_path / "in") if "irc" in name] == [
        "x/a.irc.onnx",
        "y/z/a.irc.onnx",
    ]


def test_one_model_goes_to_a_folder_that_exists(tmp_path: Path) -> None:
    place(tmp_path, "in/a.onnx")
    (tmp_path / "out").mkdir()
    done = irc(
        "in/a.onnx",
        "-o",
        "out",
        "--fold-map",
        "out",
        "--report",
        "out",
        "--jobs",
        "4",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(files(tmp_path / "out")) == [
        "a.foldmap.json",
        "a.foldmap.npz",
        "a.html",
        "a.irc.onnx",
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["a.onnx", "a.onnx", "-j1"], "a.onnx: the model is given twice"),
        (["a.onnx", "x/../a.onnx", "-j1"], "x/../a.onnx: the model is given twice"),
        (["a.onnx", "a.pb", "-j1"], "a.onnx and a.pb: both would be written to"),
        (["a.onnx", "a.irc.onnx", "-j1"], "a.onnx: its output would replace a.irc.onnx"),
        (["a.onnx", "-", "-j1"], "standard input can only be compiled alone"),
        (["a.onnx", "b.onnx"], "b.onnx exists, and does not come from irc: give `-o b.onnx` to"),
        (["a.onnx", "b.onnx", "--in-place", "--certificate", "c", "-j1"], "--certificate goes"),
        (["a.onnx", "b.onnx", "--in-place", "-o", "x", "--report", "b.onnx"], "b.onnx is a file"),
        (["a.onnx", "b.onnx", "-o", "-"], "not to standard output"),
        (["a.onnx", "b.onnx", "-o", "a.pb"], "a.pb is a file"),
        (["a.onnx", "b.onnx", "-o", "a.pb/deep"], "a.pb is a file"),
        (["a.onnx", "b.onnx", "-o", "c.onnx"], "c.onnx: several models go to a folder"),
        (
            ["a.onnx", "b.onnx", "--fold-map", "map.json", "-j1"],
            "map.json: several models go to a folder",
        ),
        (["a.onnx", "b.onnx", "--fold-map", "-", "-j1"], "not to standard output"),
        (["a.onnx", "b.onnx", "--print-after", "all", "-j1"], "--print-after goes with one model"),
        (["a.onnx", "b.onnx", "--diff", "-j1"], "--diff goes with one model"),
        (
            ["a.onnx", "b.onnx", "--verify", "--inputs", "x.npz", "-j1"],
            "--inputs goes with one model",
        ),
        (["a.onnx", "b.onnx", "--passes", "Fold", "-j1"], "Fold"),
        (["a.onnx", "b.onnx", "-o", "taken"], "taken/a.irc.onnx"),
        (["a.onnx", "b.onnx", "--jobs", "0"], "--jobs 0"),
        (["a.onnx", "--jobs", "0"], "--jobs 0"),
    ],
)
def test_usage_errors_exit_with_2_before_anything_runs(
    arguments: list[str], expected: str, tmp_path: Path
) -> None:
    place(tmp_path, "a.onnx", "a.pb", "a.irc.onnx", "x/c.onnx", "taken/a.irc.onnx/file")
    other = onnx.load(EXAMPLE)
    other.doc_string = "another model"
    place(tmp_path, "b.onnx", data=other.SerializeToString())
    before = files(tmp_path)
    done = irc(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("irc: ") and done.stderr.count("\n") == 1, done.stderr
    assert expected in done.stderr
    assert files(tmp_path) == before


def test_a_broken_model_fails_alone(tmp_path: Path) -> None:
    place(tmp_path, "a.onnx", "c.onnx")
    place(tmp_path, "b.onnx", data=b"hello")
    done = irc(
        "a.onnx",
        "b.onnx",
        "gone.onnx",
        "c.onnx",
        "-o",
        "out",
        "-j2",
        "-q",
        "--json",
        "-",
        cwd=tmp_path,
    )
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "b.onnx: this is not an ONNX model, or it is truncated",
        "gone.onnx: there is no such file",
        "irc: 2 of 4 models failed: b.onnx, gone.onnx",
    ]
    assert sorted(files(tmp_path / "out")) == ["a.irc.onnx", "c.irc.onnx"]
    a, b, gone, _ = json.loads(done.stdout)
    assert (a["model"], a["output"], a["error"]) == ("a.onnx", "out/a.irc.onnx", None)
    assert (a["operators"], a["affines"]) == ([27, 19], {"folded": 8})
    assert b == {
        "format": "irc.compile",
        "version": 1,
        "model": "b.onnx",
        "output": None,
        "error": "this is not an ONNX model, or it is truncated",
    }
    assert gone["error"] == "there is no such file"


@pytest.mark.slow
@pytest.mark.parametrize("jobs", ["1", "-1"])
def test_a_process_that_is_ended_takes_no_other_with_it(jobs: str, tmp_path: Path) -> None:
    names = ["a.onnx", "segv.onnx", "b.onnx", "kill.onnx", "odd.onnx", "c.onnx"]
    place(tmp_path, *names)
    done = irc(
        *names, "-o", "out", "--fold-map", "out", "--jobs", jobs, "-q", cwd=tmp_path, env=ACCIDENTS
    )
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "segv.onnx: ended by SIGSEGV",
        "kill.onnx: ended by SIGKILL, as if memory runs out",
        f"odd.onnx: ended by signal {signal.SIGRTMIN + 1}",
        "irc: 3 of 6 models failed: segv.onnx, kill.onnx, odd.onnx",
    ]
    left = files(tmp_path / "out")
    assert sorted(left) == sorted(
        f"{name}.{end}" for name in "abc" for end in ("foldmap.json", "foldmap.npz", "irc.onnx")
    )
    onnx.load_model_from_string(left["c.irc.onnx"])


def test_names_may_look_like_options(tmp_path: Path) -> None:
    place(tmp_path, "-a.onnx", "--quiet.onnx")
    done = irc("-q", "-j1", "--", "-a.onnx", "--quiet.onnx", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    done = irc("-q", "-o=-out", "--fold-map=-out", "--", "-a.onnx", "--quiet.onnx", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    beside = ["-a.irc.onnx", "--quiet.irc.onnx"]
    maps = [f"{name}.foldmap.{end}" for name in ("-a", "--quiet") for end in ("json", "npz")]
    assert sorted(path.name for path in tmp_path.glob("*.irc.onnx")) == sorted(beside)
    assert sorted(files(tmp_path / "-out")) == sorted([*beside, *maps])


@pytest.mark.parametrize("size", [0, 100])
def test_a_sentence_for_each_model_where_there_is_no_place_for_temporary_files(
    size: int, tmp_path: Path
) -> None:
    place(tmp_path, "a.onnx", "b.onnx")
    done = subprocess.run(
        [*IRC, "a.onnx", "b.onnx", "-o", "out", "--time-passes"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)),
    )
    assert done.returncode == 1
    *lines, last = done.stderr.splitlines()
    assert [line.split(": ")[0] for line in lines] == ["a.onnx", "b.onnx"], done.stderr
    assert last == "irc: 2 of 2 models failed: a.onnx, b.onnx"
    assert files(tmp_path / "out") == {}


def test_warnings_and_explanations_name_their_model(tmp_path: Path) -> None:
    place(tmp_path, "a.onnx", "b.onnx")
    done = irc("a.onnx", "b.onnx", "-j1", "--explain", "--time-passes", "--verify", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    *lines, _ = done.stderr.splitlines()
    assert [line.split(":")[0] for line in lines] == ["a.onnx"] * (len(lines) // 2) + ["b.onnx"] * (
        len(lines) // 2
    )
    lines = done.stdout.splitlines()
    assert [line.split(":")[0] for line in lines] == ["a.onnx"] * (len(lines) // 2) + ["b.onnx"] * (
        len(lines) // 2
    )
    assert "b.onnx: BatchNormalization stem/bn: folded into stem/conv" in lines


def models(folder: Path) -> list[str]:
    """Names of models in `folder` and two below it, with about every character."""
    wanted = ("string/", "capture/", "function_sharing/", "name/")
    found: dict[str, ModelProto] = {}
    for name, model in zoo.models():
        family = next((family for family in wanted if name.startswith(family)), None)
        if family and not zoo.is_odd(name):
            found.setdefault(family.rstrip("/"), model)
    assert len(found) == len(wanted)
    names = [f"x/{name}.onnx" for name in found]
    place(folder, "größe.onnx", "x/a.onnx", "y/a.onnx")
    for name, model in zip(names, found.values(), strict=True):
        place(folder, name, data=model.SerializeToString())
    external(folder / "x", "weights.onnx", 1.0)
    external(folder / "y", "weights.onnx", 2.0)
    return [*names, "größe.onnx", "x/a.onnx", "y/a.onnx", "x/weights.onnx", "y/weights.onnx"]


@pytest.mark.slow
def test_the_same_bytes_for_any_number_of_jobs_and_any_surroundings(tmp_path: Path) -> None:
    source, elsewhere = tmp_path / "in", tmp_path / "elsewhere"
    elsewhere.mkdir()
    names = models(source)
    absolute = [str(source / name) for name in names]
    threads = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    runs = [
        (names, "1", {"PYTHONHASHSEED": "0"}),
        (
            names,
            "2",
            {
                "PYTHONHASHSEED": "1",
                "LC_ALL": "tr_TR.UTF-8",
                "LANGUAGE": "tr",
                "TZ": "Asia/Kathmandu",
            },
        ),
        (
            absolute[::-1],
            "4",
            {"PYTHONHASHSEED": "4711", "TZ": "America/St_Johns", **ascii_only, **threads},
        ),
    ]
    results = []
    for i, (arguments, jobs, env) in enumerate(runs):
        out = tmp_path / f"out{i}"
        cwd = source if arguments is names else elsewhere
        options = [
            "--fold-map",
            out,
            "--report",
            out,
            "--dump-ir",
            out,
            "--no-durations",
            "--embed-fold-map",
        ]
        done = irc(*arguments, "-o", out, *options, "--jobs", jobs, "-q", cwd=cwd, env=env)
        assert done.returncode == 0, done.stderr
        results.append(files(out))
    for result in results[1:]:
        assert sorted(result) == sorted(results[0])
        assert [name for name in result if result[name] != results[0][name]] == []
    data = [results[0][f"{folder}/weights.bin"] for folder in "xy"]
    assert data == [np.full(16, value, "<f4").tobytes() for value in (1.0, 2.0)]
    assert len(results[0]) > 8 * len(names)
    assert not list(elsewhere.iterdir())


def test_nothing_is_imported_from_the_working_folder(tmp_path: Path) -> None:
    place(tmp_path, "a.onnx", "b.onnx")
    for name in ("onnx", "numpy", "json", "joblib", "rich"):
        (tmp_path / f"{name}.py").write_text("open('executed', 'w').close()\n")
    command = [
        Path(sys.executable).with_name("irc"),
        "compile",
        "a.onnx",
        "b.onnx",
        "-q",
        "-o",
        "out",
    ]
    subprocess.run(command, cwd=tmp_path, check=True)
    assert sorted(files(tmp_path / "out")) == ["a.irc.onnx", "b.irc.onnx"]
    assert not (tmp_path / "executed").exists()


@contextmanager
def stalled(folder: Path, count: int, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A run in which `count` compiles are held up just before their outputs are in place."""
    command = [*IRC, "stall.onnx", "x/stall.onnx", "a.onnx", "-o", "out", *arguments]
    env = {**os.environ, **ACCIDENTS}
    with subprocess.Popen(
        command, cwd=folder, env=env, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            deadline = time.monotonic() + 60
            while len(half_written(folder)) < count:
                assert process.poll() is None and time.monotonic() < deadline
                time.sleep(0.05)
            time.sleep(0.2)
            yield process
        finally:
            process.kill()


def half_written(folder: Path) -> list[Path]:
    """Temporary files that are full."""
    return [path for path in (folder / "out").rglob("*.tmp") if size_of(path) > 0]


def size_of(path: Path) -> int:
    """Bytes of a file, 0 for one that was renamed since its folder was listed."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("jobs", [1, 2])
def test_an_interrupt_ends_what_runs_and_leaves_nothing(
    number: signal.Signals, status: int, jobs: int, tmp_path: Path
) -> None:
    place(tmp_path, "stall.onnx", "x/stall.onnx", "a.onnx")
    with stalled(tmp_path, jobs, "-j", str(jobs)) as process:
        process.send_signal(number)
        _, err = process.communicate(timeout=30)
    assert process.returncode == status
    assert err == ("irc: interrupted\n" if number == signal.SIGINT else "")
    assert files(tmp_path / "out") == {}
    assert str(tmp_path) not in {
        os.path.realpath(path) for path in Path("/proc").glob("[0-9]*/cwd")
    }


def test_a_terminal_sees_progress(tmp_path: Path) -> None:
    place(tmp_path, "a.onnx", "b.onnx")
    master, slave = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    with subprocess.Popen(
        [*IRC, "a.onnx", "b.onnx", "-o", "out"], cwd=tmp_path, env=env, stderr=slave
    ) as process:
        os.close(slave)
        shown = b""
        while True:
            try:
                shown += os.read(master, 4096)
            except OSError:  # the other side is closed
                break
    os.close(master)
    assert process.returncode == 0
    assert b"compiling" in shown and b"2/2" in shown
    assert b"b.onnx: 27 -> 19 operators" in shown
