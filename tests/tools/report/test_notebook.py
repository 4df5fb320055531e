"""Objects as a notebook shows them, and what irc says where another package took its place."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import warnings
from contextlib import redirect_stderr, redirect_stdout, suppress
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import harness
import irc
import onnx
import pytest
from harness import EXAMPLE
from irc.backends.quantizers.onnxruntime import quantizable_types
from irc.tools.report import notebook_page, show
from irc.tools.report.notebook import MAX_ROWS, frame, table
from irc.tools.verify import Comparison, VerifyNumerics

DRAWN = {"svg", "g", "rect", "path", "text", "tspan"}
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


def drawn(svg: str) -> list[str]:
    """The texts of a drawing."""
    return [text for text in ElementTree.fromstring(svg).itertext() if text.strip()]


def shown(item: object) -> Frame:
    outer = Frame(item._repr_html_())  # type: ignore[attr-defined]
    assert outer.tags == ["iframe"]
    assert outer.attributes["sandbox"] == ""
    page = Frame(str(outer.attributes["srcdoc"]))
    assert (
        set(page.tags)
        <= {"meta", "style", "b", "table", "tr", "th", "td", "details", "summary", "pre"} | DRAWN
    )
    return page


def test_a_module_shows_its_interface_and_operators() -> None:
    module = irc.load(EXAMPLE)
    assert repr(module) == "<Module 'digits_cnn': 27 operators, opsets: ai.onnx 17>"
    cells = shown(module).cells
    assert cells[:6] == ["input", "image", "f32[N,1,8,8]", "output", "logits", "f32[N,10]"]
    assert cells[cells.index("nn.conv") + 1] == "6"


def test_a_result_and_its_fold_map_show_where_each_affine_went() -> None:
    result = irc.compile(EXAMPLE)
    assert repr(result) == "<Result: 19 operators, scales and shifts: 8 folded>"
    assert repr(result.fold_map) == "<FoldMap: 8 layers, scales and shifts: 8 folded>"
    for item in (result, result.fold_map):
        cells = shown(item).cells
        first = cells.index("stem/bn")
        assert cells[first - 1 : first + 3] == [
            "BatchNormalization",
            "stem/bn",
            "folded",
            "stem/conv",
        ]


def test_an_affine_that_stays_shows_the_reason() -> None:
    kept = irc.compile(EXAMPLE, "none")
    assert "8 kept: not_attempted" in repr(kept)
    assert any(cell.startswith("not_attempted: ") for cell in shown(kept).cells)


def test_a_comparison_shows_its_inputs() -> None:
    comparison = Comparison(onnx.load(EXAMPLE))
    assert (
        repr(comparison)
        == f"<Comparison with 'digits_cnn' on {len(comparison.inputs)} sets of inputs>"
    )
    assert shown(comparison).cells[0] == comparison.inputs[0].name


def test_names_of_a_model_are_text() -> None:
    model = onnx.load(EXAMPLE)
    model.graph.input[0].name = model.graph.node[0].input[0] = ODD
    model.graph.node[1].name = ODD
    assert ODD in shown(irc.compile(model).module).cells
    assert ODD in shown(irc.compile(model)).cells


def test_a_result_shows_the_graphs_before_and_after() -> None:
    result = irc.compile(EXAMPLE)
    texts = drawn(result.drawing())
    assert texts[:2] == ["before", "image"] and "folded into stem/conv" in texts
    after = texts[texts.index("after") :]
    assert "took stem/bn" in after and "BatchNormalization" not in after
    assert result.drawing() in str(Frame(result._repr_html_()).attributes["srcdoc"])
    kept = drawn(irc.compile(EXAMPLE, keep=["head/bn"]).drawing())
    assert "kept: kept_by_user" in kept[: kept.index("after")]
    assert "BatchNormalization" in kept[kept.index("after") :]


def test_a_quantized_model_shows_its_report_and_graph() -> None:
    quantized = irc.quantize(EXAMPLE, input_ranges={"image": (0, 1)}, exclude=["head/fc2"])
    counted = repr(quantized).removeprefix("<Quantized: ").removesuffix(">")
    others = 9 + ("Flatten" in quantizable_types())
    assert counted.startswith(
        f"8 static, 0 dynamic, 1 float; {others} of 10 other operators int8; 99.9 %"
    )
    assert f"layers: {counted}" in shown(quantized).cells
    texts = drawn(quantized.drawing())
    assert texts[texts.index("head/fc2") + 1] == "float: --exclude"
    assert texts.count("int8") == 8 + others


@pytest.mark.parametrize("call", ["compile", "quantize"])
def test_progress_is_shown_to_those_who_ask(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    keywords: dict[str, Any] = {"input_ranges": {"image": (0, 1)}} if call == "quantize" else {}
    with redirect_stderr(io.StringIO()) as said:
        getattr(irc, call)(EXAMPLE, progress=True, **keywords)
    assert said.getvalue() == ""  # neither a terminal nor a notebook
    in_notebook(monkeypatch)
    with redirect_stderr(io.StringIO()) as said:
        getattr(irc, call)(EXAMPLE, **keywords)
    assert said.getvalue() == ""
    context = irc.passes.PassContext()
    keywords |= {"context": context} if call == "compile" else {}
    with redirect_stderr(io.StringIO()) as said:
        getattr(irc, call)(EXAMPLE, progress=True, **keywords)
    steps = [line.split() for line in said.getvalue().split("\r") if line.strip()]
    title = "compiling" if call == "compile" else "quantizing"
    assert steps[0][:2] == [title, "1"] and steps[0][2] in irc.passes.__all__
    assert [title, str(len(steps))] == steps[-1][:2] and (
        call == "compile" or steps[-1][2] == "comparison"
    )
    assert not context.instruments


def test_one_name_is_a_name() -> None:
    assert irc.compile(EXAMPLE, keep="head/bn").count() == {"folded": 7, "kept: kept_by_user": 1}
    quantized = irc.quantize(EXAMPLE, input_ranges={"image": (0, 1)}, exclude="head/fc2")
    assert repr(quantized).startswith("<Quantized: 8 static, 0 dynamic, 1 float; ")


def test_progress_on_a_terminal() -> None:
    done = run_on_a_terminal("import irc; irc.compile({model!r}, progress=True)")
    assert "compiling" in done
    assert run_on_a_terminal("import irc; irc.compile({model!r})") == ""


def test_without_progress_rich_is_not_imported() -> None:
    code = f"import irc, sys; irc.compile({str(EXAMPLE)!r}); sys.exit('rich' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_long_tables_end_with_the_number_of_other_rows() -> None:
    cells = Frame(table(("n",), [(n,) for n in range(MAX_ROWS + 3)])).cells
    assert len(cells) == MAX_ROWS + 1
    assert cells[-1] == "and 3 more"
    assert "height:480px" in frame("long", table(("n",), [(n,) for n in range(100)]))


@pytest.mark.parametrize("replaced", [False, True])
def test_a_package_in_the_place_of_irc_is_told_in_one_sentence(
    *, replaced: bool, tmp_path: Path
) -> None:
    package = tmp_path / "irc"
    package.mkdir()
    for path in harness.ROOT.iterdir():
        if (path.is_dir() and (path / "__init__.py").is_file()) or path.suffix == ".py":
            (package / path.name).symlink_to(path)
    if replaced:
        (package / "__init__.py").unlink()
        (package / "__init__.py").write_text('"""Internet Relay Chat."""\n')
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from irc.tools.cli.main import"
        " program; "
    )
    code += "sys.exit(program())"
    done = subprocess.run(
        [sys.executable, "-c", code, "--version"], capture_output=True, text=True, check=False
    )
    if replaced:
        assert (done.returncode, done.stdout) == (1, "")
        assert (
            done.stderr.startswith("irc: another package with the folder irc")
            and done.stderr.count("\n") == 1
        )
    else:
        assert (done.returncode, done.stderr) == (0, "")


def cells(name: str) -> list[str]:
    """The code cells of a notebook of the examples."""
    document = json.loads((harness.ROOT / "examples" / f"{name}.ipynb").read_text(encoding="utf-8"))
    assert all(
        not cell["outputs"] and cell["execution_count"] is None
        for cell in document["cells"]
        if "outputs" in cell
    )
    return ["".join(cell["source"]) for cell in document["cells"] if cell["cell_type"] == "code"]


@pytest.fixture
def examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the models of the examples, as working folder."""
    for name in ("digits_cnn.onnx", "digits_samples.npz"):
        shutil.copy(harness.ROOT / "examples" / name, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


NOTEBOOKS = ("from_torch_to_int8", "writing_a_pass")


def test_every_notebook_is_run() -> None:
    assert sorted(path.stem for path in (harness.ROOT / "examples").glob("*.ipynb")) == sorted(
        NOTEBOOKS
    )


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_the_cells_of_a_notebook_run(name: str, examples: Path) -> None:
    scope: dict[str, Any] = {"__name__": "__main__"}
    with redirect_stdout(io.StringIO()) as printed, warnings.catch_warnings():
        warnings.simplefilter("ignore" if find_spec("torch") else "error")
        for cell in cells(name):
            exec(compile(cell, name, "exec", dont_inherit=True), scope)
    if name == "from_torch_to_int8":
        assert scope["result"].fold_map.count() == {"folded": 8}
        assert scope["verify"].verdicts
        assert scope["float32"] == 1.0 and scope["int8"] > 0.95
    else:
        assert [node.op_type for node in scope["result"].model.graph.node] == ["Conv", "HardSwish"]
        assert "Conv {'acme.unit': 'dsp'}" in printed.getvalue()


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs_in_a_kernel(name: str, examples: Path) -> None:
    nbclient = pytest.importorskip(
        "nbclient", reason="nbclient is not installed: make test-notebooks"
    )
    import nbformat

    notebook = nbformat.read(harness.ROOT / "examples" / f"{name}.ipynb", as_version=4)
    nbclient.NotebookClient(
        notebook, timeout=300, resources={"metadata": {"path": str(examples)}}
    ).execute()
    shown = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    frames = [
        output["data"]["text/html"] for output in shown if "text/html" in output.get("data", {})
    ]
    assert frames and all(html.startswith("<iframe sandbox=") for html in frames)
    if name == "from_torch_to_int8":
        said = "".join(output["text"] for output in shown if output.get("name") == "stderr")
        assert "compiling |####################| 1 of 1 digits_cnn.onnx" in said
        assert "\rcompiling 1 " in said and "\rquantizing 1 " in said


def test_the_report_is_a_frame_that_reaches_nothing_outside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    page = show(EXAMPLE)
    assert repr(page) == f"<report on 'digits_cnn', {len(page.page):,} bytes>"
    outer = Frame(page._repr_html_())
    assert outer.tags == ["iframe"]
    assert outer.attributes["sandbox"] == "allow-scripts"
    assert outer.attributes["srcdoc"] == page.page
    assert "Content-Security-Policy" in page.page
    monkeypatch.setattr(notebook_page, "MAX_BYTES", 1000)
    assert Frame(page._repr_html_()).tags == ["p"]


def in_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process be the kernel of a notebook."""
    shell = type("Shell", (), {"kernel": None})()
    monkeypatch.setitem(
        sys.modules, "IPython", type("IPython", (), {"get_ipython": staticmethod(lambda: shell)})
    )


def run_on_a_terminal(code: str) -> str:
    """Return what a program writes to standard error where that is a terminal."""
    terminal, end = os.openpty()
    process = subprocess.Popen([sys.executable, "-c", code.format(model=str(EXAMPLE))], stderr=end)
    os.close(end)
    parts = []
    with os.fdopen(terminal, "rb", buffering=0) as stream, suppress(OSError):  # its end is an error
        while part := stream.read(4096):
            parts.append(part)
    assert process.wait() == 0
    return b"".join(parts).decode()


def test_a_progress_line_is_written_in_a_notebook(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    in_notebook(monkeypatch)
    with redirect_stderr(io.StringIO()) as said:
        irc.compile_many([EXAMPLE], tmp_path / "out", jobs=1)
    assert f"\rcompiling |{'#' * 20}| 1 of 1 " in said.getvalue()
    assert said.getvalue().endswith(" \r")
    monkeypatch.undo()
    with redirect_stderr(io.StringIO()) as said:
        irc.compile_many([EXAMPLE], tmp_path / "out", jobs=1)
    assert said.getvalue() == ""


def test_a_model_in_the_place_of_inputs_is_told() -> None:
    with pytest.raises(irc.UsageError, match="takes inputs, and no model"):
        VerifyNumerics(irc.load(EXAMPLE))  # type: ignore[arg-type]


def test_load_takes_a_model_in_memory() -> None:
    assert irc.load(onnx.load(EXAMPLE)).operators() == irc.load(EXAMPLE).operators()
    with pytest.raises(irc.UsageError, match="do not go with a ModelProto"):
        irc.load(onnx.load(EXAMPLE), args=(1,))
