"""An installation without extras: which commands work, and what the others say.

The packages are those that `dependencies` in pyproject.toml brings along, taken from the
environment of the tests.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.metadata import Distribution, distribution
from pathlib import Path

import harness
import onnx
import pytest
from packaging.requirements import Requirement
from test_packaging import PROJECT

EXTRAS = PROJECT["project"]["optional-dependencies"]


def closure(requirements: list[str]) -> dict[str, Distribution]:
    """Return the distributions that these requirements bring along, by name."""
    found: dict[str, Distribution] = {}
    waiting = [Requirement(text) for text in requirements]
    while waiting:
        requirement = waiting.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        if requirement.name not in found:
            found[requirement.name] = distribution(requirement.name)
            waiting += map(Requirement, found[requirement.name].requires or ())
    return found


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds irc and its dependencies, as links."""
    site = tmp_path_factory.mktemp("site")
    for found in closure(PROJECT["project"]["dependencies"]).values():
        for top in {
            file.parts[0]
            for file in found.files or ()
            if file.parts[0] not in ("..", "__pycache__")
        }:
            if not (site / top).exists():
                (site / top).symlink_to(found.locate_file(top))
    (site / "irc").mkdir()
    for path in harness.ROOT.iterdir():
        if path.suffix == ".py" or (path.is_dir() and (path / "__init__.py").is_file()):
            (site / "irc" / path.name).symlink_to(path)
    return site


def run(site: Path, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run Python with the packages of `site` alone: `-S` leaves out those of the environment."""
    return subprocess.run(
        [sys.executable, "-S", *arguments],
        cwd=cwd,
        env={"PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
    )


@pytest.fixture
def workplace(tmp_path: Path) -> Path:
    for name in ("a", "b"):
        shutil.copy(harness.ROOT / "examples" / "digits_cnn.onnx", tmp_path / f"{name}.onnx")
    return tmp_path


def test_the_dependencies_bring_no_package_of_an_extra(plain: Path) -> None:
    brought = set(closure(PROJECT["project"]["dependencies"]))
    assert not brought & {Requirement(text).name for extra in EXTRAS.values() for text in extra}
    done = run(plain, "-c", "import onnx, onnxruntime", cwd=plain)
    assert "No module named 'onnxruntime'" in done.stderr


@pytest.mark.slow
def test_commands_work_without_extras(plain: Path, workplace: Path) -> None:
    for command in (
        "compile a.onnx out.onnx --fold-map map.json --explain --report page.html",
        "compile a.onnx b.onnx -o out --jobs 2",
        "inspect a.onnx",
        "check a.onnx",
        "dump a.onnx -o a.irc --data a.npz",
        "report a.onnx -o page2.html",
        "foldmap show map.json",
        "foldmap check out.onnx map.json",
        (
            "foldmap export out.onnx map.json --to aimet-encodings --input-range image=0:1 -o"
            " encodings.json"
        ),
        "unfold out.onnx map.json -o back.onnx",
        "passes",
    ):
        done = run(plain, "-m", "irc", *command.split(), cwd=workplace)
        assert done.returncode == 0, (command, done.stderr)
    assert (workplace / "back.onnx").read_bytes() == (workplace / "a.onnx").read_bytes()


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        ("compile a.onnx out.onnx --verify", "verify"),
        ("align a.onnx b.onnx", "verify"),
        ("bisect a.onnx", "verify"),
        ("quantize a.onnx -o out.onnx --input-range image=0:1", "quantize"),
    ],
)
def test_a_command_without_its_extra_says_what_to_install(
    command: str, extra: str, plain: Path, workplace: Path
) -> None:
    done = run(plain, "-m", "irc", *command.split(), cwd=workplace)
    assert done.returncode == 2
    assert (
        done.stderr == f'irc: onnxruntime is not installed: pip install "irc-compiler[{extra}]"\n'
    )
    assert extra in EXTRAS
    assert not (workplace / "out.onnx").exists()


def test_constant_expressions_of_onnxruntime_stay_with_a_warning(
    plain: Path, workplace: Path
) -> None:
    text = (
        '<ir_version: 10, opset_import: ["": 21]> g (float[2] x) => (float[2] y) <float[2] w = {1,'
        " 2}> "
    )
    model = onnx.parser.parse_model(text + "{ c = Selu(w) y = Add(x, c) }")
    onnx.save(model, workplace / "m.onnx")
    done = run(plain, "-m", "irc", "compile", "m.onnx", "out.onnx", cwd=workplace)
    assert done.returncode == 0
    assert [node.op_type for node in onnx.load(workplace / "out.onnx").graph.node] == [
        "Selu",
        "Add",
    ]
    assert done.stderr.count("which is not installed") == 1
    assert 'pip install "irc-compiler[verify]"' in done.stderr


@pytest.mark.parametrize(
    ("use", "extra"),
    [("irc.quantize", "verify")],
)
def test_a_name_of_an_extra_says_what_to_install(
    use: str, extra: str, plain: Path, workplace: Path
) -> None:
    done = run(
        plain,
        "-c",
        f"import irc\ntry: {use}\nexcept irc.UsageError as error: print(error)",
        cwd=workplace,
    )
    assert done.stdout.endswith(f' is not installed: pip install "irc-compiler[{extra}]"\n'), (
        done.stderr
    )
