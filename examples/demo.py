"""Compile the example network, compare its labels before and after, and show the layer of every
fold.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import irc
import numpy as np
import onnx
import onnxruntime
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent


def predict(model: onnx.ModelProto, images: np.ndarray) -> np.ndarray:
    """Return logits [N, 10], by onnxruntime without graph optimisations."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, {session.get_inputs()[0].name: images})[0]


def folds(result: irc.Result) -> Table:
    """Return a table with a row for each affine: the layer it was folded into, and the tensors it
    changed.
    """
    layers = {layer["id"]: layer for layer in result.fold_map.layers}
    table = Table(
        "affine", "went into", "weight (output axis)", "bias", title="What was folded where"
    )
    for source in result.fold_map.sources:
        name = source["node"]["name"]
        if source["status"] != "folded":
            table.add_row(name, f"{source['status']} ({source['reason']})", "", "")
        for layer in (layers[number] for number in source["layers"]):
            weight, bias = layer["weight"], layer["bias"]
            made = " (made)" if bias["created"] else ""
            table.add_row(
                name,
                layer["node"]["name"],
                f"{weight['name']} ({weight['out_axis']})",
                bias["name"] + made,
            )
    return table


def statistics(result: irc.Result) -> Table:
    """Return a table of the BatchNormalization statistics in the fold map, as means
    over channels.
    """
    table = Table(
        "affine",
        "channels",
        "gamma",
        "beta",
        "mean",
        "var",
        title="What the fold map keeps (channel means)",
    )
    for source in result.fold_map.sources:
        params = {
            key: result.fold_map.arrays.get(entry["value"])
            for key, entry in source["params"].items()
        }
        means = [f"{params[key].mean():.4f}" for key in ("gamma", "beta", "mean", "var")]
        table.add_row(source["node"]["name"], str(source["channels"]), *means)
    return table


def main() -> None:
    """Compile the network, compare the results and print the tables."""
    console = Console(width=110)
    model = onnx.load(HERE / "digits_cnn.onnx")
    with np.load(HERE / "digits_samples.npz") as samples:
        images, labels = samples["images"].astype(np.float32), samples["labels"]

    result = irc.compile(HERE / "digits_cnn.onnx")
    console.print(folds(result))
    console.print(statistics(result))

    before, after = predict(model, images), predict(result.model, images)
    right = [int((logits.argmax(1) == labels).sum()) for logits in (before, after)]
    console.print(f"operators: {len(model.graph.node)} -> {result.operators}")
    console.print(
        f"labels right: {right[0]} of {len(labels)} before, {right[1]} of {len(labels)} after"
    )
    console.print(
        f"largest difference of a logit: {np.abs(before - after).max():.2e} (of"
        f" {np.abs(before).max():.1f})"
    )
    if not (before.argmax(1) == after.argmax(1)).all():
        raise SystemExit("the compiled model changes the label of an image")

    folder = Path(tempfile.mkdtemp(prefix="irc-demo-"))
    result.save(folder / "digits_cnn.irc.onnx", fold_map=folder / "digits_cnn.foldmap.json")
    console.print(
        f"model and fold map: {folder}/digits_cnn.irc.onnx, digits_cnn.foldmap.json; the map"
        " begins:"
    )
    lines = (folder / "digits_cnn.foldmap.json").read_text().splitlines()
    console.print("\n".join(line[:100] for line in lines[:48]), highlight=False, markup=False)


if __name__ == "__main__":
    main()
