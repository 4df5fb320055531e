"""Reports: the data in them, and that a page runs nothing and fetches nothing but its own."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import harness
import irc
import numpy as np
import onnx
import pytest
from irc.support.errors import EmitError
from irc.tools.cli.main import main
from irc.tools.report import channels, render, write_report
from irc.tools.report.page_text import short
from irc.tools.report.text_diff import MAX_COMPARED, MAX_LINES, MAX_WIDTH, diff
from reports import ALIGNMENT, DIGITS, HOSTILE, data_of, hostile_model, report_data, subgraph_model

FOLDER = harness.ROOT / "tools" / "report"


class Elements(HTMLParser):
    """The elements of a page, with their attributes, and the text in scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.found and self.found[-1][0] in ("script", "style"):
            self.texts.append(data)


def test_the_summary_says_what_the_compile_did() -> None:
    data = report_data(DIGITS)
    assert data["model"]["name"] == "digits_cnn.onnx"
    assert data["summary"]["operators"] == [27, 19]
    assert data["summary"]["affines"] == {"folded": 8}
    assert data["summary"]["bytes"][0] == DIGITS.stat().st_size
    names = [step["name"] for step in data["passes"]]
    assert names.index("SimplifyInference") + 1 == names.index("FoldScaleAxis")


def test_every_operator_says_what_became_of_it() -> None:
    data = report_data(DIGITS)
    (before,), (after,) = data["graphs"]
    norms = [node for node in before["nodes"] if node["op"] == "BatchNormalization"]
    assert len(norms) == 8
    for node in norms:
        assert node["status"] == "folded"
        ((graph, place),) = node["to"]
        target = data["graphs"][1][graph]["nodes"][place]
        assert target["status"] == "layer"
        layer = data["layers"][target["layer"]]
        assert node["affine"] in [fold["affine"] for fold in layer["folds"]]
        assert layer["name"] == target["name"]
    assert {node["status"] for node in after["nodes"]} == {"layer", "same"}
    assert not any(node["op"] == "Constant" for graph in (before, after) for node in graph["nodes"])


def test_edges_lead_along_values_and_constants_are_marked() -> None:
    (graph,) = report_data(DIGITS)["graphs"][0]
    conv = graph["nodes"][0]
    data, weight = (graph["values"][value] for value in conv["in"][:2])
    assert data == ["image", "f32[N,1,8,8]", "value"]
    assert weight[2] == "constant"
    assert graph["nodes"][1]["in"][0] == conv["out"][0]


def test_a_layer_has_the_ranges_of_its_weights() -> None:
    data = report_data(DIGITS)
    layer = data["layers"][0]
    before, after = layer["ranges"]
    weights = {
        tensor.name: onnx.numpy_helper.to_array(tensor)
        for tensor in onnx.load(DIGITS).graph.initializer
    }
    weight = weights["stem/conv.weight"]
    np.testing.assert_allclose(before["low"], weight.min((1, 2, 3)), rtol=1e-3)
    np.testing.assert_allclose(before["high"], weight.max((1, 2, 3)), rtol=1e-3)
    assert after["low"] != before["low"]
    gamma = data["affines"][layer["folds"][0]["affine"]]["params"]["gamma"]
    np.testing.assert_allclose(gamma["low"], weights["stem/bn.weight"], rtol=1e-3)


def test_ranges_of_a_grouped_transposed_convolution_follow_its_channels() -> None:
    weight = np.arange(2 * 3 * 2.0).reshape(4, 3, 1)  # two groups of two inputs and three outputs
    found = channels.weight_chart(weight, 1, 2)
    assert found is not None
    assert found["low"] == [0, 1, 2, 6, 7, 8]
    assert found["high"] == [3, 4, 5, 9, 10, 11]


