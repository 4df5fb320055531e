"""Objects as a notebook shows them, and what irc says where another package took its place."""

from __future__ import annotations

import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import harness
import irc
import onnx
import pytest
from irc.support.notebook import MAX_ROWS, frame, table
from irc.verify import Comparison

EXAMPLE = harness.ROOT / "examples" / "digits_cnn.onnx"
ODD = "<script>alert(1)</script>\"'&</iframe>"


class Frame(HTMLParser):
    """The frame of an object: its attributes, the tags in its page, and the cells of its tables."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.cells: list[str] = []
        self.attributes: dict[str, str | None] = {}
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= dict(attributes)
        if tag == "td":
            self.cells.append("")

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] == "td":
            self.cells[-1] += data


def shown(item: object) -> Frame:
    outer = Frame(item._repr_html_())  # type: ignore[attr-defined]
    assert outer.tags == ["iframe"]
    assert outer.attributes["sandbox"] == ""
    page = Frame(str(outer.attributes["srcdoc"]))
    assert set(page.tags) <= {"meta", "style", "b", "table", "tr", "th", "td", "details", "summary", "pre"}
    return page


def test_a_module_shows_its_interface_and_operators() -> None:
    module = irc.load(EXAMPLE)
    assert repr(module) == "<Module 'digits_cnn': 27 operators, opsets: ai.onnx 17>"
    cells = shown(module).cells
    assert cells[:6] == ["input", "image", "f32[N,1,8,8]", "output", "logits", "f32[N,10]"]
    assert cells[cells.index("nn.conv") + 1] == "6"


def test_a_result_and_its_fold_map_show_where_each_affine_went() -> None:
    result = irc.compile(EXAMPLE)
    assert repr(result) == "<Result: 19 operators, affines: 8 folded>"
    assert repr(result.fold_map) == "<FoldMap: 8 layers, affines: 8 folded>"
    for item in (result, result.fold_map):
        cells = shown(item).cells
        first = cells.index("stem/bn")
        assert cells[first - 1 : first + 3] == ["BatchNormalization", "stem/bn", "folded", "stem/conv"]


def test_an_affine_that_stays_shows_the_reason() -> None:
    kept = irc.compile(EXAMPLE, "none")
    assert "8 kept: not_attempted" in repr(kept)
    assert any(cell.startswith("not_attempted: ") for cell in shown(kept).cells)


def test_a_comparison_shows_its_inputs() -> None:
    comparison = Comparison(onnx.load(EXAMPLE))
    assert repr(comparison) == f"<Comparison with 'digits_cnn' on {len(comparison.inputs)} sets of inputs>"
    assert shown(comparison).cells[0] == comparison.inputs[0].name


def test_names_of_a_model_are_text() -> None:
    model = onnx.load(EXAMPLE)
    model.graph.input[0].name = model.graph.node[0].input[0] = ODD
    model.graph.node[1].name = ODD
    assert ODD in shown(irc.compile(model).module).cells
    assert ODD in shown(irc.compile(model)).cells


def test_long_tables_end_with_the_number_of_other_rows() -> None:
    cells = Frame(table(("n",), [(n,) for n in range(MAX_ROWS + 3)])).cells
    assert len(cells) == MAX_ROWS + 1
    assert cells[-1] == "and 3 more"
    assert "height:480px" in frame("long", table(("n",), [(n,) for n in range(100)]))


@pytest.mark.parametrize("replaced", [False, True])
def test_a_package_in_the_place_of_irc_is_told_in_one_sentence(*, replaced: bool, tmp_path: Path) -> None:
    package = tmp_path / "irc"
    package.mkdir()
    for path in harness.ROOT.iterdir():
        if (path.is_dir() and (path / "__init__.py").is_file()) or path.suffix == ".py":
            (package / path.name).symlink_to(path)
    if replaced:
        (package / "__init__.py").unlink()
        (package / "__init__.py").write_text('"""Internet Relay Chat."""\n')
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import irc.cli; sys.exit(irc.cli.program())"
    done = subprocess.run([sys.executable, "-c", code, "--version"], capture_output=True, text=True, check=False)
    if replaced:
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith("irc: another package with the folder irc") and done.stderr.count("\n") == 1
    else:
        assert (done.returncode, done.stderr) == (0, "")
