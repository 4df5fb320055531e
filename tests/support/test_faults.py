"""Faults while files are written: kills, full disks, errors, interrupts, two compiles at once.

Whatever happens, and whenever, every file is an old or a new one, a model has its own weights, `irc
foldmap check` accepts no fold map of another model, and the next compile leaves what there would be
had nothing happened.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import faults
import harness
import irc
import irc.support.files
import numpy as np
import onnx
import pytest
from faults import DONE, DONE_NEVERTHELESS, FAILED, FULL, INTERRUPTED, Compile, Compiler
from harness import EXAMPLE, files
from irc.backends.onnx.background_writer import QUEUED_BLOCKS, SMALL, BackgroundWriter
from irc.support.files import PathLock, remove_stale_files
from irc.support.output_paths import OutputPaths
from irc.tools.cli.compile_many import CompileJob
from irc.tools.cli.main import main
from onnx import TensorProto, helper, numpy_helper
from test_large_models import arrays, external_files, network

Files = dict[str, bytes]
Record = Callable[[str, object], None]


@pytest.fixture(scope="module")
def ready() -> Iterator[Compiler]:
    with faults.compiler(EXAMPLE) as program:
        yield program


def fill(folder: Path, content: Files) -> None:
    """Let a folder have just these files."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, data in content.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def is_temporary(name: str) -> bool:
    return name.startswith(".") and name.endswith((".tmp", ".lock"))


def read(found: Files) -> Files:
    """Without the data of models that are gone."""
    return {
        n: data
        for n, data in found.items()
        if not n.endswith(".data") or n.encode() in found["o.onnx"]
    }


@dataclass
class Scenario:
    """Compiles of one kind to `folder`: before there is what `old` left, then `compile` runs."""

    folder: Path
    compile: Compile
    old: Files
    new: Files
    weights: list[dict[str, bytes]]
    """Those of the old and of the new model."""


def scenario(name: str, folder: Path, ready: Compiler) -> Scenario:
    """Two compiles, one after the other, of different models to one place."""
    source, out = folder / "in", folder / "out"
    places = []
    for version, layers in (("a", 1), ("b", 2)):
        place = source / version / "i.onnx"
        place.parent.mkdir(parents=True)
        external = {"save_as_external_data": True, "location": "i.bin", "size_threshold": 1024}
        onnx.save(network(layers, 8), place, **(external if name != "whole" else {}))
        places.append(place)
    out.mkdir()
    store = "inline" if name == "kept" else "npz"
    passes = "none" if name == "kept" else None
    if name == "kept":
        (out / "i.bin").write_bytes(b"of somebody else")
    first, second = (
        Compile(
            str(place),
            str(out / "o.onnx"),
            str(out / "o.json"),
            store,
            passes,
            report=str(folder / "report"),
        )
        for place in places
    )
    if name == "in place":
        for file in ("i.onnx", "i.bin"):
            shutil.copy(places[1].parent / file, out / file)
        second = replace(second, source=str(out / "i.onnx"), output=str(out / "i.onnx"))
        old = files(out)
        weights = [arrays(out / "i.onnx")]
    else:
        assert ready.run(first) == DONE
        old = files(out)
        weights = [arrays(out / "o.onnx")]
    assert ready.run(second) == DONE
    return Scenario(out, second, old, files(out), [*weights, arrays(Path(second.output))])


