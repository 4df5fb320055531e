"""Compile every model of the shared folder and of onnx's own tests, and compare each with its source.

    python benchmarks/real_models.py [--other 32]

covers all models that onnxruntime (graph optimisations off) and the float64 evaluator of the tests can run. It prints
their number, and the largest errors of compiled models against the float64 evaluation of the source, relative to the
float32 error of the source itself. It also counts BatchNormalization nodes before and after, and the reasons for those
that stay.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import harness
import irc
from float64 import UnsupportedOp, evaluate
from onnx import ModelProto

FLOOR = 2.0**-24
"""Lower bound on the error of a source, relative to the largest result: half an ulp of float32."""


def compare(source: ModelProto, compiled: ModelProto, other: int) -> tuple[float, float] | None:
    """Return the errors of source and compiled model against the float64 evaluation of the source.

    Returns None where onnxruntime or the evaluator cannot run the source.
    """
    try:
        inputs = harness.random_inputs(source, other=other)
        before = harness.run(source, inputs)
        exact = evaluate(source, inputs)
    except (ValueError, UnsupportedOp):
        return None
    except Exception:  # onnxruntime has its own exception types for models that it cannot run
        return None
    return harness.worst(before, exact), harness.worst(harness.run(compiled, inputs), exact)


def main() -> None:
    """Compile all models and print the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--other", type=int, default=32, help="extent of symbolic dimensions except the first (default: 32)"
    )
    other = parser.parse_args().other
    warnings.simplefilter("ignore")
    compared, unchanged, ratios = 0, 0, []
    affines: Counter[str] = Counter()
    nodes = [0, 0]
    files = [*sorted(harness.SHARED.glob("*/*.onnx")), *harness.onnx_files()]
    for path in files:
        source = harness.load(path)
        result = irc.compile(path, freeze_initializers=True)
        unchanged += result.model == source
        if path.parent.name == "real":
            nodes[0] += harness.batch_norms(source)
            nodes[1] += harness.batch_norms(result.model)
            kept = (s for s in result.fold_map.sources if s["kind"] == "batch_norm" and s["status"] == "kept")
            affines.update(f"{s['reason']} ({s['detail']})" for s in kept)
        errors = compare(source, result.model, other)
        if errors is not None:
            compared += 1
            if result.model != source:
                ratios.append((errors[1] / max(errors[0], FLOOR), path.name, *errors))
    print(f"{len(files)} models compiled, {compared} compared, {unchanged} unchanged")
    print("largest errors relative to the source's own:")
    for ratio, name, before, after in sorted(ratios, reverse=True)[:5]:
        print(f"  {ratio:6.2f}  {name}: {before:.2e} -> {after:.2e}")
    print(f"real models: {nodes[0]} -> {nodes[1]} BatchNormalization")
    for reason, count in affines.most_common():
        print(f"  {count:4}  {reason}")


if __name__ == "__main__":
    main()
