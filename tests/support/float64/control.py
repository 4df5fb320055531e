"""Control flow, sequences and optionals."""

from __future__ import annotations

import numpy as np

from .call import Call, Op
from .movement import split_points
from .values import Tensor, Value


def _if(call: Call) -> tuple[Value, ...]:
    branch = "then_branch" if call.tensor(0).item() else "else_branch"
    return tuple(call.run(call.graph(branch), ()))


def _stacked(rows: list[Value], axis: int = 0) -> Tensor:
    if not rows:
        return np.zeros(0)
    return np.stack([np.asarray(row) for row in rows], axis=axis)


def _loop(call: Call) -> tuple[Value, ...]:
    body = call.graph("body")
    limit, condition = call.optional(0), call.optional(1)
    carried = list(call.inputs[2:])
    scans: list[list[Value]] = [[] for _ in body.outputs[1 + len(carried) :]]
    going = condition is None or bool(condition.item())
    iteration = 0
    while going and (limit is None or iteration < limit.item()):
        again, *results = call.run(body, [np.array(iteration), np.array(True), *carried])
        going = bool(np.asarray(again).item())
        carried = results[: len(carried)]
        for scan, row in zip(scans, results[len(carried) :], strict=True):
            scan.append(row)
        iteration += 1
    return (*carried, *map(_stacked, scans))


def _scan(call: Call) -> tuple[Value, ...]:
    if call.version < 9:
        return _scan_batches(call)
    return _scan_once(call, list(call.inputs))


def _scan_once(call: Call, inputs: list[Value]) -> tuple[Value, ...]:
    body = call.graph("body")
    count = call.integer("num_scan_inputs", 1)
    states, scanned = (
        inputs[: len(inputs) - count],
        [np.asarray(value) for value in inputs[len(inputs) - count :]],
    )
    outputs = len(body.outputs) - len(states)
    if call.version < 9:
        input_directions, output_directions = call.ints("directions"), None
    else:
        input_directions, output_directions = (
            call.ints("scan_input_directions"),
            call.ints("scan_output_directions"),
        )
    axes = call.ints("scan_input_axes") or (0,) * count
    sequences = [
        np.moveaxis(value, axis, 0)[:: -1 if backward else 1]
        for value, axis, backward in zip(
            scanned, axes, input_directions or (0,) * count, strict=True
        )
    ]
    rows: list[list[Value]] = [[] for _ in range(outputs)]
    for time in range(sequences[0].shape[0]):
        results = call.run(body, [*states, *(sequence[time] for sequence in sequences)])
        states = results[: len(states)]
        for row, result in zip(rows, results[len(states) :], strict=True):
            row.append(result)
    output_axes = call.ints("scan_output_axes") or (0,) * outputs
    stacked = [
        _stacked(row[:: -1 if backward else 1], axis)
        for row, axis, backward in zip(
            rows, output_axes, output_directions or (0,) * outputs, strict=True
        )
    ]
    return (*states, *stacked)


def _scan_batches(call: Call) -> tuple[Value, ...]:
    """Opset 8: a first input of sequence lengths, and a batch axis before other values."""
    lengths = call.optional(0)
    inputs = [np.asarray(value) for value in call.inputs[1:]]
    count = call.integer("num_scan_inputs", 1)
    items = []
    for item in range(inputs[0].shape[0]):
        values = [value[item] for value in inputs]
        if lengths is not None:
            values[-count:] = [value[: lengths[item]] for value in values[-count:]]
        items.append(_scan_once(call, list(values)))
    return tuple(map(_stacked, map(list, zip(*items, strict=True))))


def _split_to_sequence(call: Call) -> tuple[Value, ...]:
    x, sizes = call.tensor(0), call.optional(1)
    axis = call.integer("axis", 0) % x.ndim
    extent = x.shape[axis]
    if sizes is None:
        parts = np.split(x, extent, axis=axis)
        return (
            parts if call.integer("keepdims", 1) else [np.squeeze(part, axis) for part in parts],
        )
    if sizes.ndim:
        return (np.split(x, split_points(extent, sizes.tolist(), 0), axis=axis),)
    return (np.split(x, range(int(sizes), extent, int(sizes)), axis=axis),)


def _position(call: Call, index: int, default: int) -> int:
    value = call.optional(index)
    return default if value is None else int(value.item())


def _sequence_insert(call: Call) -> tuple[Value, ...]:
    sequence = list(call.sequence(0))
    place = _position(call, 2, len(sequence))
    sequence.insert(place, call.tensor(1))
    return (sequence,)


def _sequence_erase(call: Call) -> tuple[Value, ...]:
    sequence = list(call.sequence(0))
    del sequence[_position(call, 1, -1)]
    return (sequence,)


def _concat_from_sequence(call: Call) -> Tensor:
    join = np.stack if call.integer("new_axis", 0) else np.concatenate
    return join(call.sequence(0), axis=call.integer("axis", 0))


OPS: dict[str, Op] = {
    "ConcatFromSequence": _concat_from_sequence,
    "If": _if,
    "Loop": _loop,
    "Optional": lambda call: (call.value(0),),
    "OptionalGetElement": lambda call: (call.value(0),),
    "OptionalHasElement": lambda call: np.array(call.value(0) is not None),
    "Scan": _scan,
    "SequenceAt": lambda call: call.sequence(0)[_position(call, 1, 0)],
    "SequenceConstruct": lambda call: (call.tensors(),),
    "SequenceEmpty": lambda call: ([],),
    "SequenceErase": _sequence_erase,
    "SequenceInsert": _sequence_insert,
    "SequenceLength": lambda call: np.array(len(call.sequence(0)), dtype=np.int64),
    "SplitToSequence": _split_to_sequence,
}
