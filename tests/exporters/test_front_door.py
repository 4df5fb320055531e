"""`irc.compile` and `irc.load` of torch modules, ExportedPrograms and .pt2 files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import irc
import numpy as np
import onnx
import pytest
from harness import batch_norms, operators, run
from irc.tools.cli.main import main

torch = pytest.importorskip(
    "torch", reason="torch is not installed: make test-exporters", exc_type=ImportError
)

from exporters.architectures import ARCHITECTURES, conv_norm, settle  # noqa: E402 - needs torch

nn = torch.nn
SHAPE = (3, 16, 16)


def network() -> Any:
    torch.manual_seed(0)
    return settle(ARCHITECTURES["residual"].build(), SHAPE)


def sample(batch: int = 2) -> Any:
    return torch.randn(batch, *SHAPE, generator=torch.Generator().manual_seed(1))


def assert_computes(result: irc.Result, model: Any, inputs: dict[str, Any]) -> None:
    with torch.no_grad():
        expected = model(**inputs).double().numpy()
    (found,) = run(result.model, {name: value.numpy() for name, value in inputs.items()}).values()
    assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize(
    "export", [None, {"dynamo": False, "input_names": ["x"]}], ids=["dynamo", "torchscript"]
)
def test_a_module_is_compiled_with_its_statistics(export: dict[str, Any] | None) -> None:
    model = network()
    before = sum(isinstance(inner, nn.BatchNorm2d) for inner in model.modules())
    result = irc.compile(model, args=(sample(),), export=export)
    assert batch_norms(result.model) == 0
    assert result.fold_map.count()["folded"] == before
    named = {path for path, inner in model.named_modules() if isinstance(inner, nn.BatchNorm2d)}
    assert {source["module"] for source in result.fold_map.sources} >= named
    assert_computes(result, model, {"x": sample()})


def test_dynamic_shapes_stay_dynamic() -> None:
    model = network()
    result = irc.compile(model, args=(sample(),), dynamic_shapes=({0: torch.export.Dim("batch")},))
    assert_computes(result, model, {"x": sample(5)})


def test_inputs_by_name() -> None:
    model = network()
    module = irc.load(model, kwargs={"x": sample()})
    irc.passes.default_pipeline()(module)
    assert_computes(irc.emit(module), model, {"x": sample()})


def test_exported_programs_and_their_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = network()
    program = torch.export.export(model, (sample(),))
    direct = irc.compile(program).model
    file, output = str(tmp_path / "net.pt2"), tmp_path / "net.irc.onnx"
    torch.export.save(program, file)
    assert main(["compile", file, "-q"]) == 0
    assert capsys.readouterr().err == ""
    assert operators(onnx.load(output)) == operators(direct)
    assert onnx.load(output).graph.initializer == direct.graph.initializer
    assert_computes(irc.compile(file), model, {"x": sample()})


def test_a_file_that_is_no_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken, missing = tmp_path / "broken.pt2", tmp_path / "missing.pt2"
    broken.write_bytes(b"PK nothing")
    assert main(["compile", str(broken)]) == 1
    assert main(["compile", str(missing)]) == 1
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith(f"irc: {broken}: torch cannot read this as an ExportedProgram: ")
    assert second == f"irc: {missing}: there is no such file"


def test_train_mode_is_refused() -> None:
    model = network().train()
    with pytest.raises(
        irc.ModelError, match=r"the model is in train\(\) mode: call eval\(\) on the model first"
    ):
        irc.compile(model, args=(sample(),))
    with pytest.raises(
        irc.ModelError, match=r"exported in train\(\) mode \(aten.batch_norm.default\): call eval"
    ):
        irc.compile(torch.export.export(model, (sample(),)))
    model.eval()
    path, inner = next(
        (p, each) for p, each in model.named_modules() if isinstance(each, nn.BatchNorm2d)
    )
    inner.train()
    with pytest.raises(irc.ModelError, match=rf"its module '{path}' is in train\(\) mode"):
        irc.load(model, args=(sample(),))
    inner.eval()
    irc.load(model, args=(sample(),))


class Unsupported(nn.Module):
    def forward(self, x: Any) -> Any:
        return torch.linalg.svd(x.flatten(2))[0]


class Branching(nn.Module):
    def forward(self, x: Any) -> Any:
        if x.sum() > 0:
            x = x + 1
        return x


class Misshapen(nn.Module):
    def forward(self, x: Any) -> Any:
        return x.reshape(7)


@pytest.mark.parametrize(
    ("model", "export", "operator", "line", "reason"),
    [
        (
            Unsupported,
            None,
            "aten._linalg_svd.default",
            "torch.linalg.svd(x.flatten(2))[0]",
            "No ONNX function found",
        ),
        (Unsupported, {"dynamo": False}, "aten::linalg_svd", "torch.linalg.svd", "not supported"),
        (Branching, None, "", "if x.sum() > 0:", "Could not guard on data-dependent expression"),
        (Misshapen, None, "", "return x.reshape(7)", "shape '[7]' is invalid"),
        (Misshapen, {"dynamo": False}, "", "return x.reshape(7)", "shape '[7]' is invalid"),
    ],
)
def test_errors_name_operator_and_place(
    model: type[Any], export: dict[str, Any] | None, operator: str, line: str, reason: str
) -> None:
    number = 1 + next(
        i
        for i, each in enumerate(Path(__file__).read_text().splitlines())
        if line in each and '"' not in each
    )
    with pytest.raises(irc.ModelError) as caught:
        irc.compile(torch.nn.Sequential(model()).eval(), args=(sample(),), export=export)
    (message,) = str(caught.value).splitlines()
    at = f" at {operator}" if operator else ""
    assert message.startswith(
        f"torch cannot export the model{at}, {__file__}:{number} in forward ("
    )
    assert line in message
    assert reason in message


def test_what_a_trace_may_miss_is_a_warning() -> None:
    result = irc.compile(Branching().eval(), args=(sample(),), export={"dynamo": False})
    (warning,) = (each for each in result.warnings if "Python boolean" in each)
    assert warning.startswith(f"{__file__}:")


def test_arguments_that_do_not_fit() -> None:
    model = network()
    for arguments, message in (
        ({}, r"needs example inputs: args=\(x,\)"),
        ({"args": sample()}, r"a tuple of inputs: args=\(x,\)"),
        ({"args": (sample(),), "dynamic_shapes": {}, "export": {"dynamo": False}}, "dynamic_axes"),
    ):
        with pytest.raises(irc.UsageError, match=message):
            irc.load(model, **arguments)
    with pytest.raises(irc.UsageError, match="not for files"):
        irc.compile("net.onnx", args=(sample(),))
    with pytest.raises(irc.UsageError, match="and this is a Module"):
        irc.compile(irc.load(model, args=(sample(),)), args=(sample(),))
    with pytest.raises(irc.UsageError, match="int is not a model"):
        irc.compile(3)
    with pytest.raises(irc.ModelError, match="missing a required argument: 'x'"):
        irc.compile(model, args=())


def test_large_parameters_are_not_copied() -> None:
    model = settle(nn.Sequential(*conv_norm(3, 512), *conv_norm(512, 512)), SHAPE)
    module = irc.load(model, args=(sample(),))
    weights = [parameter for parameter in model.parameters() if parameter.nbytes >= 1 << 13]
    shared = [payload.numpy() for payload in module.payloads]
    assert len(shared) == len(weights) == 2
    for array, weight in zip(shared, weights, strict=True):
        assert np.shares_memory(array, weight.detach().numpy())


MEMORY = """
import threading, time
import irc, torch
from torch import nn

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