class Judge:
    """Looks at what is left; what was seen before is not looked at again."""

    def __init__(self, case: Scenario, ready: Compiler) -> None:
        self.case, self.ready = case, ready
        self.seen: set[str] = set()

    def look(self, *, again: bool = True) -> Files:
        """Check the files that are there, and with `again` what the next compile makes of them."""
        case, left = self.case, files(self.case.folder)
        key = hashlib.sha256()
        for name, data in sorted(left.items()):
            key.update(
                repr(
                    (
                        name.split(".")[-1] if is_temporary(name) else name,
                        hashlib.sha256(data).digest(),
                    )
                ).encode()
            )
        if key.hexdigest() in self.seen:
            return left
        self.seen.add(key.hexdigest())
        for name, data in left.items():
            whole = [content[name] for content in (case.old, case.new) if name in content]
            assert is_temporary(name) or data in whole, f"{name} is neither old nor new"
        model, fold_map = Path(case.compile.output), Path(case.compile.fold_map or "")
        if model.exists():
            assert arrays(model) in case.weights
        if model.exists() and fold_map.exists():
            versions = [
                {content.get(name) for name in (model.name, "o.json", "o.npz")}
                for content in (case.old, case.new)
            ]
            there = {left.get(name) for name in (model.name, "o.json", "o.npz")}
            assert main(["foldmap", "check", str(model), str(fold_map)]) == (
                0 if there in versions else 1
            )
        if again:
            assert self.ready.run(replace(case.compile, at=0)) == DONE
            if (
                case.compile.source != case.compile.output
                or left[model.name] == case.old[model.name]
            ):
                found = files(case.folder)
                kept = {name for name in found.keys() - case.new.keys() if name in case.old}
                assert {name: data for name, data in found.items() if name not in kept} == case.new
            else:
                assert not any(map(is_temporary, files(case.folder)))
                onnx.load(model)
        return left