def test_charts_are_bounded_and_know_what_is_not_finite() -> None:
    found = channels.chart(np.arange(1000.0))
    assert len(found["low"]) == len(found["high"]) == channels.MAX_BARS
    assert (found["low"][0], found["high"][-1], found["channels"]) == (0, 999, 1000)
    broken = channels.chart(np.array([1.0, np.nan, np.inf]))
    assert (broken["min"], broken["max"], broken["nonfinite"], broken["low"]) == (
        1,
        1,
        2,
        [1, None, None],
    )
    assert channels.chart(np.zeros(0))["low"] == []


def test_what_stays_has_its_reason_and_notes() -> None:
    data = report_data(DIGITS, "SimplifyInference,FoldConstant")
    assert data["summary"]["affines"] == {"kept: not_attempted": 8}
    kept = [node for node in data["graphs"][1][0]["nodes"] if node["status"] == "kept"]
    assert len(kept) == 8
    assert data["affines"][kept[0]["affine"]]["reason"] == "not_attempted"


def test_subgraphs_are_graphs_of_their_own() -> None:
    data = report_data(subgraph_model())
    before = data["graphs"][0]
    assert [graph["title"] for graph in before] == [
        "main graph",
        "choice else_branch",
        "choice then_branch",
    ]
    choice = before[0]["nodes"][1]
    assert choice["graphs"] == [1, 2]
    assert choice["status"] == "inside"
    assert [before[0]["values"][value][0] for value in choice["reads"]] == ["a"]
    inner = before[2]["nodes"][1]
    assert (inner["name"], inner["status"]) == ("inner_bn", "folded")
    assert inner["to"] == [[2, 0]]
    assert before[2]["values"][before[2]["nodes"][0]["in"][0]][2] == "outer"


def test_subgraphs_of_nodes_with_one_name_stay_apart() -> None:
    model = subgraph_model()
    second = model.graph.node.add()
    second.CopyFrom(model.graph.node[1])
    second.output[0] = "z"
    del second.attribute[0].g.node[:]
    second.attribute[0].g.output[0].name = "a"
    before = report_data(model)["graphs"][0]
    assert [node.get("graphs") for node in before[0]["nodes"]] == [None, [1, 2], [3, 4]]
    assert [len(graph["nodes"]) for graph in before] == [3, 1, 2, 0, 2]


def test_passes_carry_their_differences() -> None:
    step = next(
        step for step in report_data(DIGITS)["passes"] if step["name"] == "SimplifyInference"
    )
    assert step["changed"]
    assert sum(line.startswith("-") for line in step["lines"]) == step["removed"] == 8
    assert any("nn.batch_norm" in line for line in step["lines"])
    assert step["seconds"] is None
    assert report_data(DIGITS, durations=True, seconds=1.0)["passes"][0]["seconds"] > 0


def test_differences_are_bounded() -> None:
    old = [f"line {i}" for i in range(3 * MAX_LINES)]
    new = [f"{line} {'x' * 2 * MAX_WIDTH}" for line in old]
    found = diff(old, new)
    assert (found.added, found.removed, len(found.lines)) == (len(old), len(old), MAX_LINES)
    assert found.left_out
    assert max(map(len, diff(old[:5], new[:5]).lines)) <= MAX_WIDTH + 1
    large = [str(i) for i in range(MAX_COMPARED)]
    found = diff(large, [f"{line}'" for line in large])
    assert (found.added, found.lines, found.left_out) == (MAX_COMPARED, (), None)


def test_line_numbers_count_from_the_start_of_the_text() -> None:
    old = [f"line {i}" for i in range(100)]
    new = [*old[:50], "new", *old[50:]]
    assert diff(old, new).lines == (
        "@@ -49,4 +49,5 @@",
        " line 48",
        " line 49",
        "+new",
        " line 50",
        " line 51",
    )
    assert diff(old, old).lines == ()
    assert diff([], ["a"]).lines == ("@@ -0,0 +1 @@", "+a")


