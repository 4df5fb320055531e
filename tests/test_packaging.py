"""The package as it is installed: what is in it, and its public face."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import harness
import irc
import onnx
import pytest
from graphs import F32, Graph, batch_norm
from packaging.requirements import Requirement

PROJECT = tomllib.loads((harness.ROOT / "pyproject.toml").read_text())


def test_packages_are_the_folders_on_disk() -> None:
    found = {"irc"}
    for folder in harness.FOLDERS:
        for init in (harness.ROOT / folder).rglob("__init__.py"):
            found.add("irc." + ".".join(init.parent.relative_to(harness.ROOT).parts))
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == found


def test_make_renews_the_environment_for_every_package() -> None:
    line = next(
        line
        for line in (harness.ROOT / "Makefile").read_text().splitlines()
        if line.startswith("PACKAGE :=")
    )
    packages = {f"irc.{folder.replace('/', '.')}" for folder in line.split()[2:]}
    assert packages | {"irc"} == set(PROJECT["tool"]["setuptools"]["packages"])


def test_only_the_face_stands_at_the_root() -> None:
    assert sorted(path.name for path in harness.ROOT.glob("*.py")) == [
        "__init__.py",
        "__main__.py",
        "compiler.py",
        "result.py",
    ]


def test_version_is_stated_once_and_the_same() -> None:
    assert PROJECT["project"]["version"] == irc.__version__


def test_public_names_are_sorted_and_exist() -> None:
    assert irc.__all__ == sorted(irc.__all__)
    assert all(getattr(irc, name) is not None for name in irc.__all__)


def build(kind: str, folder: Path, source: Path | None = None) -> Path:
    """Build the `wheel` or `sdist` of a clone, or of `source`, and return its path."""
    if source is None:
        source = folder / f"source-{kind}"
        subprocess.run(["git", "clone", "--quiet", harness.ROOT, source], check=True)
    code = f"from setuptools import build_meta; build_meta.build_{kind}({str(folder)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=source, check=True, capture_output=True)
    return next(folder.glob("*.whl" if kind == "wheel" else "*.tar.gz"))


def test_a_wheel_holds_irc_and_nothing_else(tmp_path: Path) -> None:
    names = zipfile.ZipFile(build("wheel", tmp_path)).namelist()
    assert {name.split("/")[0] for name in names} == {
        "irc",
        f"irc_compiler-{irc.__version__}.dist-info",
    }
    assert "irc/py.typed" in names
    assert "irc/backends/foldmap/schema.json" in names
    report = harness.ROOT / "tools" / "report"
    files = [
        path for path in report.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    ]
    assert {f"irc/tools/report/{path.relative_to(report)}" for path in files} <= set(names)
    assert not any("test" in name for name in names)


def test_the_wheel_of_the_sdist_is_that_of_the_clone(tmp_path: Path) -> None:
    with tarfile.open(build("sdist", tmp_path)) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = (path for path in tmp_path.glob("irc_compiler-*") if path.is_dir())
    made = [
        build("wheel", tmp_path / name, tmp_path / where)
        for name, where in (("a", source), ("b", "source-sdist"))
    ]
    first, second = (
        {info.filename: info.CRC for info in zipfile.ZipFile(path).infolist()} for path in made
    )
    assert first == second


def test_classifiers_begin_with_the_oldest_python() -> None:
    stated = [
        name
        for name in PROJECT["project"]["classifiers"]
        if name.startswith("Programming Language :: Python :: 3.")
    ]
    assert PROJECT["project"]["requires-python"] == f">={stated[0].rpartition(' ')[2]}"


def lowest(folder: Path, pyproject: str) -> subprocess.CompletedProcess[str]:
    """Run the script of `make test-lowest` beside another pyproject.toml."""
    script = folder / "tests" / "pythons" / "lowest.py"
    script.parent.mkdir(parents=True)
    shutil.copy(harness.ROOT / "tests" / "pythons" / "lowest.py", script)
    (folder / "pyproject.toml").write_text(pyproject)
    return subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)


def test_the_lowest_versions_are_those_of_pyproject(tmp_path: Path) -> None:
    done = lowest(tmp_path, (harness.ROOT / "pyproject.toml").read_text())
    assert done.returncode == 0, done.stderr
    pinned = {each.name: each.specifier for each in map(Requirement, done.stdout.splitlines())}
    texts = [
        *PROJECT["project"]["dependencies"],
        *PROJECT["project"]["optional-dependencies"]["verify"],
        *PROJECT["dependency-groups"]["test"],
    ]
    for requirement in map(Requirement, texts):
        (pin,) = pinned[requirement.name]
        assert pin.operator == "==" and requirement.specifier.contains(pin.version)
    assert pinned.keys() == {Requirement(text).name for text in texts}


@pytest.mark.parametrize(
    ("bound", "expected"),
    [(">=1.10", "a==1.10\n"), (">=1.8", "a==1.9\n"), ("<2", ""), ("", ""), (">=1,<2", "")],
)
def test_the_lowest_version_is_the_highest_of_all_bounds_and_needs_one(
    bound: str, expected: str, tmp_path: Path
) -> None:
    done = lowest(
        tmp_path,
        f"""
        [project]
        dependencies = ["a>=1.9"]
        optional-dependencies = {{verify = ["a{bound}"]}}
        [dependency-groups]
        test = []
        """,
    )
    assert done.stdout == expected
    assert (done.returncode == 0) == bool(expected)


def test_importing_irc_imports_nothing_heavy() -> None:
    code = (
        "import irc, sys; print([m for m in ('numpy', 'onnx', 'networkx', 'onnxruntime', 'rich') if"
        " m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_compiling_does_not_import_what_it_does_not_need(tmp_path: Path) -> None:
    model = harness.ROOT / "examples" / "digits_cnn.onnx"
    command = (
        f"compile {model} -q -o {tmp_path / 'o.onnx'} --fold-map {tmp_path / 'm.json'}".split()
    )
    code = (
        f"import sys; from irc.tools.cli.main import main; main({command!r});heavy = ('networkx',"
        " 'onnx', 'onnxruntime', 'rich', 'hashlib', 'tempfile');"
        "print([m for m in heavy if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_python_of_onnx_is_imported_neither_for_shape_inference_nor_for_listed_elements(
    tmp_path: Path,
) -> None:
    graph = Graph(dtype=F32, domains={"other": 1})
    hidden = graph.node(
        "Conv",
        [graph.input("x", ["N", 3, 5, 5]), graph.initializer(graph.random(4, 3, 1, 1), "w")],
        "c",
    )
    hidden = graph.node("Gelu", [graph.batch_norm(hidden, batch_norm(4), "b")], "g", domain="other")
    numbers = onnx.helper.make_tensor("numbers", onnx.TensorProto.INT64, [3], [0, 0, -1])
    graph.nodes.append(onnx.helper.make_node("Constant", [], ["shape"], value=numbers))
    graph.output(graph.node("Reshape", [hidden, "shape"], "y"), [None] * 3)
    model = graph.model()
    for tensor in model.graph.initializer:
        tensor.float_data.extend(onnx.numpy_helper.to_array(tensor).ravel().tolist())
        tensor.ClearField("raw_data")
    onnx.save(model, tmp_path / "model.onnx")
    command = ["compile", str(tmp_path / "model.onnx"), "-q", "-o", str(tmp_path / "o.onnx")]
    code = (
        f"import sys; from irc.tools.cli.main import main; main({command!r}); before = 'onnx' in"
        " sys.modules;import onnx; model = onnx.load(sys.argv[1]);"
        " onnx.checker.check_model(model);onnx.shape_inference.infer_shapes(model);"
        " onnx.printer.to_text(model); onnx.defs.get_schema('Gelu');print(before, [node.op_type"
        " for node in model.graph.node])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, command[-1]], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False ['Conv', 'Gelu', 'Reshape']"


@pytest.mark.parametrize("call", ["cli.parser()", "cli.main(['passes'])"])
def test_help_and_the_list_of_passes_import_nothing_heavy(call: str) -> None:
    code = (
        f"import sys; from irc.tools.cli import main as cli; {call};"
        "print([m for m in ('dataclasses', 'msgspec', 'numpy', 'onnx', 'google') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_every_module_imports_on_its_own() -> None:
    for folder in harness.FOLDERS:
        for path in (harness.ROOT / folder).rglob("*.py"):
            parts = path.relative_to(harness.ROOT).with_suffix("").parts
            importlib.import_module("irc." + ".".join(part for part in parts if part != "__init__"))
