"""RNN, GRU and LSTM."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from . import elementwise
from .call import Call, Op
from .values import Tensor

Activation = Callable[[Tensor], Tensor]
_DEFAULTS: dict[str, tuple[float | None, float | None]] = {
    "Affine": (1.0, 0.0),
    "Elu": (1.0, None),
    "HardSigmoid": (0.2, 0.5),
    "LeakyRelu": (0.01, None),
    "ScaledTanh": (1.0, 1.0),
    "ThresholdedRelu": (1.0, None),
}


@dataclass(frozen=True, slots=True)
class Cell:
    """The parameters of one direction: weights by gate, [gates, hidden, ...]."""

    weights: Tensor
    recurrent: Tensor
    input_bias: Tensor
    recurrent_bias: Tensor
    peepholes: Tensor | None
    activations: list[Activation]
    clip: float | None
    linear_before_reset: bool
    input_forget: bool

    def gate(self, index: int, x: Tensor, hidden: Tensor) -> Tensor:
        return self.limited(
            self.input_part(index, x)
            + hidden @ self.recurrent[index].T
            + self.recurrent_bias[index]
        )

    def input_part(self, index: int, x: Tensor) -> Tensor:
        return np.asarray(x @ self.weights[index].T + self.input_bias[index])

    def limited(self, x: Tensor) -> Tensor:
        return x if self.clip is None else np.clip(x, -self.clip, self.clip)


State = tuple[Tensor, ...]
Advance = Callable[[Cell, Tensor, State], State]


def _rnn_step(cell: Cell, x: Tensor, state: State) -> State:
    return (cell.activations[0](cell.gate(0, x, state[0])),)


def _gru_step(cell: Cell, x: Tensor, state: State) -> State:
    """Gates z, r, h."""
    (hidden,) = state
    f, g = cell.activations
    update, reset = f(cell.gate(0, x, hidden)), f(cell.gate(1, x, hidden))
    if cell.linear_before_reset:
        past = reset * (hidden @ cell.recurrent[2].T + cell.recurrent_bias[2])
    else:
        past = (reset * hidden) @ cell.recurrent[2].T + cell.recurrent_bias[2]
    candidate = g(cell.limited(cell.input_part(2, x) + past))
    return ((1 - update) * candidate + update * hidden,)


def _lstm_step(cell: Cell, x: Tensor, state: State) -> State:
    """Gates i, o, f, c; peepholes i, o, f."""
    hidden, memory = state
    f, g, h = cell.activations
    raw = [
        cell.input_part(index, x) + hidden @ cell.recurrent[index].T + cell.recurrent_bias[index]
        for index in range(4)
    ]
    peep = np.zeros((3, memory.shape[1])) if cell.peepholes is None else cell.peepholes
    entry = f(cell.limited(raw[0] + peep[0] * memory))
    forget = 1 - entry if cell.input_forget else f(cell.limited(raw[2] + peep[2] * memory))
    memory = forget * memory + entry * g(cell.limited(raw[3]))
    output = f(cell.limited(raw[1] + peep[1] * memory))
    return output * h(memory), memory


def _activation(name: str, alpha: float, beta: float) -> Activation:
    functions: dict[str, Activation] = {
        "affine": lambda x: alpha * x + beta,
        "elu": lambda x: elementwise.elu(x, alpha),
        "hardsigmoid": lambda x: elementwise.hard_sigmoid(x, alpha, beta),
        "leakyrelu": lambda x: elementwise.leaky_relu(x, alpha),
        "relu": lambda x: np.maximum(x, 0),
        "scaledtanh": lambda x: alpha * np.tanh(beta * x),
        "sigmoid": elementwise.sigmoid,
        "softplus": elementwise.softplus,
        "softsign": elementwise.softsign,
        "tanh": np.tanh,
        "thresholdedrelu": lambda x: elementwise.thresholded_relu(x, alpha),
    }
    return functions[name.lower()]


def _activations(call: Call, defaults: list[str], directions: int) -> list[Activation]:
    """Alphas and betas are consumed in order by the activations that take one."""
    names = list(call.strings("activations") or defaults * directions)
    canonical = {name.lower(): pair for name, pair in _DEFAULTS.items()}
    alphas, betas = (
        iter(call.floats("activation_alpha") or ()),
        iter(call.floats("activation_beta") or ()),
    )
    result = []
    for name in names:
        alpha, beta = canonical.get(name.lower(), (None, None))
        alpha = 0.0 if alpha is None else next(alphas, float(np.float32(alpha)))
        beta = 0.0 if beta is None else next(betas, float(np.float32(beta)))
        result.append(_activation(name, alpha, beta))
    return result


def _cells(call: Call, gates: int, defaults: list[str]) -> list[Cell]:
    weights, recurrent = call.tensor(1), call.tensor(2)
    directions, hidden = recurrent.shape[0], recurrent.shape[2]
    given = call.optional(3)
    bias = np.zeros((directions, 2 * gates * hidden)) if given is None else given
    bias = bias.reshape(directions, 2, gates, hidden)
    peepholes = call.optional(7)
    activations = _activations(call, defaults, directions)
    return [
        Cell(
            weights[d].reshape(gates, hidden, -1),
            recurrent[d].reshape(gates, hidden, -1),
            bias[d, 0],
            bias[d, 1],
            None if peepholes is None else peepholes[d].reshape(3, hidden),
            activations[d * len(defaults) : (d + 1) * len(defaults)],
            call.real("clip", 0.0) if call.has("clip") else None,
            bool(call.integer("linear_before_reset", 0)),
            bool(call.integer("input_forget", 0)),
        )
        for d in range(directions)
    ]


def _reversed(x: Tensor, lengths: Tensor) -> Tensor:
    """Each sequence of [time, batch, ...] backwards within its own length."""
    rows = np.arange(x.shape[0])[:, None]
    return x[np.where(rows < lengths, lengths - 1 - rows, rows), np.arange(x.shape[1])]


def _swept(
    cell: Cell, advance: Advance, x: Tensor, state: State, lengths: Tensor
) -> tuple[Tensor, State]:
    """Hidden states over time, zero past the end of a sequence, and the state at its end."""
    rows = []
    for time in range(x.shape[0]):
        live = (time < lengths)[:, None]
        moved = advance(cell, x[time], state)
        state = tuple(np.where(live, new, old) for new, old in zip(moved, state, strict=True))
        rows.append(np.where(live, moved[0], 0.0))
    hidden = np.stack(rows) if rows else np.zeros((0, *state[0].shape))
    return hidden, state


def _recurrent(advance: Advance, gates: int, states: tuple[int, ...], defaults: list[str]) -> Op:
    """The operator; `states` are the inputs that hold the initial state."""

    def op(call: Call) -> tuple[Tensor, ...]:
        batch_first = bool(call.integer("layout", 0))
        if call.tensor(0).ndim != 3:
            raise ValueError(f"{call.op_type}: data of rank {call.tensor(0).ndim}")
        x = call.tensor(0).swapaxes(0, 1) if batch_first else call.tensor(0)
        cells = _cells(call, gates, defaults)
        size = cells[0].recurrent.shape[2]
        given = call.optional(4)
        lengths = np.full(x.shape[1], x.shape[0]) if given is None else given
        direction = call.string("direction", "forward")
        hidden, finals = [], []
        for index, cell in enumerate(cells):
            backward = direction == "reverse" or index == 1
            start = tuple(
                _initial(call, state, index, (x.shape[1], size), batch_first) for state in states
            )
            sweep, final = _swept(
                cell, advance, _reversed(x, lengths) if backward else x, start, lengths
            )
            hidden.append(_reversed(sweep, lengths) if backward else sweep)
            finals.append(final)
        y = np.stack(hidden, axis=1)
        ends = tuple(
            np.stack(parts, axis=1 if batch_first else 0) for parts in zip(*finals, strict=True)
        )
        return (y.transpose(2, 0, 1, 3) if batch_first else y, *ends)

    return op


def _initial(
    call: Call, source: int, direction: int, shape: tuple[int, int], batch_first: bool
) -> Tensor:
    given = call.optional(source)
    if given is None:
        return np.zeros(shape)
    return given[:, direction] if batch_first else given[direction]


OPS: dict[str, Op] = {
    "GRU": _recurrent(_gru_step, 3, (5,), ["Sigmoid", "Tanh"]),
    "LSTM": _recurrent(_lstm_step, 4, (5, 6), ["Sigmoid", "Tanh", "Tanh"]),
    "RNN": _recurrent(_rnn_step, 1, (5,), ["Tanh"]),
}