OUTPUTS = ("o.onnx", "o.json", "o.npz")
NAMES = ("whole", "external", "in place", "kept")
"""Weights in the model; in a file, and folded; that, over the source; in a file, as they are, and
its name is taken.
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "first"), [*((name, False) for name in NAMES), ("external", True)]
)
def test_killed_at_every_event(
    name: str, first: bool, ready: Compiler, tmp_path: Path, record_property: Record
) -> None:
    case = scenario(name, tmp_path, ready)
    if first:
        case.new = {
            name: data for name, data in case.new.items() if name not in case.old or name in OUTPUTS
        }
        case.old = {}
    judge = Judge(case, ready)
    at, status = 0, -signal.SIGKILL
    while status == -signal.SIGKILL:
        at += 1
        fill(case.folder, case.old)
        status = ready.run(replace(case.compile, at=at))
        judge.look()
    assert status == DONE
    assert at > 30
    record_property(
        "compared", f"killed at every one of {at - 1} events, {name}{', first' * first}"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "fault"), [*((name, FULL) for name in NAMES), ("external", "EIO"), ("kept", "EMFILE")]
)
def test_errors_at_every_event(
    name: str, fault: str, ready: Compiler, tmp_path: Path, record_property: Record
) -> None:
    case = scenario(name, tmp_path, ready)
    judge = Judge(case, ready)
    report = Path(case.compile.report)
    at, failed, status = 0, 0, FAILED
    while status != DONE:
        at += 1
        fill(case.folder, case.old)
        status = ready.run(replace(case.compile, at=at, fault=fault))
        assert status in (DONE, FAILED, DONE_NEVERTHELESS), report.read_text()
        left = judge.look()
        if status == FAILED:
            failed += 1
            message = report.read_text()
            assert "\n" not in message
            assert message.count("cannot be written") <= 1, message
            model = Path(case.compile.output).name
            assert left[model] != case.old[model] or left.get("o.json") == case.old.get("o.json")
        if fault != FULL:
            continue
        assert not any(map(is_temporary, left)), "files can be removed from a full disk"
        assert left == (case.old if status == FAILED else case.new)
    assert failed > 5
    record_property(
        "compared",
        f"{fault} at every one of {at - 1} events, {name}: {failed} errors, as there must be",
    )


@pytest.mark.slow
def test_interrupted_at_every_event(
    ready: Compiler, tmp_path: Path, record_property: Record
) -> None:
    case = scenario("external", tmp_path, ready)
    judge = Judge(case, ready)
    at, status, interrupted = 0, INTERRUPTED, 0
    while status != DONE:
        at += 1
        fill(case.folder, case.old)
        status = ready.run(replace(case.compile, at=at, fault="interrupt"))
        assert status in (DONE, INTERRUPTED, DONE_NEVERTHELESS)
        interrupted += status == INTERRUPTED
        judge.look()
    assert interrupted > 20
    record_property("compared", f"interrupted at {interrupted} of {at - 1} events")


@pytest.mark.slow
def test_another_compile_comes_between_at_every_event(
    ready: Compiler, tmp_path: Path, record_property: Record
) -> None:
    """One is stopped, the other runs or waits, the first goes on: all files are of one."""
    case = scenario("external", tmp_path, ready)
    other = replace(
        case.compile, source=case.compile.source.replace("/b/", "/a/"), at=0, report=os.devnull
    )
    at, waited, status = 0, 0, None
    while status != DONE:
        at += 1
        fill(case.folder, case.old if at % 2 else case.new)
        one = ready.start(replace(case.compile, at=at, fault="stop"))
        status = ready.wait(one)
        if status != -signal.SIGSTOP:
            assert status == DONE
            break
        two = ready.start(other)
        ended = ready.wait(two, 0.15)
        if ended is None:
            waited += 1
        os.kill(one, signal.SIGCONT)
        assert ready.wait(one) == DONE_NEVERTHELESS
        assert (ready.wait(two) if ended is None else ended) == DONE
        left = files(case.folder)
        assert read(left) in (read(case.old), read(case.new)), (at, sorted(left))
    assert at > 30
    assert waited >= 3
    record_property(
        "compared", f"another compile at every one of {at - 1} events; it waited {waited} times"
    )


def test_two_compiles_at_once(ready: Compiler, tmp_path: Path) -> None:
    case = scenario("external", tmp_path, ready)
    other = replace(case.compile, source=case.compile.source.replace("/b/", "/a/"))
    ended = set()
    for _ in range(25):
        both = [ready.start(one) for one in (case.compile, other)]
        assert [ready.wait(pid) for pid in both] == [DONE, DONE]
        left = files(case.folder)
        assert read(left) in (read(case.old), read(case.new)), sorted(left)
        ended.add(left == case.old)


def median_duration(ready: Compiler, job: Compile) -> float:
    """Return the median of the seconds that five compiles take."""
    times = []
    for _ in range(5):
        start = time.perf_counter()
        assert ready.run(job) == DONE
        times.append(time.perf_counter() - start)
    return sorted(times)[2]


@pytest.mark.slow
def test_kills_at_random_times(ready: Compiler, tmp_path: Path, record_property: Record) -> None:
    case = scenario("external", tmp_path, ready)
    sources = [case.compile.source.replace("/b/", f"/{version}/") for version in "ab"]
    judge = Judge(case, ready)
    rng = random.Random(0)
    unfinished = writing = 0
    for i in range(250):
        if i % 50 == 0:  # the load of the machine changes
            duration = median_duration(ready, case.compile)
        pid = ready.start(replace(case.compile, source=sources[i % 2]))
        time.sleep(rng.uniform(0, 1.1) * duration)
        os.kill(pid, signal.SIGKILL)
        status = ready.wait(pid)
        assert status in (DONE, -signal.SIGKILL)
        unfinished += status != DONE
        left = judge.look(again=False)
        writing += any(map(is_temporary, left))
    assert ready.run(case.compile) == DONE
    assert files(case.folder) == case.new
    record_property(
        "compared",
        f"250 kills at random times: {unfinished} found a compile, {writing} files half written",
    )
    assert unfinished >= 100
    assert writing >= 25


# single faults


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save(network(1, 8), tmp_path / "i.onnx")
    return tmp_path / "i.onnx"


def test_a_full_device_is_one_sentence(model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", str(model), "-o", "/dev/full", "-q"]) == 1
    assert capfd.readouterr().err == "irc: /dev/full: cannot be written: No space left on device\n"


def test_too_many_open_files_are_one_sentence(
    model: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    import resource

    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = model.with_name("o.onnx")
    assert main(["compile", str(model), "-o", str(target), "-q"]) == 0
    with open(os.devnull) as lowest:
        free = lowest.fileno()
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
        assert main(["compile", str(model), "-o", str(target), "-q"]) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert capfd.readouterr().err == f"irc: {model}: cannot be read: Too many open files\n"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("irc.frontends.load", _no_file)
        assert main(["compile", str(model), "-o", str(target), "-q"]) == 1
    assert capfd.readouterr().err == "irc: [Errno 24] Too many open files\n"


def test_a_folder_that_is_missing_or_no_folder(
    model: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    gone = model.parent / "gone" / "o.onnx"
    assert main(["compile", str(model), "-o", str(gone), "-q"]) == 1
    assert (
        capfd.readouterr().err
        == f"irc: {gone}: cannot be written: there is no folder {gone.parent}\n"
    )
    below = model / "o.onnx"
    assert main(["compile", str(model), "-o", str(below), "-q"]) == 1
    assert capfd.readouterr().err == f"irc: {below}: cannot be written: Not a directory\n"


@pytest.mark.parametrize("which", ["o.onnx", "o.json", "o.npz"])
def test_a_folder_in_the_place_of_an_output(which: str, model: Path) -> None:
    (model.parent / which / "inside").mkdir(parents=True)
    with pytest.raises(irc.EmitError, match=f"{which}: cannot be written: this is a folder"):
        irc.compile(model).save(model.parent / "o.onnx", fold_map=model.parent / "o.json")
    assert sorted(path.name for path in model.parent.iterdir()) == ["i.onnx", which]


@pytest.mark.skipif(
    not hasattr(os, "fork") or os.geteuid() != 0, reason="only root can become nobody"
)
def test_a_folder_that_may_not_be_written(ready: Compiler, tmp_path: Path) -> None:
    """As `nobody`, whom permissions concern."""
    case = scenario("whole", tmp_path, ready)
    result = irc.compile(case.compile.source)
    child = os.fork()
    if not child:
        try:
            os.chdir(case.folder)
            os.setresuid(65534, 65534, 65534)
            result.save("o.onnx", fold_map="o.json")
        except irc.EmitError as error:
            os._exit(3 if str(error) == "o.json: cannot be written: Permission denied" else 4)
        os._exit(5)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    assert files(case.folder) == case.new


def test_where_files_cannot_be_locked_one_file_is_made(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    def refuse(*arguments: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    left = model.with_name(".o.onnx.1-0.tmp")
    left.write_bytes(b"of a process that may live")
    irc.compile(model).save(model.with_name("o.onnx"), fold_map=model.with_name("o.json"))
    assert sorted(path.name for path in model.parent.iterdir()) == [
        left.name,
        "i.onnx",
        "o.json",
        "o.npz",
        "o.onnx",
    ]


def test_files_whose_long_names_begin_alike_have_one_lock(model: Path) -> None:
    names = ["a" * 60 + end for end in (".irc.onnx", ".foldmap.json", ".foldmap.npz")]
    irc.compile(model).save(model.with_name(names[0]), fold_map=model.with_name(names[1]))
    assert sorted(path.name for path in model.parent.iterdir()) == sorted([*names, "i.onnx"])


@pytest.mark.parametrize("name", ["o.onnx", "a" * 200 + ".onnx"])
def test_cleaning_up_leaves_what_a_live_process_writes(name: str, tmp_path: Path) -> None:
    output = tmp_path / name
    job = CompileJob(argparse.Namespace(), OutputPaths(str(tmp_path / "i.onnx"), str(output)))
    with irc.support.files.replacing(output) as live:
        dead = live.with_name(live.name.replace("-0.tmp", "-1.tmp"))
        dead.write_bytes(b"half")
        live.with_name(f".{name[:48]}.lock").touch()
        job.clean_up()
        assert [path.name for path in tmp_path.iterdir()] == [live.name]


def test_external_data_that_is_replaced_while_it_is_in_use_is_an_error(tmp_path: Path) -> None:
    source = tmp_path / "i.onnx"
    harness.save_external(network(1, 8), source, "i.bin", 1024)
    result = irc.compile(source, "none")
    data = source.with_name("i.bin").read_bytes()
    source.with_name("other").write_bytes(bytes(len(data)))
    os.replace(source.with_name("other"), source.with_name("i.bin"))
    (tmp_path / "out").mkdir()
    with pytest.raises(irc.ModelError, match="the file was replaced while it was in use"):
        result.save(tmp_path / "out" / "o.onnx")
    assert not (tmp_path / "out" / "o.onnx").exists()


def test_data_of_a_taken_name_is_not_replaced_before_its_model_is(tmp_path: Path) -> None:
    """What an old model reads stays, and so does what others read."""
    (tmp_path / "out").mkdir()
    target = tmp_path / "out" / "o.onnx"
    seen = []
    for version in range(3):
        tensor = numpy_helper.from_array(np.full((4, 4), version, np.float32), "w")
        source = tmp_path / str(version) / "i.onnx"
        source.parent.mkdir()
        _external(source, tensor)
        irc.compile(source).save(target)
        (location,) = external_files(target)
        assert arrays(target) == {"w": tensor.raw_data}
        seen.append(location)
    assert seen[0] == "w.bin"
    assert len(set(seen)) == 3
    assert sorted(path.name for path in target.parent.iterdir()) == sorted(["o.onnx", *seen])


@pytest.mark.parametrize("ours", [False, True])
def test_a_journal_says_nothing_of_files_of_others(ours: bool, tmp_path: Path) -> None:
    """A lock with a journal of a stranger's model removes no file; an own one only data files."""
    names = ["keep.bin", "../above", "o.onnx.0123456789abcdef.data", "p.onnx.0123456789abcdef.data"]
    (tmp_path / "in").mkdir()
    folder = tmp_path / "out"
    folder.mkdir()
    for name in names:
        (folder / name).write_bytes(b"here")
    onnx.save(network(1, 8), folder / "o.onnx")
    lock = folder / ".o.onnx.lock"
    lock.touch()
    mark = f"irc {lock.stat().st_ino if ours else 1}"
    lock.write_bytes(b"".join(name.encode() + b"\0" for name in [mark, *names]))
    left = {".o.onnx.lock", "keep.bin", "o.onnx", *names[2:]}
    if ours:
        irc.compile(folder / "o.onnx").save(folder / "o.onnx", in_place=True)
        left -= {".o.onnx.lock", names[2]}
    else:
        with pytest.raises(irc.EmitError, match="this file is not a lock of irc"):
            irc.compile(folder / "o.onnx").save(folder / "o.onnx", in_place=True)
    assert {path.name for path in folder.iterdir()} == left
    assert (tmp_path / "above").exists()