def test_models_without_passes_nodes_or_source_have_reports(tmp_path: Path) -> None:
    data = report_data(DIGITS, "none")
    assert data["passes"] == []
    assert {node["status"] for node in data["graphs"][1][0]["nodes"]} <= {"same", "kept"}
    text = tmp_path / "net.irc"
    text.write_text(
        'module {ir_version=10, opsets={"": 21}}\n\ngraph @g(%x: f32[2]) {\n  return(%x)\n}\n'
    )
    assert main(["report", str(text), "-o", str(tmp_path / "r.html"), "-q"]) == 0
    assert data_of((tmp_path / "r.html").read_text())["graphs"][0][0]["nodes"] == []


def test_alignment_is_data_with_texts_for_what_json_has_not() -> None:
    rows = report_data(DIGITS, alignment=ALIGNMENT)["alignment"]
    assert rows[0]["max_abs"] == 3e-7
    assert rows[1]["sqnr"] == "inf"
    assert rows[3]["max_abs"] == "nan"
    assert rows[4]["bound"] is None
    assert report_data(DIGITS)["alignment"] is None


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_text_stays_text(kind: str) -> None:
    name = HOSTILE[kind]
    data = report_data(hostile_model(name), alignment=[{**ALIGNMENT[0], "tensor": name}])
    page = render({**data, "model": {**data["model"], "name": name}})
    plain = render(report_data(DIGITS))
    assert [tag for tag, _ in Elements(page).found] == [tag for tag, _ in Elements(plain).found]
    block = page[page.index('id="data">') : page.index("</script>", page.index('id="data">'))]
    assert not set(block[10:]) & set("<>&\u2028\u2029")
    assert (
        data_of(page)["alignment"][0]["tensor"][:40]
        == short(name).encode(errors="replace").decode()[:40]
    )
    assert len(page) < len(plain) + 200_000


def test_what_would_move_other_text_about_is_shown_by_its_number() -> None:
    assert short("a\u202eb\u2066c\x07\u2028") == "a\\u{202e}b\\u{2066}c\\u{7}\\u{2028}"
    assert short(HOSTILE["emoji"][:7]) == HOSTILE["emoji"][:7]
    assert len(short("x" * 9_999)) == 1_001


def test_a_page_names_no_other_place() -> None:
    page = render(report_data(DIGITS))
    for tag, attributes in Elements(page).found:
        for name in ("src", "action", "data", "srcset", "poster"):
            assert name not in attributes, tag
        assert (attributes.get("href") or "#").startswith(("#", "data:"))
        assert not any(name.startswith("on") or name == "style" for name in attributes)
    urls = set(re.findall(r"https?://[^\s\"'`<>)]+", page))
    assert urls == {"http://www.w3.org/2000/svg"}
    assert "sourceMappingURL" not in page
    assert "@import" not in page
    assert "url(" not in (FOLDER / "page.css").read_text()


def test_the_policy_lets_only_the_pages_own_scripts_run() -> None:
    page = render(report_data(DIGITS))
    elements = Elements(page)
    (policy,) = [
        a["content"]
        for tag, a in elements.found
        if a.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy is not None
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    assert policy.count("'sha256-") == 3


def test_scripts_make_no_markup_from_text() -> None:
    for path in FOLDER.glob("*.js"):
        text = path.read_text()
        for word in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "Function(",
            "fetch(",
        ):
            assert word not in text, (path.name, word)


def test_equal_compiles_give_equal_pages_in_any_process(tmp_path: Path) -> None:
    pages = []
    for seed in ("0", "1"):
        path = tmp_path / f"{seed}.html"
        command = [
            sys.executable,
            "-m",
            "irc",
            "report",
            DIGITS,
            "-o",
            path,
            "-q",
            "--no-durations",
        ]
        subprocess.run(command, check=True, env={**os.environ, "PYTHONHASHSEED": seed})
        pages.append(path.read_bytes())
    assert pages[0] == pages[1]


