"""Reports in a browser.

What is drawn, mouse and keyboard, and that nothing is fetched or run but the page's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import harness
import irc
import onnx
import pytest
from irc.tools.report import collect_alignment
from reports import ALIGNMENT, DIGITS, HOSTILE, hostile_model, report_data, subgraph_model

Open = Callable[[dict[str, Any]], Any]

ENTER, ESCAPE, TAB, DOWN, UP, RIGHT = "\ue007", "\ue00c", "\ue004", "\ue015", "\ue013", "\ue014"

UNNAMED = """
const kinds = "button, a, input, select, summary, aside, [role=button], [role=img], [role=group], [role=region]";
const named = (e) => e.getAttribute("aria-label") || e.textContent.trim() || e.labels?.length
  || e.hasAttribute("aria-labelledby");
return [...document.querySelectorAll(kinds)].filter((e) => e.checkVisibility() && !named(e))
  .map((e) => e.outerHTML.slice(0, 200));
"""

CONTRAST = """
const light = (color) => {
  const [r, g, b] = color.match(/[\\d.]+/g).slice(0, 3).map((x) => x / 255)
    .map((x) => x <= .03928 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4);
  return .2126 * r + .7152 * g + .0722 * b;
};
const ground = (e) => {
  for (; e; e = e.parentElement) {
    const color = getComputedStyle(e).backgroundColor;
    if (!/, 0\\)$/.test(color)) return color;
  }
  return "rgb(255, 255, 255)";
};
return [...document.querySelectorAll("p, span, b, dt, li, td, th, a, button, h1, h2, h3, label, code, ins, del")]
  .filter((e) => e.checkVisibility() && e.textContent.trim() && !e.closest(".hidden, .skip"))
  .map((e) => {
    const [a, b] = [light(getComputedStyle(e).color), light(ground(e))];
    return [(Math.max(a, b) + .05) / (Math.min(a, b) + .05), e.textContent.slice(0, 40)];
  })
  .filter(([ratio]) => ratio < 4.5)