def test_a_lock_is_waited_for_and_left_clean(tmp_path: Path) -> None:
    path = tmp_path / "o.onnx"
    with PathLock(path) as lock:
        lock.write_journal(["a", "ö"])
        remove_stale_files(path)
        assert lock.read_journal() == ["a", "ö"]
    with PathLock(path) as lock:
        assert lock.read_journal() == ["a", "ö"]
        lock.write_journal(())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("block", [b"block", bytes(SMALL)])
def test_a_writer_that_fails_does_not_hang(block: bytes) -> None:
    class Broken:
        def write(self, data: object) -> int:
            raise OSError(28, "No space left on device")

    def write(error: BaseException | None) -> None:
        with BackgroundWriter(Broken()) as background:  # type: ignore[arg-type]
            for _ in range(QUEUED_BLOCKS):
                background.write(block)
            if error is not None:
                raise error
            for _ in range(100):
                background.write(block)

    with pytest.raises(OSError, match="No space"):
        write(None)
    with pytest.raises((KeyboardInterrupt, OSError)):
        write(KeyboardInterrupt())


def _no_file(*arguments: object, **options: object) -> None:
    raise OSError(24, "Too many open files")


def _external(path: Path, tensor: TensorProto) -> None:
    stored = TensorProto()
    stored.CopyFrom(tensor)
    path.with_name("w.bin").write_bytes(tensor.raw_data)
    stored.ClearField("raw_data")
    stored.data_location = TensorProto.EXTERNAL
    stored.external_data.add(key="location", value="w.bin")
    info = [helper.make_tensor_value_info(value, 1, [4, 4]) for value in "xy"]
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], "g", info[:1], info[1:], [stored]
    )
    path.write_bytes(helper.make_model(graph).SerializeToString())
