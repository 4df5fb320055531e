"""A generator of forgeries: certificates and models that a checker must refuse, each wrong in one
place.

Every forgery is sealed again, with the digests of its models, so that the checker has to find out
by the proof.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from irc.tools.certify.checker.document import digest_of_content, digest_of_model
from onnx import ModelProto, numpy_helper

Document = dict[str, Any]


@dataclass
class Forgery:
    """Two models and a certificate; `kind` says what was forged, `where` the place."""

    kind: str
    where: str
    source: ModelProto
    result: ModelProto
    document: Document


def sealed(document: Document, source: ModelProto, result: ModelProto) -> Document:
    """The document about these models, with its steps numbered, if it has any, and sealed again."""
    made = {**document, "source": digest_of_model(source), "result": digest_of_model(result)}
    for number, step in enumerate(made.get("steps", ()), 1):
        step["step"] = number
    made["seal"] = digest_of_content(made)
    return made


def forgeries(
    source: ModelProto, result: ModelProto, document: Document, other: Document
) -> Iterator[Forgery]:
    """Yield forgeries of a certificate that holds; `other` is the certificate of another model."""
    for kind, where, forged in forged_models(result):
        yield Forgery(kind, where, source, forged, sealed(copy.deepcopy(document), source, forged))
    biased = {node.output[0] for node in result.graph.node if len(node.input) > 2}
    for kind, where, forged in _documents(document, biased):
        yield Forgery(kind, where, source, result, sealed(forged, source, result))
    yield Forgery(
        "another model's certificate",
        "",
        source,
        result,
        sealed(copy.deepcopy(other), source, result),
    )
    for kind, where, first, second in _conditions(source, result):
        yield Forgery(kind, where, first, second, sealed(copy.deepcopy(document), first, second))


def forged_models(result: ModelProto) -> Iterator[tuple[str, str, ModelProto]]:
    """Yield models that compute something else, with what was changed and where."""
    read = {name for node in result.graph.node for name in node.input}
    for i, tensor in enumerate(result.graph.initializer):
        array = numpy_helper.to_array(tensor)
        if tensor.name in read and array.dtype in (np.int8, np.uint8, np.int32):
            for place in sorted({0, array.size - 1}):
                changed = array.copy()
                changed.reshape(-1)[place] += 1 if changed.reshape(-1)[place] < 100 else -1
                forged = copy.deepcopy(result)
                forged.graph.initializer[i].CopyFrom(numpy_helper.from_array(changed, tensor.name))
                yield "a quantized number off by one", f"{tensor.name}[{place}]", forged
        if tensor.name not in read or array.dtype != np.float32 or np.isinf(array).any():
            continue
        for place in sorted({0, array.size // 2, array.size - 1}):
            for direction in (np.inf, -np.inf):
                changed = array.copy()
                flat = changed.reshape(-1)
                flat[place] = np.nextafter(flat[place], np.float32(direction))
                forged = copy.deepcopy(result)
                forged.graph.initializer[i].CopyFrom(numpy_helper.from_array(changed, tensor.name))
                yield "a constant off by one ulp", f"{tensor.name}[{place}]", forged
    for i, node in enumerate(result.graph.node):
        for j, item in enumerate(node.attribute):
            forged = copy.deepcopy(result)
            attribute = forged.graph.node[i].attribute[j]
            if item.ints and len(set(item.ints)) == len(item.ints) > 1:
                attribute.ints[:] = list(item.ints)[::-1]
            elif item.ints and item.name in ("pads", "strides", "dilations"):
                attribute.ints[0] += 1
            elif item.HasField("f"):
                attribute.f = float(np.nextafter(np.float32(item.f), np.float32(2)))
            else:
                continue
            yield "an attribute changed", f"{node.op_type}.{item.name}", forged
        if node.op_type == "DequantizeLinear":
            forged = copy.deepcopy(result)
            forged.graph.node[i].attribute.add(name="output_dtype", type=2, i=10)
            yield "another type of a dequantized constant", node.output[0], forged
        if node.op_type in ("Relu", "LeakyRelu", "Sigmoid"):
            forged = copy.deepcopy(result)
            forged.graph.node[i].op_type = "Tanh" if node.op_type != "Relu" else "Sigmoid"
            del forged.graph.node[i].attribute[:]
            yield "another operator", node.op_type, forged
        if node.op_type == "Clip" and len(node.input) > 2 and node.input[1] and node.input[2]:
            forged = copy.deepcopy(result)
            forged.graph.node[i].input[:] = [node.input[0], node.input[2], node.input[1]]
            yield "bounds exchanged", node.output[0], forged
            for place in (1, 2):
                tensor = next(
                    each for each in result.graph.initializer if each.name == node.input[place]
                )
                if np.isfinite(numpy_helper.to_array(tensor)).all():
                    forged = copy.deepcopy(result)
                    forged.graph.node[i].input[place] = ""
                    yield "a bound left out", node.output[0], forged
        if (
            len(node.input) > 1
            and node.op_type in ("Sub", "Div", "Concat", "MatMul")
            and node.input[0] != node.input[1]
        ):
            forged = copy.deepcopy(result)
            forged.graph.node[i].input[:] = [node.input[1], node.input[0], *node.input[2:]]
            yield "operands exchanged", node.op_type, forged
        if len(node.input) > 2 and node.op_type in ("Conv", "Gemm", "ConvTranspose"):
            forged = copy.deepcopy(result)
            del forged.graph.node[i].input[2:]
            yield "a bias left out", node.op_type, forged


def _documents(document: Document, biased: set[str]) -> Iterator[tuple[str, str, Document]]:
    steps = document["steps"]
    for i, step in enumerate(steps):
        forged = copy.deepcopy(document)
        del forged["steps"][i]
        yield "a step left out", str(i + 1), forged
        for name in (
            "equal operand",
            "constant",
            "crosses",
            "layer",
            "affine",
            "same elements",
            "made up",
            None,
        ):
            both = (
                step["identity"] == "same bounds" and "perm" in step and name == "crosses"
            )  # where nothing is scaled
            if name != step["identity"] and not both:
                forged = copy.deepcopy(document)
                forged["steps"][i]["identity"] = name
                yield "an identity that does not cover the step", f"{i + 1}: {name}", forged
        if "perm" in step:
            forged = copy.deepcopy(document)
            forged["steps"][i]["perm"] = step["perm"][::-1]
            yield "another permutation", str(i + 1), forged
        if "applies" in step:
            forged = copy.deepcopy(document)
            forged["steps"][i]["applies"] = [{"scale": 1.0000001}, *step["applies"]]
            yield "a scale off", str(i + 1), forged
        if "applies" in step and step["operation"] in biased:
            forged = copy.deepcopy(document)
            forged["steps"][i]["applies"] = [
                *step["applies"],
                {"shift": 1e20},
                {"shift": -1e20},
                {"shift": 0.125},
            ]
            yield "a shift off", str(i + 1), forged
        for other in range(i + 1, len(steps)):
            forged = copy.deepcopy(document)
            forged["steps"][i], forged["steps"][other] = forged["steps"][other], forged["steps"][i]
            yield "two steps swapped", f"{i + 1}, {other + 1}", forged


def _conditions(
    source: ModelProto, result: ModelProto
) -> Iterator[tuple[str, str, ModelProto, ModelProto]]:
    shared = {tensor.name for tensor in source.graph.initializer} & {
        t.name for t in result.graph.initializer
    }
    read = {name for node in result.graph.node for name in node.input}
    for tensor in source.graph.initializer:
        if tensor.name in shared & read:
            pair = copy.deepcopy(source), copy.deepcopy(result)
            for model in pair:
                kept = next(t for t in model.graph.initializer if t.name == tensor.name)
                info = model.graph.input.add(name=tensor.name)
                info.type.tensor_type.elem_type = kept.data_type
                info.type.tensor_type.shape.SetInParent()
                for extent in kept.dims:
                    info.type.tensor_type.shape.dim.add(dim_value=extent)
            changed = [
                next(t for t in model.graph.initializer if t.name == tensor.name) for model in pair
            ]
            if changed[0].raw_data != changed[1].raw_data:
                yield "an overridable initializer", tensor.name, *pair
    for node in source.graph.node:
        if node.op_type == "Relu" and any(
            each.op_type == "Mul" and node.output[0] in each.input for each in source.graph.node
        ):
            pair = copy.deepcopy(source), copy.deepcopy(result)
            for model in pair:
                for each in model.graph.node:
                    if each.op_type == "Relu":
                        each.op_type = "Sigmoid"
            yield "an operator that no affine crosses", node.output[0], *pair
    for node in source.graph.node:
        indices = [
            tensor
            for tensor in source.graph.initializer
            if node.op_type == "Gather" and tensor.name == node.input[1]
        ]
        for tensor in indices:
            forged = copy.deepcopy(source)
            changed = next(t for t in forged.graph.initializer if t.name == tensor.name)
            array = (
                numpy_helper.to_array(tensor)[::-1]
                if tensor.dims
                else numpy_helper.to_array(tensor) + 1
            )
            changed.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array), tensor.name))
            if (numpy_helper.to_array(tensor) != array).any():
                yield "other indices", node.output[0], forged, result
    known = onnx.shape_inference.infer_shapes(source, data_prop=True).graph
    types = [
        (each.name, each.type.tensor_type.shape.dim) for each in (*known.input, *known.value_info)
    ]
    shapes = {name: [each.dim_value or 2 for each in dims] for name, dims in types}
    for i, node in enumerate(source.graph.node):
        if node.op_type == "DequantizeLinear":
            pair = copy.deepcopy(source), copy.deepcopy(result)
            scales = [
                t for model in pair for t in model.graph.initializer if _scales(model, t.name)
            ]
            for tensor in scales:
                tensor.CopyFrom(
                    numpy_helper.from_array(
                        numpy_helper.to_array(tensor) * np.float32(2.0**-126), tensor.name
                    )
                )
            yield "scales below the normal numbers", node.output[0], *pair
        perm = next((list(each.ints) for each in node.attribute if each.name == "perm"), [])
        extents = shapes.get(node.input[0], []) if perm else []
        for axis in (
            axis
            for axis in range(len(extents) - 1)
            if 1 not in (extents[perm[axis]], extents[perm[axis + 1]])
        ):
            forged = copy.deepcopy(source)
            other = [*perm[:axis], perm[axis + 1], perm[axis], *perm[axis + 2 :]]
            next(each for each in forged.graph.node[i].attribute if each.name == "perm").ints[:] = (
                other
            )
            yield "another order of axes", node.output[0], forged, result
    hidden = {
        node.input[0] for node in source.graph.node if node.op_type == "Reshape"
    }  # by the target of the next
    reshapes = {
        n.input[1]
        for n in source.graph.node
        if n.op_type == "Reshape" and n.output[0] not in hidden
    }
    parts = {
        name
        for node in source.graph.node
        if node.op_type in ("Concat", "Mul", "Slice")
        for name in node.input
    }
    for i, tensor in enumerate(source.graph.initializer):
        array = numpy_helper.to_array(tensor)
        # A bound of a Slice beyond all extents is as good as another one.
        counts = (array > 1) & (array < 1 << 31) if array.dtype == np.int64 else np.array(False)
        if tensor.name in reshapes | parts and counts.any():
            for changed in (array[::-1], np.where(counts, array * 2, array)):
                forged = copy.deepcopy(source)
                forged.graph.initializer[i].CopyFrom(
                    numpy_helper.from_array(np.ascontiguousarray(changed), tensor.name)
                )
                if (changed != array).any():
                    yield "another target", tensor.name, forged, result
    for i, node in enumerate(source.graph.node):
        if (
            node.op_type == "BatchNormalization"
            and any(a.name == "training_mode" for a in node.attribute) is False
        ):
            forged = copy.deepcopy(source)
            forged.graph.node[i].attribute.add(name="epsilon", type=1, f=0.01)
            yield "another epsilon", node.output[0], forged, result
            forged = copy.deepcopy(source)
            forged.graph.node[i].attribute.add(name="training_mode", type=2, i=1)
            yield "a BatchNormalization that trains", node.output[0], forged, result


def _scales(model: ModelProto, name: str) -> bool:
    return any(
        node.op_type == "DequantizeLinear" and node.input[1] == name for node in model.graph.node
    )