"""

WHEEL = """
const wheel = new WheelEvent("wheel", {deltaY: -99, ctrlKey: arguments[0], cancelable: true});
document.querySelector("#pane-0 .canvas").dispatchEvent(wheel);
"""

STUB = """
const stub = document.querySelector("#pane-1 .box.stub");
stub.dispatchEvent(new Event("click", {bubbles: true}));
return stub.querySelector(".label").textContent;
"""

INTRUDE = """
const script = document.createElement("script");
script.append("document.title = 'owned'");
const image = document.createElement("img");
image.src = "http://192.0.2.1/x.png";
document.body.append(script, image);
"""


def test_a_report_loads_without_errors_and_fetches_nothing(page: Open) -> None:
    report = page(report_data(DIGITS, alignment=ALIGNMENT))
    assert report.run("return document.querySelectorAll('#pane-0 .box.node').length") == 27
    assert report.run("return document.querySelectorAll('#pane-1 .box.node').length") == 19
    assert report.run("return document.querySelectorAll('#affine-rows tr:not(.block)').length") == 8
    assert report.run("return document.querySelectorAll('.plot .point').length") == 5
    assert report.run("return document.title").startswith("digits_cnn.onnx")
    for details in report.browser.find_elements("css selector", "details:not([open]) > summary"):
        details.click()
    assert report.run("return document.querySelectorAll('.diff .removed').length") > 8
    assert report.console() == []
    assert report.requests() == []


def test_a_page_on_two_models_says_nothing_of_passes_that_did_not_run(page: Open) -> None:
    first = onnx.load(DIGITS)
    report = page(
        collect_alignment(("a.onnx", "b.onnx"), first, irc.compile(DIGITS).model, ALIGNMENT)
    )
    visible = "[...document.querySelectorAll(arguments[0])].filter((e) => e.checkVisibility())"
    shown = f"return {visible}.map((e) => e.innerText)"
    assert report.run(shown, "nav a") == ["Summary", "Graph", "Alignment"]
    assert report.run(shown, ".figure dt") == ["Operators", "Size"]
    assert report.run(shown, "#affines, #passes") == []
    assert report.console() == []


def test_a_click_opens_a_layer(page: Open) -> None:
    report = page(report_data(DIGITS))
    report.box(1, "stem/conv").click()
    assert "Folded into this layer (1)" in report.panel
    assert "stem/bn" in report.panel
    assert all(name in report.panel for name in ("gamma", "beta", "mean", "var"))
    assert report.run("return document.querySelectorAll('#panel .chart svg').length") == 7
    marked = report.run(
        "return [...document.querySelectorAll('#pane-0 .other .label')].map((e) => e.textContent)"
    )
    assert sorted(marked) == ["stem/bn", "stem/conv"]
    report.run("document.querySelector('#panel .close').click()")
    assert report.panel == ""


def test_what_stays_shows_its_reason(page: Open) -> None:
    report = page(report_data(DIGITS, "SimplifyInference"))
    report.box(1, "stem/bn").click()
    assert "not_attempted" in report.panel


def test_the_keyboard_walks_opens_and_closes(page: Open) -> None:
    report = page(report_data(DIGITS))
    report.press(TAB)
    assert report.focused() == "Skip to the graph"
    report.press(ENTER)
    assert report.run("return document.activeElement.id") == "graph"
    for _ in range(30):
        report.press(TAB)
        if report.focused().startswith("Conv stem/conv"):
            break
    assert report.focused() == "Conv stem/conv, absorbed affines"
    report.press(DOWN)
    assert report.focused() == "BatchNormalization stem/bn, folded away"
    report.press(DOWN, UP, UP)
    assert report.focused().startswith("Conv stem/conv")
    assert (
        report.run(
            "return getComputedStyle(document.activeElement.querySelector('rect')).strokeWidth"
        )
        == "4px"
    )
    report.press(DOWN, ENTER)
    assert "stem/bn" in report.panel
    assert report.run("return document.activeElement.id") == "panel-title"
    report.press(ESCAPE)
    assert report.panel == ""
    assert report.focused().startswith("BatchNormalization stem/bn")


def test_panning_and_zooming(page: Open) -> None:
    from selenium.webdriver import ActionChains

    report = page(report_data(DIGITS))
    state = "return document.querySelector('#pane-0 .canvas > g').getAttribute('transform')"
    states = [report.run(state)]
    canvas = report.browser.find_element("css selector", "#pane-0 .canvas")
    ActionChains(report.browser).move_to_element_with_offset(
        canvas, -200, 0
    ).click_and_hold().move_by_offset(40, 60).release().perform()
    states.append(report.run(state))
    report.browser.find_element("css selector", "#pane-0 [aria-label^='Zoom in']").click()
    states.append(report.run(state))
    report.browser.find_element("css selector", "#pane-0 [aria-label^='Show the whole']").click()
    states.append(report.run(state))
    report.run("document.querySelector('#pane-0 .box.node').focus()")
    report.press("+")
    states.append(report.run(state))
    report.run(WHEEL, True)
    states.append(report.run(state))
    assert len(set(states)) == len(states)
    report.run(WHEEL, False)
    assert report.run(state) == states[-1]
    assert report.panel == ""


@pytest.mark.shared
@pytest.mark.parametrize("name", ["gtcrn__gtcrn", "Paddle2ONNX__picodet_s_320_coco"])
def test_a_large_model_is_there_within_seconds(page: Open, name: str) -> None:
    paths = [path for path in harness.shared_models("real") if path.stem == name]
    if not paths:
        pytest.skip(f"{name} is not among the shared models")
    report = page(report_data(paths[0]))
    assert report.seconds < 5
    assert 0 < report.run("return document.querySelectorAll('#pane-0 .box.node').length") <= 80
    report.run("document.getElementById('range-next').click()")
    assert report.run("return document.getElementById('range-text').textContent").startswith(
        "41–120"
    )
    report.run("go(1, 0, data.graphs[1][0].nodes.length - 1)")
    assert report.panel
    assert report.run("return document.querySelectorAll('#pane-1 .selected').length") == 1
    report.run(
        "const m = document.getElementById('mode'); m.value = 'around'; m.dispatchEvent(new"
        " Event('change'))"
    )
    assert report.run("return document.querySelectorAll('#pane-1 .selected').length") == 1
    assert int(report.run("return document.documentElement.dataset.layout")) < 3000
    assert report.run(STUB)
    assert report.console() == []


def test_subgraphs_can_be_entered(page: Open) -> None:
    report = page(report_data(subgraph_model()))
    report.box(0, "choice").click()
    report.run(
        "[...document.querySelectorAll('#panel button')].find((b) =>"
        " b.textContent.includes('then_branch')).click()"
    )
    assert report.run("return document.querySelectorAll('#pane-0 .box.node').length") == 2
    assert report.run("return document.querySelectorAll('#pane-1 .box.node').length") == 1
    assert (
        report.run("return document.getElementById('scope').selectedOptions[0].textContent")
        == "choice then_branch"
    )
    assert report.console() == []


def test_finding_a_layer(page: Open) -> None:
    report = page(report_data(DIGITS))
    report.browser.find_element("id", "find-text").send_keys("residual/conv2", ENTER)
    assert "residual/conv2" in report.panel
    report.run("document.querySelector('#affine-rows button').click()")
    assert "stem/bn" in report.panel


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_names_do_nothing(page: Open, kind: str) -> None:
    data = report_data(
        hostile_model(HOSTILE[kind]), alignment=[{**ALIGNMENT[0], "tensor": HOSTILE[kind]}]
    )
    report = page(data)
    for side in (0, 1):
        for node in range(3 - side):
            report.run("open(arguments[0], arguments[1])", side, node)
            assert report.panel
    report.run("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    assert report.run("return document.title") == "model – irc report"
    assert (
        report.run(
            "return document.querySelectorAll('img, iframe, object, script:not([id]), body"
            " [onload]').length"
        )
        == 2
    )
    assert report.run("return document.documentElement.scrollWidth") <= 1500
    assert report.console() == []
    assert report.requests() == []


def test_a_script_that_is_not_the_pages_own_is_refused(page: Open) -> None:
    report = page(report_data(DIGITS))
    report.run(INTRUDE)
    assert report.run("return document.title") != "owned"
    messages = " ".join(report.console())
    assert "TrustedScript" in messages
    assert "Content Security Policy" in messages
    assert "TrustedHTML" in report.run(
        "try { document.body.innerHTML = '<b>'; } catch (error) { return error.message; }"
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everything_has_a_name_and_can_be_read(page: Open, scheme: str) -> None:
    report = page(report_data(DIGITS, alignment=ALIGNMENT))
    report.browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
    )
    try:
        report.run(
            "open(1, 0); document.querySelectorAll('details').forEach((d) => { d.open = true; })"
        )
        assert report.run(UNNAMED) == []
        assert report.run("return document.documentElement.lang") == "en"
        assert (
            report.run(
                "const i = [...document.querySelectorAll('[id]')].map((e) => e.id); return i.length"
                " - new Set(i).size"
            )
            == 0
        )
        assert report.run("return [...document.querySelectorAll('h1')].length") == 1
        report.until("return document.querySelectorAll('.diff').length > 2")
        assert report.run(CONTRAST) == []
    finally:
        report.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
