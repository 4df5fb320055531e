"""The JSON documents of every command against the package's schema and its page."""

from __future__ import annotations

import copy
import json
import sys
import textwrap
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import harness
import jsonschema
import onnx
import pytest
from irc.tools.cli.main import main
from onnx import numpy_helper

EXAMPLE = str(harness.ROOT / "examples" / "digits_cnn.onnx")
SCHEMA: dict[str, Any] = json.loads((files("irc.tools.cli") / "schema.json").read_text("utf-8"))
DOCUMENTS = [name for name in SCHEMA["$defs"] if name.startswith("irc.")]


def closed(schema: Any) -> Any:
    """The schema without room for fields that it does not name."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: closed(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and "type" in schema:
        found.setdefault("additionalProperties", False)
    return found


def check(text: str, name: str) -> dict[str, Any]:
    """Hold a document to its definition, and return it."""
    document = json.loads(
        text, parse_constant=lambda constant: pytest.fail(f"{constant} is no JSON")
    )
    schema = {"$ref": f"#/$defs/{name}", "$defs": closed(SCHEMA["$defs"])}
    for each in document if isinstance(document, list) else [document]:
        jsonschema.Draft202012Validator(schema).validate(each)
    jsonschema.Draft202012Validator(SCHEMA).validate(document)
    return document  # type: ignore[no-any-return]


@pytest.fixture
def document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., dict[str, Any]]:
    """Run a command that prints JSON, and hold it to a definition."""
    monkeypatch.chdir(tmp_path)

    def run(name: str, *arguments: str, status: int = 0) -> dict[str, Any]:
        capsys.readouterr()
        assert main(arguments) == status, capsys.readouterr().err
        return check(capsys.readouterr().out, name)

    return run


Document = Callable[..., dict[str, Any]]


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert len(SCHEMA["oneOf"]) == len(DOCUMENTS) + 1  # several compiles are a list
    page = (harness.ROOT / "docs" / "command_line.md").read_text("utf-8")
    assert all(f"| `{name}` |" in page for name in DOCUMENTS)


def test_compile(document: Document) -> None:
    found = document("irc.compile", "compile", EXAMPLE, "-o", "o.onnx", "--json", "-")
    assert (found["format"], found["version"], found["operators"]) == ("irc.compile", 1, [27, 19])
    document("irc.compile", "compile", EXAMPLE, "-o", "o.onnx", "--json", "-", "--verify")
    document("irc.compile", "compile", "missing.onnx", "-o", "o.onnx", "--json", "-", status=1)
    document(
        "irc.compile",
        "compile",
        EXAMPLE,
        "-o",
        "o.onnx",
        "--json",
        "-",
        "--verify",
        "--atol",
        "1e-9",
        status=1,
    )
    several = document(
        "irc.compile", "compile", EXAMPLE, "missing.onnx", "-o", "out", "--json", "-", status=1
    )
    assert [each["error"] is None for each in several] == [True, False]


def test_align(document: Document) -> None:
    assert main(["compile", EXAMPLE, "-o", "o.onnx", "-q"]) == 0
    found = document("irc.align", "align", EXAMPLE, "o.onnx", "--json", "-")
    assert found["agrees"]
    found = document(
        "irc.align", "align", EXAMPLE, "o.onnx", "--json", "-", "--rtol", "0", status=1
    )
    assert found["tolerance"] == {"rtol": 0.0, "atol": 0.0}
    model = onnx.load(EXAMPLE)
    tensor = next(each for each in model.graph.initializer if each.name == "head/fc2.bias")
    tensor.CopyFrom(
        numpy_helper.from_array(numpy_helper.to_array(tensor) * float("inf"), tensor.name)
    )
    onnx.save(model, "b.onnx")
    document("irc.align", "align", EXAMPLE, "b.onnx", "--json", "-", status=1)


def test_quantize_and_align_of_its_result(document: Document) -> None:
    options = ["--input-range", "image=0:1", "--float", "float.onnx", "--json", "-", "-q"]
    document("irc.quantize", "quantize", EXAMPLE, "-o", "int8.onnx", *options)
    document("irc.align_layers", "align", "float.onnx", "int8.onnx", "--json", "-")


def test_inspect_and_check(document: Document) -> None:
    document("irc.inspect", "inspect", EXAMPLE, "--json", "-")
    document("irc.inspect", "inspect", EXAMPLE, "--json", "-", "--passes", "none")
    document("irc.check", "check", EXAMPLE, "missing.onnx", "--format", "json", "--all", status=1)
    document("irc.check", "check", EXAMPLE, "--format", "json", "--keep", "stem/conv", status=1)


def test_passes_lists_those_of_other_packages_with_their_options(
    document: Document,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    package, info = tmp_path / "site" / "mine", tmp_path / "site" / "mine-1.0.dist-info"
    package.mkdir(parents=True)
    info.mkdir()
    (package / "__init__.py").write_text("")
    (package / "passes.py").write_text(
        textwrap.dedent('''\
        from dataclasses import dataclass
        from typing import ClassVar
        from irc.passes import Pass
        raise AssertionError("irc passes does not run this")
        @dataclass(frozen=True)
        class Fuse(Pass):
            """Fuse things.

            More.
            """

            name: ClassVar[str] = "Fuse"
            times: int = 3
            loudly: bool = False
            kinds: str = "a" + "b"
        ''')
    )
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    points = (
        "[irc.passes]\nFuse = mine.passes:Fuse\nLost = mine.passes:Lost\nGone ="
        " nowhere.passes:Gone\n"
    )
    (info / "entry_points.txt").write_text(points)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site"), *sys.path])
    found = document("irc.passes", "passes", "--json")
    passes = {each["name"]: each for each in found["passes"]}
    options = {"times": 3, "loudly": False, "kinds": "'a' + 'b'"}
    assert passes["Fuse"] == {
        "name": "Fuse", "summary": "Fuse things.", "options": options, "package": "mine.passes:Fuse"
    }  # fmt: skip
    for name in ("Lost", "Gone"):
        assert passes[name]["options"] == {}
        assert "cannot be read" in passes[name]["summary"]
    assert main(["passes"]) == 0
    assert "\nFuse\n    Fuse things.\n    times=3\n    loudly=false\n" in capsys.readouterr().out


def test_a_document_that_is_none_is_found() -> None:
    good = {"format": "irc.check", "version": 1, "models": []}
    check(json.dumps(good), "irc.check")
    for wrong in ({"version": 2}, {"models": [{}]}, {"more": 1}):
        with pytest.raises(jsonschema.ValidationError):
            check(json.dumps({**copy.deepcopy(good), **wrong}), "irc.check")


def test_the_help_of_compile_is_grouped(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["compile", "--help"])
    printed = capsys.readouterr().out
    heads = [
        line[:-1]
        for line in printed.splitlines()
        if line and not line.startswith(" ") and line.endswith(":")
    ]
    assert heads == [
        "positional arguments", "options", "model and passes", "output files", "verification", "float16",
        "summary and report",
        "debugging", "limits", "examples",
    ]  # fmt: skip