def test_compile_writes_the_report_beside_the_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, report = tmp_path / "out.onnx", tmp_path / "r.html"
    assert main(["compile", str(DIGITS), "-o", str(output), "--report", str(report)]) == 0
    data = data_of(report.read_text())
    assert data["summary"]["operators"] == [27, 19]
    assert data["summary"]["seconds"] > 0
    assert "27 -> 19 operators" in capsys.readouterr().err
    plain = tmp_path / "plain.onnx"
    assert main(["compile", str(DIGITS), "-o", str(plain), "-q"]) == 0
    assert plain.read_bytes() == output.read_bytes()


@pytest.mark.parametrize("report", ["-", "out.onnx", "net.onnx", "map.json", "map.npz"])
def test_a_report_takes_no_other_files_place(
    report: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.onnx").write_bytes(DIGITS.read_bytes())
    assert (
        main(
            ["compile", "net.onnx", "-o", "out.onnx", "--fold-map", "map.json", "--report", report]
        )
        == 2
    )
    assert (
        "a report needs a file" if report == "-" else f"irc: {report}: "
    ) in capsys.readouterr().err
    assert os.listdir() == ["net.onnx"]


def test_a_report_is_there_in_full_or_not_at_all(tmp_path: Path) -> None:
    with pytest.raises(EmitError, match="cannot be written"):
        write_report(tmp_path / "no" / "r.html", report_data(DIGITS))
    assert not list(tmp_path.iterdir())


def test_a_compile_writes_both_files_or_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").mkdir()
    for output, report in (
        (tmp_path / "out.onnx", tmp_path / "no" / "r.html"),
        (tmp_path / "no" / "o", tmp_path / "r"),
    ):
        assert main(["compile", str(DIGITS), "-o", str(output), "--report", str(report)]) == 1
        assert "cannot be written" in capsys.readouterr().err
        assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_a_plain_compile_imports_no_report(tmp_path: Path) -> None:
    output = str(tmp_path / "out.onnx")
    code = (
        f"from irc.tools.cli.main import main; main(['compile', {str(DIGITS)!r}, '-q', '-o',"
        f" {output!r}]);import sys; print([name for name in sys.modules if"
        " name.startswith('irc.tools.report')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_layout_library_is_the_one_that_is_documented() -> None:
    makefile = (harness.ROOT / "Makefile").read_text()
    version = re.search(r"DAGRE := (\S+)", makefile)
    assert version is not None
    assert f"dagre-{version[1]}.tgz" in (FOLDER / "vendor" / "README.md").read_text()
    assert f"dagre {version[1]}" in (FOLDER / "sections.js").read_text()
    script = (FOLDER / "vendor" / "dagre.min.js").read_bytes()
    assert hashlib.sha256(script).hexdigest() == SHA256
    assert (FOLDER / "vendor" / "dagre.LICENSE").read_text().splitlines()[0] in render(
        report_data(DIGITS)
    )


SHA256 = "54a503e346f93ca0bb10abe7999587e037262935687aca45eb4e4b0f64bbb578"


@pytest.mark.shared
@pytest.mark.slow
@pytest.mark.parametrize("folder", ["real", "legacy_bn"])
def test_reports_on_real_models(folder: str) -> None:
    for path in harness.shared_models(folder)[:12]:
        data = report_data(path)
        check_places(data)
        assert len(render(data)) < 4_000_000, path


def check_places(data: dict[str, Any]) -> None:
    """Whatever names a place names one that is there, from both sides."""
    for side, graphs in enumerate(data["graphs"]):
        for g, graph in enumerate(graphs):
            for n, node in enumerate(graph["nodes"]):
                numbers = [*node["in"], *node["out"], *node.get("reads", [])]
                assert all(-1 <= value < len(graph["values"]) for value in numbers)
                assert all(inner < len(graphs) for inner in node.get("graphs", []))
                for other, place in node.get("from" if side else "to", []):
                    there = data["graphs"][1 - side][other]["nodes"][place]
                    assert [g, n] in there["to" if side else "from"]
    assert sum(data["summary"]["affines"].values()) == len(data["affines"])


def test_the_data_need_no_command_line() -> None:
    assert irc.__version__ == report_data(DIGITS)["irc"]