irc.compile(nn.Conv2d(1, 1, 1).eval(), args=(torch.zeros(1, 1, 2, 2),)).save("{folder}/small.onnx")  # what irc imports
layers = [each for _ in range(4) for each in (nn.Conv2d(1024, 1024, 3, bias=False), nn.BatchNorm2d(1024))]
model = nn.Sequential(*layers).eval()
size = sum(parameter.nbytes for parameter in model.parameters())
start, peak, done = resident(), [0], []
def watch():
    while not done:
        peak[0] = max(peak[0], resident())
        time.sleep(0.002)
watcher = threading.Thread(target=watch)
watcher.start()
irc.compile(model, args=(torch.zeros(1, 1024, 9, 9),)).save("{folder}/net.onnx", fold_map="{folder}/net.json")
done.append(True)
watcher.join()
print((peak[0] - start) / size)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_a_compile_takes_little_more_memory_than_the_module(tmp_path: Path) -> None:
    script = MEMORY.replace("{folder}", str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert float(done.stdout) < 0.6  # beside the module itself, of 150 MB


def test_torch_is_not_imported_for_other_models() -> None:
    script = (
        "import irc, sys; irc.compile('examples/digits_cnn.onnx').model; assert 'torch' not in"
        " sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=Path(__file__).parents[2])
