"""`irc dump`, `irc diff` and what `irc compile` prints of the IR, from outside."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import harness
import irc
import onnx
import pytest
from harness import EXAMPLE
from irc.frontends.onnx import from_model
from irc.ir.structural_diff import operator_changes, structural_digest
from irc.passes import default_pipeline
from irc.tools.cli import terminal
from irc.tools.cli.main import main


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@contextmanager
def colours() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TERM", "xterm-256color")
        patch.setenv("FORCE_COLOR", "1")
        patch.delenv("NO_COLOR", raising=False)
        yield


def test_dump_prints_the_text_that_parses(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dump", str(EXAMPLE)]) == 0
    assert capsys.readouterr().out == str(irc.load(EXAMPLE))


def test_dump_diff_prints_what_each_pass_changed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dump", str(EXAMPLE), "--passes", "default", "--diff"]) == 0
    text = capsys.readouterr().out
    heads = [line for line in text.splitlines() if line.startswith(("---", "+++"))]
    assert heads == [
        "--- source", "+++ SimplifyInference", "--- SimplifyInference", "+++ FoldScaleAxis",
        "--- FoldScaleAxis", "+++ FoldConstant",
    ]  # fmt: skip
    assert any(line.startswith("-") and "nn.batch_norm" in line for line in text.splitlines())


def test_compile_diff_goes_to_standard_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compile", str(EXAMPLE), "-o", str(tmp_path / "o.onnx"), "--diff", "-q"]) == 0
    found = capsys.readouterr()
    assert "+++ FoldScaleAxis" in found.err
    assert not found.out


def test_colours_are_for_terminals_only() -> None:
    text = "graph @g(%x: f32[2]) {\n  %y = nn.relu(%x) {axis=1} // a comment\n}\n"
    plain, coloured = io.StringIO(), Terminal()
    terminal.write_ir(text, plain)
    assert plain.getvalue() == text
    with colours():
        terminal.write_ir(text, coloured)
        terminal.write_diff(["@@ -1 +1 @@", "-a [bold]", "+b"], coloured)
    assert "\x1b[" in coloured.getvalue()
    assert "-a [bold]" in coloured.getvalue()


def test_markup_in_names_is_text() -> None:
    out = Terminal()
    with colours():
        terminal.write_ir("%[red]x[/red] = nn.relu(%[/]y)\n", out)
    assert "[red]" in out.getvalue().replace("\x1b[36m", "").replace("\x1b[0m", "")


def test_progress_is_silent_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    with terminal.progress("working") as advance:
        advance("one")
    assert capsys.readouterr().err == ""


def test_diff_of_a_model_with_itself_under_other_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = onnx.load(EXAMPLE)
    inner = {name for node in model.graph.node for name in node.output} - {
        info.name for info in model.graph.output
    }
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = [f"renamed/{name}" if name in inner else name for name in names]
        node.name = f"renamed/{node.name}"
    del model.graph.value_info[:]
    onnx.save(model, tmp_path / "renamed.onnx")
    assert main(["diff", str(EXAMPLE), str(EXAMPLE)]) == 0
    assert main(["diff", str(EXAMPLE), str(tmp_path / "renamed.onnx")]) == 0
    assert capsys.readouterr().out == "the same\nthe same but for names\n"


def test_diff_of_a_compiled_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = str(tmp_path / "out.onnx")
    assert main(["compile", str(EXAMPLE), "-o", output, "-q"]) == 0
    assert main(["diff", str(EXAMPLE), output]) == 1
    text = capsys.readouterr().out
    assert text.startswith("-8 nn.batch_norm\n")
    assert f"+++ {output}" in text
    assert main(["diff", str(EXAMPLE), output, "-q"]) == 1
    assert capsys.readouterr().out == ""


def test_one_element_of_one_weight_is_a_difference() -> None:
    first, second = irc.load(EXAMPLE), onnx.load(EXAMPLE)
    weight = second.graph.initializer[0]
    weight.raw_data = weight.raw_data[:-1] + bytes([weight.raw_data[-1] ^ 1])
    other = from_model(second)
    assert structural_digest(first) != structural_digest(other)
    assert operator_changes(first, other) == {}


@pytest.mark.shared
def test_digests_hold_for_every_shared_model() -> None:
    for path in harness.shared_models("real")[:10]:
        once, twice = irc.load(path), irc.load(path)
        assert structural_digest(once) == structural_digest(twice), path.name
        default_pipeline()(twice)
        same = str(once) == str(twice)
        assert (structural_digest(once) == structural_digest(twice)) == same, path.name


def test_defaults_of_overridable_initializers_count() -> None:
    head = '<ir_version: 8, opset_import: ["" : 17]>'
    body = head + "g (float[1] x, float[1] w = {{ {} }}) => (float[1] y) {{ y = Add(x, w) }}"
    first, second = (
        from_model(onnx.parser.parse_model(body.format(value))) for value in ("1", "2")
    )
    assert structural_digest(first) != structural_digest(second)
