"""What the tests share: models, inputs, the runtime oracle and error bounds."""

from __future__ import annotations

import cProfile
import importlib.util
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from float64 import UnsupportedOp, evaluate
from onnx import ModelProto, TensorProto
from onnx.backend.test.case.test_case import TestCase

Arrays = dict[str, np.ndarray[Any, np.dtype[Any]]]

ROOT = Path(__file__).parents[2]
FOLDERS = ("backends", "frontends", "ir", "passes", "support", "tools")
"""The folders of the package: each is `irc.<folder>`."""
EXAMPLE = ROOT / "examples" / "digits_cnn.onnx"
SHARED = ROOT.parent / "shared" / "models"
ALONE = "the folder ../shared/models is not beside the checkout"
"""The reason of tests that are skipped, and what benchmarks say that measure less without it."""
ONNX_DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"

NOISE = 4.0
"""Bound on the error against the float64 evaluator: this many times the original's own, or 2**-22
if that is more.
"""

onnxruntime.set_default_logger_severity(4)


def shared_models(folder: str = "*") -> list[Path]:
    """Return the real models beside the checkout, none without the folder: mark as `shared`."""
    return sorted(SHARED.glob(f"{folder}/*.onnx"))


def reproducers() -> list[Path]:
    """Return the models of `../shared/repro`, none without the folder: mark as `shared`."""
    return sorted((SHARED.parent / "repro").rglob("*.onnx"))


SHARED_MODELS = pytest.param("shared models", marks=pytest.mark.shared)
"""The corpus of shared models, as a parameter beside others."""


def onnx_files() -> list[Path]:
    """The models that the onnx wheel carries for backend tests."""
    return sorted([*ONNX_DATA.glob("*/*/model.onnx"), *ONNX_DATA.glob("light/*.onnx")])


def node_cases() -> list[TestCase]:
    """Return the cases that onnx makes of each operator.

    It computes their outputs, which takes seconds: call it in a test, not where a module is read.
    """
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # onnx's generators overflow on purpose
        return list(collect_testcases(None))


def node_models() -> Iterator[tuple[str, ModelProto]]:
    """Yield the name and the model of each of `node_cases`."""
    for case in node_cases():
        assert case.model is not None
        yield case.name, case.model


def calls_of(action: Callable[[], object]) -> int:
    """Return how many functions `action` calls, those written in C included.

    It hardly depends on the machine, as time does.
    """
    profile = cProfile.Profile()
    profile.runcall(action)
    return sum(entry.callcount for entry in profile.getstats())


def script(path: Path) -> ModuleType:
    """Import a file that belongs to no package."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, path.stem, module)  # dataclasses look there
        spec.loader.exec_module(module)
    return module


def load(path: Path) -> ModelProto:
    """A model with its external data left where it is."""
    return onnx.load(str(path), load_external_data=False)


def files(folder: Path) -> dict[str, bytes]:
    """All files below a folder, by their paths in it."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def take_all_for_large(patch: pytest.MonkeyPatch) -> None:
    """Leave every tensor in its file, and compute every folded one when it is written."""
    patch.setattr("irc.frontends.onnx.LARGE_FILE", 0)
    patch.setattr("irc.frontends.onnx.LARGE_PAYLOAD", 1)
    patch.setattr("irc.passes.fold_constant.LAZY", 1)


def save_external(model: ModelProto, path: Path | str, data: str, threshold: int = 0) -> None:
    """Save a model with its tensors of at least `threshold` bytes in the file `data` beside it."""
    onnx.save(model, path, save_as_external_data=True, location=data, size_threshold=threshold)


def session(model: ModelProto) -> onnxruntime.InferenceSession:
    """onnxruntime without graph optimisations. The last two sessions are kept."""
    return _session(model.SerializeToString())


@lru_cache(maxsize=2)
def _session(model: bytes) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def run(model: ModelProto, inputs: Mapping[str, Any]) -> Arrays:
    """All outputs by name, by onnxruntime without graph optimisations."""
    runtime = session(model)
    names = [output.name for output in runtime.get_outputs()]
    wanted = {value.name for value in runtime.get_inputs()}
    values = runtime.run(names, {name: array for name, array in inputs.items() if name in wanted})
    return dict(zip(names, values, strict=True))


