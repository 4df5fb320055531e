"""Forged proofs: steps of a certificate that holds are changed, and so is the compiled model.

The certificate is sealed again. What is accepted must still be right.
"""

from __future__ import annotations

import copy
import json
from functools import cache
from random import Random
from typing import Any

import irc
import numpy as np
from exporter_graphs import export
from graphs import F32
from irc.tools.certify.checker.document import digest_of_content, digest_of_model
from irc.tools.certify.checker.proof import IDENTITIES
from irc.tools.certify.proving import prove
from onnx import ModelProto, numpy_helper
from random_branches import convolutions, products
from random_graphs import grow

Proof = dict[str, Any]

MODELS = 96
"""Models whose proofs are forged."""


@cache
def proved(number: int) -> tuple[bytes, bytes, str] | None:
    """A random model, what it is compiled to, and the proof; None for one without steps."""
    kinds = (lambda seed: grow(seed, F32), export, convolutions, products)
    source = kinds[number % len(kinds)](number)
    result = irc.compile(source, certificate=True)
    verdict, proof = prove(source, result.model, result.certificate())
    if not proof["steps"] or verdict.unproved:
        return None
    return source.SerializeToString(), result.model.SerializeToString(), json.dumps(proof)


def forged(rng: Random) -> tuple[ModelProto, ModelProto, Proof, bool]:
    """A model, a result, a forged proof, and whether the result was changed, too."""
    found = None
    while found is None:
        found = proved(rng.randrange(MODELS))
    source, result = (ModelProto.FromString(each) for each in found[:2])
    proof = json.loads(found[2])
    is_changed = rng.random() < 0.7 and _change_model(result, rng)
    labels = [
        each for model in (source, result) for node in model.graph.node for each in node.output
    ]
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3)) if is_changed else rng.choice((1, 2))):
        _change_steps(proof["steps"], labels, rng)
    for number, step in enumerate(proof["steps"], 1):
        step["step"] = number
    proof |= {"source": digest_of_model(source), "result": digest_of_model(result)}
    return source, result, {**proof, "seal": digest_of_content(proof)}, is_changed


def _change_model(model: ModelProto, rng: Random) -> bool:
    """Change numbers far beyond a rounding, or operands; return whether something changed."""
    node = rng.choice(model.graph.node)
    places = [i for i, name in enumerate(node.input) if name]
    if len(places) > 1 and rng.random() < 0.3:
        i, k = rng.sample(places, 2)
        operands = list(node.input)
        operands[i], operands[k] = operands[k], operands[i]
        is_changed = operands != list(node.input)
        node.input[:] = operands
        return is_changed
    floats = [each for each in model.graph.initializer if each.data_type == 1]
    if not floats:
        return False
    tensor = rng.choice(floats)
    array = numpy_helper.to_array(tensor).copy()
    if not array.size:
        return False
    if rng.random() < 0.5:
        array.reshape(-1)[rng.randrange(array.size)] += np.float32(rng.choice((0.25, -1.0, 3.0)))
    else:
        array *= np.float32(rng.choice((2.0, -1.0, 0.5, 0.0)))
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return True


def _change_steps(steps: list[Proof], labels: list[str], rng: Random) -> None:
    if not steps or rng.random() < 0.15:
        identity = rng.choice(list(IDENTITIES))
        made: Proof = {"at": rng.choice(("result", "result", "source")), "identity": identity}
        made |= {"operation": rng.choice(labels), "source": rng.choice(labels)}
        steps.insert(rng.randrange(len(steps) + 1), made)
        return
    i = rng.randrange(len(steps))
    step = steps[i]
    match rng.randrange(9):
        case 0:
            del steps[i]
        case 1:
            k = rng.randrange(len(steps))
            steps[i], steps[k] = steps[k], step
        case 2:
            step["identity"] = rng.choice(list(IDENTITIES))
        case 3:
            step[rng.choice(("source", "operation"))] = rng.choice(labels)
        case 4:
            step["at"] = "source" if step["at"] == "result" else "result"
        case 5:
            rank = rng.randrange(1, 5)
            step["perm"] = rng.sample(range(rank), rank)
        case 6:
            step["axis"] = rng.randrange(-1, 4)
        case 7:
            step["from"] = rng.choices(labels, k=rng.randrange(1, 3))
        case _:
            _change_affines(step, labels, rng)


def _change_affines(step: Proof, labels: list[str], rng: Random) -> None:
    parts = step.setdefault("applies", [])
    match rng.randrange(6):
        case 0 if parts:
            del parts[rng.randrange(len(parts))]
        case 1 if parts:
            parts.append(copy.deepcopy(rng.choice(parts)))
        case 2 if parts:
            parts[rng.randrange(len(parts))] = {rng.choice(("of", "value")): rng.choice(labels)}
        case 3:
            parts.append({"shift": rng.choice((0.25, -1.0, 1e20, -1e20))})
        case 4:
            step["only"] = rng.choice(("scale", "shift"))
        case _:
            parts.append({"scale": rng.choice((2.0, -1.0, 0.5, 0.0, 1e-200))})
