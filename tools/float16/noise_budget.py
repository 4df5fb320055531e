"""Which rounding costs how much, and the few operators that are worth their float32.

Each rounding is measured alone, of a value or of a constant that an operator reads. An operator in
float32 saves the roundings of the constants that it reads, and of the values between it and others
in float32.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np
from onnx import ModelProto, NodeProto, helper, numpy_helper

from ...ir.graph import Node, Value, is_constant
from ...ir.module import Module
from ...ir.ops import has_trait
from ...ir.ops.row import Trait
from ...ir.record import Record
from ...ir.tensor import Array
from ...passes.float16.regions import work_of
from ...passes.float16.selection import AFFINE, Selection, is_float32_operator
from ...passes.float16.weight_errors import LAYERS
from ...result import Result, copied
from ..int8.fidelity import measure
from ..int8.lone_roundings import SWITCH, Switched, add_switches, lone_noise
from ..verify.inputs import Feeds
from ..verify.runner import Runner
from .emulation import EXACT, copied_node, rounding

SHARE = 0.05
"""Greatest share of operators that stay float32 for the sake of precision."""

MOST_WORK = 1e11
"""Multiplications of all runs beyond which nothing is measured: about half a minute."""

BUDGET_BATCHES = 2
"""Batches of the calibration that are measured on, and as many that judge."""

BUDGET_BYTES = 1 << 29
"""Size of a model beyond which nothing is measured: it is held twice."""

FIRST_SWITCH = 9
"""The first opset of Where, which switches roundings."""


class Site(Record):
    """A rounding: of a value, or of constants that operators read.

    `maker` computes the value; it is None for a value that is cast for its `readers`, and for
    constants. `constants` are several where a bias takes back the error of a weight.
    """

    value: Value
    maker: Node | None
    readers: frozenset[Node]
    constants: tuple[tuple[Value, Node], ...] = ()


class NoiseBudget:
    """The noise of each rounding of a module, as a share of the power of each result."""

    def __init__(self, module: Module, selection: Selection) -> None:
        self.module, self.selection = module, selection
        result = Result(module)
        graph = result.model.graph
        # A BatchNormalization that is written as one operator rounds nothing inside.
        written = {info.name for info in graph.input}
        written.update(name for node in graph.node for name in node.output)
        self.sites = [
            site
            for site in self._found_sites()
            if site.constants or result.name_of(site.value) in written
        ]
        self.runner = Runner(_switched(result, self.sites, selection), module.base_dir)
        self.results = [info.name for info in graph.output]
        self.noise: Array = np.zeros((0, 0))
        """The noise of each site alone, as a share of the power of each result [sites, results]."""

    @property
    def work(self) -> float:
        """Multiplications of a run with each rounding, on one sample."""
        return len(self.sites) * float(sum(map(work_of, self.module.graph.operators())))

    def _found_sites(self) -> Iterator[Site]:
        forms = self.selection.forms
        half = {node.outputs[index] for node, form in forms.items() for index in form.results}
        cast: dict[Value, set[Node]] = {}
        together: dict[tuple[Value | None, Node], list[tuple[Value, Node]]] = {}
        for node, form in forms.items():
            for index in sorted(form.operands):
                value = node.operand(index)
                if is_constant(value):
                    together.setdefault(self._group(value, node), []).append((value, node))
                elif value not in half:
                    cast.setdefault(value, set()).add(node)
        for constants in together.values():
            reading = frozenset(node for _, node in constants)
            yield Site(constants[0][0], None, reading, tuple(constants))
        for value in half:
            # What moves elements of a rounded value rounds nothing.
            if value.node is not None and not _moves(value.node, half):
                yield Site(value, value.node, frozenset(value.users))
        for value, readers in cast.items():
            yield Site(value, None, frozenset(readers))

    def _group(self, value: Value, reader: Node) -> tuple[Value | None, Node]:
        """Return what constants have in common that are rounded together."""
        layer = reader
        is_corrected = self.selection.constants[value, reader].is_corrected
        if is_corrected and reader.op not in LAYERS:
            makers = (other.node for other in reader.inputs if other is not None)
            layer = next(
                (node for node in makers if node is not None and node.op in LAYERS), reader
            )
        is_weight = layer is reader and reader.op in LAYERS and value is reader.input(1)
        return (None, layer) if is_weight or is_corrected else (value, reader)

    def together(self, batches: Sequence[Feeds]) -> dict[str, float]:
        """Return the dB of each result with all roundings, but of results without a signal."""
        count = len(self.sites)
        exact, rounded = (Switched(self.runner, on, count) for on in ((), range(count)))
        found = measure(exact, rounded, self.results, batches)
        return {one.name: one.sqnr for one in found if one.sqnr != -np.inf}

    def measure(self, batches: Sequence[Feeds]) -> None:
        """Measure the noise of each rounding alone. Raises VerifyError if it does not run."""
        self.noise = np.array([*lone_noise(self.runner, len(self.sites), self.results, batches)])

    def left(self, kept: Collection[Node]) -> float:
        """Return the noise of the worst result with some operators in float32."""
        places = [i for i, site in enumerate(self.sites) if not self.is_saved(site, kept)]
        return float(self.noise[places].sum(axis=0).max(initial=0.0)) if places else 0.0

    def is_saved(self, site: Site, kept: Collection[Node]) -> bool:
        """Return whether a rounding does not take place with some operators in float32."""
        stay = self.selection.reasons
        if site.maker is not None and site.maker not in kept:
            return False
        readers = [reader for reader in site.readers if reader.op != "return"]
        return all(reader in kept or reader in stay for reader in readers)

    def choose(self, gain: float) -> list[Node]:
        """Return the operators that stay float32 to gain as many dB.

        There are none if this cannot be had with SHARE of all operators. Operators are added one
        group after another: the one that saves most for each operator.
        """
        operators = [node for node in self.selection.forms if node.op != "constant"]
        stayed = sum(map(is_float32_operator, self.selection.reasons))
        room = int(SHARE * (len(operators) + stayed)) - stayed
        kept: dict[Node, None] = {}
        now = self.left(kept)
        target = now * 10 ** (-gain / 10)
        while now > target:
            best: tuple[float, list[Node]] | None = None
            for group in self._groups(operators, kept):
                if len(kept) + len(group) > room:
                    continue
                saved = (now - self.left({**kept, **dict.fromkeys(group)})) / len(group)
                if saved > 0 and (best is None or saved > best[0]):
                    best = saved, group
            if best is None:
                return []
            kept.update(dict.fromkeys(best[1]))
            now = self.left(kept)
        return list(kept)

    def _groups(self, operators: Sequence[Node], kept: Collection[Node]) -> Iterator[list[Node]]:
        """Yield operators alone, with those before, with those behind, and with both."""
        forms = self.selection.forms
        for node in operators:
            makers = [value.node for value in node.inputs if value is not None and value.node]
            before = [each for each in makers if each in forms]
            behind = [user for value in node.outputs for user in value.users if user in forms]
            for group in ([], before, behind, before + behind):
                found = [each for each in dict.fromkeys([node, *group]) if each not in kept]
                if found:
                    yield found


def _moves(node: Node, half: Collection[Value]) -> bool:
    data = [value for value in node.inputs if value is not None]
    return has_trait(node, Trait.MOVES) and bool(data) and data[0] in half


def _switched(result: Result, sites: Sequence[Site], selection: Selection) -> ModelProto:
    """Return the float32 model with all roundings, each of which is switched on by an input."""
    model = copied(result.model)
    graph = model.graph
    places = {name: i for i, node in enumerate(graph.node) for name in node.output}
    constants = {tensor.name for tensor in graph.initializer}
    heads: list[NodeProto] = []
    behind: list[list[NodeProto]] = [[] for _ in graph.node]

    def rename(reader: Node, name: str, target: str) -> None:
        # The parameters of a BatchNormalization are read by the operator that it is written as.
        written = next(iter(reader.outputs[1].users), reader) if reader.op == AFFINE else reader
        place = places.get(result.name_of(written.outputs[0]))
        if place is not None:
            operands = graph.node[place].input
            operands[:] = [target if each == name else each for each in operands]

    for number, site in enumerate(sites):
        name, label = result.name_of(site.value), f"irc.site.{number}"
        switch = f"{SWITCH}{number}"
        if site.constants:
            for place, (value, reader) in enumerate(site.constants):
                name, target = result.name_of(value), f"{label}.{place}"
                if name not in constants:  # an attribute in the model's opset
                    continue
                half = selection.constants[value, reader].array.astype(np.float32)
                graph.initializer.append(numpy_helper.from_array(half, f"{target}.rounded"))
                heads.append(_chosen(switch, f"{target}.rounded", name, target))
                rename(reader, name, target)
            continue
        exact, target = name, label
        if site.maker is not None:
            node = graph.node[places[name]]
            exact, target = name + EXACT, name
            node.output[list(node.output).index(name)] = exact
        made = rounding(exact, f"{label}.rounded", selection.dtype)
        made.append(_chosen(switch, f"{label}.rounded", exact, target))
        if site.maker is None:
            for reader in site.readers:
                rename(reader, name, target)
        (behind[places[name]] if name in places else heads).extend(made)
    add_switches(graph, len(sites))
    nodes = [copied_node(node) for node in heads]
    for node, more in zip(graph.node, behind, strict=True):
        nodes += map(copied_node, (node, *more))
    del graph.node[:]
    graph.node.extend(nodes)
    return model


def _chosen(switch: str, rounded: str, exact: str, target: str) -> NodeProto:
    """Return a Where that takes the rounded numbers if a switch is on."""
    return helper.make_node("Where", [switch, rounded, exact], [target])