def required_inputs(model: ModelProto) -> Iterator[onnx.ValueInfoProto]:
    """The inputs that a caller has to give."""
    initialized = {tensor.name for tensor in model.graph.initializer}
    return (info for info in model.graph.input if info.name not in initialized)


def random_inputs(model: ModelProto, seed: int = 0, *, batch: int = 2, other: int = 8) -> Arrays:
    """Seeded inputs of the declared shapes; an open first dimension is `batch`, others `other`.

    Floats are normal, integers 0 or 1. Raises ValueError for an input that is no tensor of numbers.
    """
    rng = np.random.default_rng(seed)
    arrays: Arrays = {}
    for info in required_inputs(model):
        tensor = info.type.tensor_type
        if info.type.WhichOneof("value") != "tensor_type" or tensor.elem_type in (
            0,
            TensorProto.STRING,
        ):
            raise ValueError(f"input {info.name!r} is no tensor of numbers")
        shape = [
            dim.dim_value if dim.dim_value > 0 else (batch if i == 0 else other)
            for i, dim in enumerate(tensor.shape.dim)
        ]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        if np.issubdtype(dtype, np.integer) or dtype == np.bool_:
            arrays[info.name] = rng.integers(0, 2, shape).astype(dtype)
        else:
            arrays[info.name] = rng.standard_normal(shape).astype(dtype)
    return arrays


def operators(model: ModelProto) -> list[str]:
    """Operator types of the main graph in order, Constant left out."""
    return [node.op_type for node in model.graph.node if node.op_type != "Constant"]


def batch_norms(model: ModelProto) -> int:
    """BatchNormalization nodes in the main graph."""
    return sum(node.op_type == "BatchNormalization" for node in model.graph.node)


def worst(found: Arrays, expected: Arrays) -> float:
    """The largest difference of results, relative to the largest magnitude of each expected one.

    Where `expected` is not finite, or overflows the type of `found`, there is nothing to compare.
    """
    error = 0.0
    assert set(found) == set(expected)
    for name, array in found.items():
        want = np.asarray(expected[name])
        assert array.shape == want.shape, name
        if want.size == 0 or (want.dtype.kind not in "fV" and want.dtype != np.float64):
            continue
        wide, want = array.astype(np.float64), want.astype(np.float64)
        finite = np.isfinite(want) & np.isfinite(wide)
        if finite.any():
            scale = np.abs(want[finite]).max() or 1.0
            error = max(error, float(np.abs(wide[finite] - want[finite]).max() / scale))
    return error


def results(model: ModelProto, inputs: Mapping[str, Any]) -> Arrays | None:
    """The outputs by onnxruntime, None where it cannot run the model."""
    try:
        return run(model, inputs)
    except Exception:  # onnxruntime raises types of its own for every kind of failure
        return None


def assert_computes_the_same(
    model: ModelProto, compiled: ModelProto, inputs: Mapping[str, Any]
) -> None:
    """The model equals its source in float64 but for constants, in onnxruntime but for noise.

    Skips the test where neither the evaluator nor onnxruntime runs the source.
    """
    before = results(model, inputs)
    if before is not None:
        after = results(compiled, inputs)
        assert after is not None, "onnxruntime runs the source and not the compiled model"
    try:
        exact = evaluate(model, inputs)
        folded = evaluate(compiled, inputs)
    except (UnsupportedOp, ValueError) as error:
        if before is None:
            pytest.skip(f"neither onnxruntime nor the evaluator runs it: {str(error)[:80]}")
        assert worst(after, before) < 1e-5
        return
    half = any(tensor.data_type == TensorProto.FLOAT16 for tensor in model.graph.initializer)
    largest_rounding = (
        2.0**-9 if half else 2.0**-17
    )  # of a folded weight, through the depth of the nets here
    noise = 0.0 if before is None else max(worst(before, exact), 2.0**-22)
    assert worst(folded, exact) < max(
        largest_rounding, noise
    )  # what magnifies noise, as exp of -100, magnifies both
    if before is not None:
        assert worst(after, exact) <= NOISE * noise
