"""Models and pages for the tests of reports."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import harness
import irc
import numpy as np
from irc.passes import PassContext
from irc.tools.report import Recorder, collect, render
from onnx import ModelProto, TensorProto, helper, numpy_helper

DIGITS = harness.ROOT / "examples" / "digits_cnn.onnx"

HOSTILE = {
    "script": (
        "</script><img src=x"
        " onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    ),
    "comment": "<!--<script>",
    "quotes": "\"'` onload=alert(1) {{style}} ${document.title='owned'} $& \\u003c",
    "separators": "a\u2028b\u2029c\x00\x07\ud83d",
    "rtl": "\u202eשלום\u2066 مرحبا",
    "emoji": "👩‍👩‍👧‍👦🏳️‍🌈" * 20,
    "long": "x" * 50_000,
    "object": "__proto__",
    "template": "{{data}}{{script}}",
}

ALIGNMENT = [
    {"tensor": "stem", "max_abs": 3e-7, "max_rel": 2e-6, "sqnr": 131.0, "bound": 1e-6},
    {"tensor": "equal", "max_abs": 0.0, "max_rel": 0.0, "sqnr": float("inf"), "bound": 1e-6},
    {"tensor": "bad", "max_abs": 4e-3, "max_rel": 0.5, "sqnr": 22.5, "bound": 1e-5},
    {
        "tensor": "broken",
        "max_abs": float("nan"),
        "max_rel": float("nan"),
        "sqnr": None,
        "bound": 1e-5,
    },
    {"tensor": "free", "max_abs": 2e-5, "max_rel": 1e-4, "sqnr": 80.0, "bound": None},
]


def report_data(
    model: str | Path | ModelProto, passes: str | None = None, **options: Any
) -> dict[str, Any]:
    """What `collect` finds, without durations unless `options` ask for them."""
    module = irc.load(model) if isinstance(model, str | Path) else irc.frontends.load(model)
    recorder = Recorder(module)
    result = irc.compile(module, passes, context=PassContext([recorder]))
    name = model.name if isinstance(model, Path) else "model"
    return collect(name, recorder, result, **{"durations": False, **options})


def data_of(page: str) -> dict[str, Any]:
    """The data in a page."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def write(path: Path, data: dict[str, Any]) -> Path:
    path.write_text(render(data), encoding="utf-8")
    return path


def hostile_model(name: str) -> ModelProto:
    """Conv and BatchNormalization, with `name` in every name that there is."""
    rng = np.random.default_rng(0)
    arrays = {
        "w": rng.normal(size=(3, 2, 1, 1)),
        "gamma": rng.normal(size=3),
        "beta": rng.normal(size=3),
        "mean": rng.normal(size=3),
        "var": rng.uniform(0.5, 2, 3),
    }
    text = name.encode(errors="replace").decode()
    tensors = [
        numpy_helper.from_array(array.astype(np.float32), text + key)
        for key, array in arrays.items()
    ]
    batch_norm = [f"{text}h", *(text + key for key in ("gamma", "beta", "mean", "var"))]
    nodes = [
        helper.make_node("Conv", [f"{text}x", f"{text}w"], [f"{text}h"], name=f"{text}conv"),
        helper.make_node("BatchNormalization", batch_norm, [f"{text}n"], name=f"{text}bn"),
        helper.make_node(
            f"{text}Op", [f"{text}n"], [f"{text}y"], name=text, domain=text, note=text
        ),
    ]
    x = helper.make_tensor_value_info(f"{text}x", TensorProto.FLOAT, ["N", 2, text, 4])
    y = helper.make_tensor_value_info(f"{text}y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, text, [x], [y], tensors)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(text, 1)]
    return helper.make_model(graph, opset_imports=opsets, producer_name=text, ir_version=9)


def subgraph_model() -> ModelProto:
    """An If whose branches read an outer value, with a foldable BatchNormalization in one."""
    tensors = [
        numpy_helper.from_array(np.ones((2, 2, 1, 1), np.float32), "w"),
        *(
            numpy_helper.from_array(np.full(2, 0.5, np.float32), key)
            for key in ("gamma", "beta", "mean", "var")
        ),
    ]

    def branch(name: str, nodes: list[Any]) -> Any:
        return helper.make_graph(
            nodes, name, [], [helper.make_tensor_value_info(f"{name}_y", 1, None)]
        )

    then = branch(
        "then",
        [
            helper.make_node("Conv", ["a", "w"], ["t"], name="inner_conv"),
            helper.make_node(
                "BatchNormalization",
                ["t", "gamma", "beta", "mean", "var"],
                ["then_y"],
                name="inner_bn",
            ),
        ],
    )
    other = branch("else", [helper.make_node("Relu", ["a"], ["else_y"], name="inner_relu")])
    nodes = [
        helper.make_node("Abs", ["x"], ["a"], name="abs"),
        helper.make_node("If", ["c"], ["y"], name="choice", then_branch=then, else_branch=other),
    ]
    inputs = [
        helper.make_tensor_value_info("x", 1, [1, 2, 4, 4]),
        helper.make_tensor_value_info("c", 9, []),
    ]
    graph = helper.make_graph(
        nodes, "g", inputs, [helper.make_tensor_value_info("y", 1, None)], tensors
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
