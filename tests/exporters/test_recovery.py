"""Statistics regained from torch's default exports and other tools, which have folded."""

from __future__ import annotations

import functools
import io
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from harness import batch_norms
from irc.backends.foldmap.inverse import unfold
from irc.support.errors import FoldMapError, ModelError
from irc.tools.cli.main import main
from irc.tools.recovery import read_checkpoint, recover
from onnx import ModelProto

torch = pytest.importorskip(
    "torch", reason="torch is not installed: make test-exporters", exc_type=ImportError
)

from exporters.architectures import ARCHITECTURES, settle  # noqa: E402 - needs torch

BOTH = (
    "plain",
    "residual",
    "depthwise",
    "squeeze-excite",
    "pre-activation",
    "dense-concat",
    "branches",
    "decoder",
)
BOTH += ("shared-heads", "repvgg", "shuffle", "temporal", "video")
FOLDED = {"dynamo": (*BOTH, "generator", "mlp"), "torchscript": BOTH}
"""By exporter, the architectures of which it folds some BatchNormalization."""


@functools.cache
def network(name: str) -> Any:
    torch.manual_seed(0)
    return settle(ARCHITECTURES[name].build(), ARCHITECTURES[name].shape)


@functools.cache
def default_export(name: str, exporter: str) -> ModelProto:
    """The model as torch exports it if nobody asks for anything."""
    sample = (torch.randn(2, *ARCHITECTURES[name].shape),)
    if exporter == "dynamo":
        return torch.onnx.export(network(name), sample, dynamo=True, verbose=False).model_proto
    file = io.BytesIO()
    torch.onnx.export(network(name), sample, file, dynamo=False)
    return onnx.load_from_string(file.getvalue())


@pytest.mark.parametrize(
    ("exporter", "name"), [(e, name) for e, names in FOLDED.items() for name in names]
)
def test_default_exports(exporter: str, name: str, tmp_path: Path) -> None:
    model, folded = network(name), default_export(name, exporter)
    torch.save({"epoch": 3, "model": model.state_dict()}, tmp_path / "net.pt")
    found = recover(folded, read_checkpoint(tmp_path / "net.pt"))
    norms = [
        path
        for path, each in model.named_modules()
        if isinstance(each, torch.nn.modules.batchnorm._BatchNorm)
    ]
    hits = [hit.norm.path for hit in found.explanations]
    assert sorted({*hits, *found.kept}) == sorted(norms)
    assert not found.missing
    assert len(hits) == batch_norms(unfold(folded, found.fold_map)) - batch_norms(folded)
    for hit in found.explanations:
        known, norm = (
            found.fold_map.output_stats(hit.layer.node.name),
            model.get_submodule(hit.norm.path),
        )
        assert known is not None
        assert np.array_equal(known.mean, norm.bias.detach().double().numpy())
        assert np.array_equal(known.gamma, norm.weight.detach().double().numpy())
        (source,) = (each for each in found.fold_map.sources if each["id"] == f"A{known.source}")
        assert source["module"] == hit.norm.path


def test_the_unfolded_export_is_a_checkpoint_too(tmp_path: Path) -> None:
    """torch gives a Conv without a bias one that is computed at run time."""
    sample = (torch.randn(2, *ARCHITECTURES["residual"].shape),)
    source = torch.onnx.export(
        network("residual"), sample, dynamo=True, optimize=False, verbose=False
    ).model_proto
    onnx.save(source, tmp_path / "before.onnx")
    onnx.save(default_export("residual", "torchscript"), tmp_path / "folded.onnx")
    files = [
        str(tmp_path / name) for name in ("folded.onnx", "before.onnx", "map.json", "back.onnx")
    ]
    assert main(["foldmap", "recover", files[0], "--from", files[1], "-o", files[2], "-q"]) == 0
    assert main(["unfold", files[0], files[2], "-o", files[3]]) == 0
    assert onnx.load(files[3]) == source


def test_checkpoints_that_are_none(tmp_path: Path) -> None:
    model = network("residual")
    torch.save(model, tmp_path / "whole.pt")
    with pytest.raises(
        ModelError, match=r"whole.pt: it holds more than tensors: save model.state_dict\(\)"
    ):
        read_checkpoint(tmp_path / "whole.pt")
    torch.save({"a": model.state_dict(), "ema": model.state_dict()}, tmp_path / "two.pt")
    with pytest.raises(FoldMapError, match="several state_dicts, 'a', 'ema'"):
        read_checkpoint(tmp_path / "two.pt")
    torch.save({"epoch": 1}, tmp_path / "none.pt")
    with pytest.raises(FoldMapError, match="has no BatchNormalization"):
        read_checkpoint(tmp_path / "none.pt")
    with pytest.raises(ModelError, match="there is no such file"):
        read_checkpoint(tmp_path / "missing.pt")


@pytest.mark.parametrize("tool", ["onnxsim", "onnxslim"])
@pytest.mark.parametrize("name", ["residual", "depthwise", "shuffle", "video"])
def test_other_tools(tool: str, name: str) -> None:
    package = pytest.importorskip(tool, reason=f"{tool} is not installed")
    sample, file = (torch.randn(2, *ARCHITECTURES[name].shape),), io.BytesIO()
    options = {"training": torch.onnx.TrainingMode.PRESERVE, "do_constant_folding": False}
    torch.onnx.export(network(name), sample, file, dynamo=False, **options)
    source = onnx.load_from_string(file.getvalue())
    folded = package.simplify(source)[0] if tool == "onnxsim" else package.slim(source)
    from irc.tools.recovery.checkpoint import from_state

    state = {key: tensor.numpy() for key, tensor in network(name).state_dict().items()}
    found = recover(folded, from_state(state))
    assert len(found.explanations) == batch_norms(source) - batch_norms(folded) > 0
    assert not (found.missing or found.refused)
