"""The search for the steps of a certificate: where congruence ends, identities are tried."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

import numpy as np

from .checker.affine_operators import own_line
from .checker.clamps import CLAMPS, clamp_of, clamps
from .checker.congruence import SOURCE
from .checker.constant_operands import TOGETHER
from .checker.crossing import CROSSINGS
from .checker.kernels import BOUNDS, ulps_between
from .checker.linear_maps import SELECTIONS, SUMS
from .checker.movement import is_move
from .checker.operators import BROADCASTING, ELEMENTWISE, SIMPLE_REDUCTIONS
from .checker.pools import POOLS
from .checker.program import Datum, Misrounded, Operation, Program, Unproved, product
from .checker.proof import Proof
from .checker.recomputation import BY_TYPE, recomputed
from .checker.unproved import UNPROVED
from .checker.weighted_layers import DENSE, NORMALIZATIONS, weights_of
from .ends import open_outputs
from .namesakes import Namesakes
from .unrounded import affine_between, filled, stated, unrounded
from .writing import MAX_STATED, Exact

Claim = list[dict[str, Any]]
"""Affines that a layer applies, one after the other."""

MAX_TRIED = 24
"""Most values or operations of the source that are tried at an operation of the result."""

FIRST = ("constant", "equal operand")
"""Identities that need nothing of the source."""

WEIGHTED = frozenset(("Conv", "ConvTranspose", "MatMul"))

MAX_TURNED = 4
"""Most readers of a value with permuted axes that are tried."""

MAX_PARTS = 8
"""Most affines of a claim of which one is left out on trial."""

MERGED = frozenset(("Conv", "Gemm", "MatMul"))
"""Layers that sums of layers, and layers in a row, may become."""

MAPS = MERGED | SUMS | SELECTIONS
"""Operators of linear maps of channels."""

LAYERS = frozenset(("Conv", "ConvTranspose", "Gemm", "MatMul", "DequantizeLinear", *NORMALIZATIONS))
"""Operators whose weights take affines."""


def stem(label: str) -> str:
    """Return the name of a value before a rewrite named its scaled or transposed form."""
    for mark in (".scaled", ".transposed", ".reshaped"):
        label = label.split(mark)[0]
    return label


def _alike(kind: str) -> tuple[str, ...]:
    """Return the operators of the source that an operator of the result may be, with affines."""
    return (kind, "Unsqueeze") if kind == "Gather" else (kind,)


class Search(Proof):
    """A proof that finds its steps: `found` in order, `gaps` for uncovered operations, `misrounded`
    for layers with other numbers than those that follow by some step.

    `refusal` is the sentence at which a proof ended that `is_proved` says does not hold. A search
    `is_tainted` once a step replaced what congruence says: what it knows may not follow from its
    steps.
    """

    def __init__(
        self,
        source: Program,
        result: Program,
        claim_of: Callable[[str], Claim],
        computed: Exact = lambda _: None,
        exact: Exact = lambda _: None,
        *,
        is_rounding: bool = False,
        names: Namesakes | None = None,
        assumed: Container[str] = (),
        admits: bool = False,
        is_hasty: bool = False,
    ) -> None:
        """Search with the claims of layers, and constants of a runtime, by the labels of values.

        `exact` has the numbers that constants of the result were rounded from.

        `is_rounding` rounds constants at every operator of the source that computes one; `computes`
        is whether that makes a difference. Where no identity covers them, the results of operations
        in `assumed` are taken for their namesakes, and, if the search `admits` it, outputs for
        those of the source. A hasty search leaves numbers before outputs, and declared extents, to
        the proof by its steps.
        """
        super().__init__(source, result)
        self.is_hasty = is_hasty
        self.names = names
        self.assumed = assumed
        self.admits = admits
        self.claim_of = claim_of
        self.exact = exact
        self.is_rounding = is_rounding
        self.computes = False
        self.computed = computed
        self.found: list[dict[str, Any]] = []
        self.gaps: list[Operation] = []
        self.misrounded: set[Operation] = set()
        self.is_proved = False
        self.is_tainted = False
        self.refusal = ""
        self._readers: dict[tuple[str, int], list[Operation]] | None = None
        self._orders: list[tuple[int, ...]] | None = None
        self._classes: dict[int, list[Datum]] | None = None

    def attempt(self) -> None:
        """Run, and note in `is_proved` whether the outputs are proved equal.

        Raises Unproved for another interface.
        """
        self.compare_interfaces()
        self.source.forget()
        self.result.forget()
        try:
            self.prove()
        except Unproved as unproved:
            self.refusal = str(unproved)
            return
        self.is_proved = True

    def blocking(self) -> set[Operation]:
        """Return the operations of the result that outputs depend on which are not proved."""
        found = [self.blocker(each) for each in open_outputs(self)]
        return {each for each in found if each is not None}

    def visit(self, operation: Operation) -> None:
        """Enter an operation; try identities where it is gone from the result, or new there."""
        key = self.key(operation)
        is_bound = self.bind(operation, key)
        if self.side == SOURCE:
            is_open = not is_bound and self._is_gone(operation)
            is_computed = is_open and (self._computed(operation) or self._first(operation, FIRST))
            if not is_bound and not is_computed:
                self.enter(operation, key)
        elif is_bound:
            if operation.outputs[0].term in self.anchors:
                self._relate(operation)  # its constants may be rounded
            elif operation.outputs[0].term not in self.known:
                if self.base(operation.outputs[0]) is None:
                    self.is_tainted |= self._prove(operation)
                elif operation.kind == "SpaceToDepth":  # the source may have slices for it
                    self.is_tainted |= self._moves(operation)
        elif self.is_known(operation, key):
            self.enter(operation, key)
        elif not self._prove(operation):
            self.gaps.append(operation)
            if not self._assume(operation):
                self.enter(operation, key)

    def _assume(self, operation: Operation) -> bool:
        """Take the results of an operation for the values of the source with their names."""
        if self.names is None or operation.label not in self.assumed:
            return False
        values = self.names.of(operation)
        return values is not None and self._try(operation, {"identity": UNPROVED, "values": values})

    def admit(self, at: str, label: str, reason: str) -> None:
        if not self.admits:
            super().admit(at, label, reason)
        self.found.append({"step": 0, "at": at, "operation": label, "identity": UNPROVED})

    def grows(self, first: Datum, second: Datum) -> bool:
        return not self.is_hasty and super().grows(first, second)

    def compare_declared(self) -> None:
        if not self.is_hasty:
            super().compare_declared()

    def _is_gone(self, operation: Operation) -> bool:
        """Return whether the result has no such operator, or one that reads other values."""
        kept = self.result.operations.get(operation.label)
        if kept is None or kept.kind != operation.kind or kept.domain != operation.domain:
            return True
        names = [
            [None if each is None else each.label for each in op.inputs] for op in (kept, operation)
        ]
        return names[0] != names[1]

    def _computed(self, operation: Operation) -> bool:
        """Try the constant that a runtime computed, by its distance from the rounding."""
        numbers = self.computed(operation.label) if operation.kind in BOUNDS else None
        if numbers is None:
            return False
        try:
            rounded = recomputed(operation)[0]
            made = filled(numbers, rounded.array.shape).astype(rounded.array.dtype)
            ulps = ulps_between(made, rounded)
        except (Unproved, ValueError):
            return False
        return ulps is not None and self._try(operation, {"identity": "constant", "ulps": ulps})

    def _try(self, operation: Operation, step: dict[str, Any]) -> bool:
        """Apply a step, and keep it if it holds."""
        facts = self._facts(operation)
        try:
            self.apply(step, operation)
        except Unproved as refusal:
            if isinstance(refusal, Misrounded):
                self.misrounded.add(operation)
            self._restore(operation, facts)
            return False
        self.found.append({"step": 0, "at": self.side, "operation": operation.label, **step})
        return True

    def _facts(self, operation: Operation) -> list[tuple[Any, ...]]:
        """Return the facts about the results of an operation."""
        return [
            (each.term, each.stored, self.anchors.get(each.term), self.shapes.get(each.term))
            for each in operation.outputs
        ]

    def _restore(self, operation: Operation, facts: Sequence[tuple[Any, ...]]) -> None:
        """Take back what a step said of the results of an operation."""
        for value, (term, stored, anchor, shape) in zip(operation.outputs, facts, strict=True):
            related = self.terms.get(("related", value.label))
            if related is not None:
                self.anchors.pop(related, None)
                self.shapes.pop(related, None)
            value.term, value.stored = term, stored
            if anchor is not None:
                self.anchors[term] = anchor
            if shape is not None:
                self.shapes[term] = shape

    def _first(self, operation: Operation, names: Sequence[str]) -> bool:
        rounded = {"rounded": True} if self.is_rounding and self.side == SOURCE else {}
        for name in names:
            if not self._may_hold(name, operation):
                continue
            if self._try(operation, {"identity": name, **(rounded if name == "constant" else {})}):
                stored = operation.outputs[0].stored
                self.computes |= stored is not None and stored.is_unrounded
                return True
        return False

    def _may_hold(self, name: str, operation: Operation) -> bool:
        """Return whether it is worth while to try an identity that needs nothing of the source."""
        if name != "constant" or operation.kind in BY_TYPE:
            return True
        return all(
            each is None or each.stored is not None or each in self.open
            for each in operation.inputs
        )

    def _prove(self, operation: Operation) -> bool:
        # A clamp that limits nothing may be an affine of another value, too.
        is_clamp = operation.kind in CLAMPS
        if (is_clamp and self._relate(operation)) or self._first(operation, FIRST):
            return True
        if not operation.domain and not is_clamp and self._relate(operation):
            return True
        return is_move(operation) and self._moves(operation)

    def _relate(self, operation: Operation) -> bool:
        """Try steps that may relate an operation to the source until a value of its name is one.

        If none does so, the first that relates it to the family of that value is taken, or the
        first that holds.
        """
        best: tuple[int, dict[str, Any]] | None = None
        result = operation.outputs[0]
        named = self.source.data.get(result.label) or self.source.data.get(stem(result.label))
        family = None if named is None or not named.is_float else self.family(named)
        facts = self._facts(operation)
        for step in self._candidates(operation):
            if not self._try(operation, step):
                continue
            base = self.base(result)
            is_near = named is None or (
                family is not None and base is not None and base[0].term == family[0].term
            )
            if result.term in self.known or (is_near and result.label not in self.source.data):
                return True
            if best is None or best[0] < is_near:
                best = is_near, step
            self.found.pop()
            self._restore(operation, facts)
        if best is None:
            return False
        self._try(operation, best[1])
        return True

    def _candidates(self, operation: Operation) -> Iterator[dict[str, Any]]:
        """Yield the steps that may hold at an operation of the result."""
        yield from self._reshaped(operation)
        if own_line(operation) is not None:
            yield from self._affines(operation)
        if operation.kind == "Gemm":
            yield from self._sums(operation)
        if operation.kind in CLAMPS:
            yield from (
                {"identity": "same bounds", "source": each.label}
                for each in self._clamped(operation)
            )
        yield from self._turned(operation)
        labels = dict.fromkeys((operation.outputs[0].label, stem(operation.outputs[0].label)))
        yield from (
            {"identity": "same constant", "source": label}
            for label in labels
            if label in self.source.data
        )
        is_layer = operation.kind in LAYERS and (
            weights_of(operation) is not None or operation.kind not in WEIGHTED
        )
        if is_layer and operation.kind in MERGED:
            yield from (
                {"identity": "same map", "source": each} for each in self._merged(operation)
            )
        for source in self._counterparts(operation):
            if operation.kind in POOLS or (operation.kind == "Conv" and not is_layer):
                yield {"identity": "same windows", "source": source.label}
            if operation.kind in SIMPLE_REDUCTIONS:
                yield {"identity": "same reduction", "source": source.label}
            if operation.kind in CROSSINGS and source.kind in _alike(operation.kind):
                yield from self._crossings(operation, source)
            if is_layer:
                for claim in self._claims(operation, source):
                    yield {
                        "identity": "layer",
                        "source": source.label,
                        **({"applies": claim} if claim else {}),
                    }
                line = affine_between(source, unrounded(operation, self.exact))
                if line is not None:
                    yield {"identity": "layer", "source": source.label, "applies": [stated(line)]}
        if is_layer and operation.kind in MERGED:
            yield from ({"identity": "same map", "source": each} for each in self._added(operation))

    def _added(self, operation: Operation) -> Iterator[str]:
        """Yield the sums of layers of the source on the data of one, with affines between."""
        queue = [each.outputs[0] for each in self._counterparts(operation)]
        seen = set(queue)
        while queue and len(seen) <= MAX_TRIED:
            readers = [each for same in self._same(queue.pop(0)) for each in same.readers]
            for reader in readers:
                result = reader.outputs[0]
                if result in seen or (reader.kind not in SUMS and own_line(reader) is None):
                    continue
                seen.add(result)
                queue.append(result)
                if reader.kind in SUMS and not reader.domain:
                    yield result.label

    def _merged(self, operation: Operation) -> Iterator[str]:
        """Yield values of the source that sums of layers, or layers in a row, are, by their names.

        A product has the name of the bias behind it.
        """
        results = [operation.outputs[0]]
        if operation.kind == "MatMul":
            results += [each.outputs[0] for each in results[0].readers if own_line(each)]
        labels = dict.fromkeys(name for each in results for name in (each.label, stem(each.label)))
        data = operation.operand(0)
        origin = None if data is None else self.origin(data)
        end = -1 if origin is None else origin[0].term
        for label in labels:
            value = self.source.data.get(label)
            last = self._layer_of(value, end)
            if last is None:
                is_map = value is not None and value.producer is not None
            else:
                is_map = last.kind in SUMS or self._layer_of(last.operand(0), end) is not None
            if is_map:
                yield label

    def _layer_of(self, value: Datum | None, end: int) -> Operation | None:
        """Return the layer or sum before a value, and affines between, up to the class `end`."""
        while value is not None and value.producer is not None and value.term != end:
            own = own_line(value.producer)
            if own is None:
                return value.producer if value.producer.kind in MAPS else None
            value = own[0]
        return None

    def _crossings(self, operation: Operation, source: Operation) -> Iterator[dict[str, Any]]:
        """Yield steps by which affines cross an operator, with affines of constants beside."""
        step = {"identity": "crosses", "source": source.label}
        yield step
        has_constants = any(
            each is not None and each.stored is not None for each in operation.inputs
        )
        if has_constants and (operation.kind in TOGETHER or operation.kind == "Pad"):
            yield from (
                {**step, "applies": claim} for claim in self._claims(operation, source) if claim
            )

    def _reshaped(self, operation: Operation) -> Iterator[dict[str, Any]]:
        """Yield steps that match `operation` to a source operation on reshaped data."""
        if operation.kind not in ELEMENTWISE and operation.kind not in BROADCASTING:
            return
        for source in self._of_same_name(operation):
            if self.shape(source.outputs[0]) != self.own_shape(operation.outputs[0]):
                yield {"identity": "reshaped", "source": source.label}

    def _of_same_name(self, operation: Operation) -> dict[Operation, None]:
        """Return the source operations of its kind and name, or that it is a view of."""
        labels = dict.fromkeys((operation.label, stem(operation.label)))
        named = [self.source.data.get(label) for label in labels]
        found = [
            None if value is None else self.source.operations.get(value.label) for value in named
        ]
        cores = [
            self.views.get(value.term, (value.term, ()))[0] for value in named if value is not None
        ]
        found += [self.known[core].producer for core in cores if core in self.known]
        return dict.fromkeys(
            each for each in found if each is not None and each.kind == operation.kind
        )

    def _turned(self, operation: Operation) -> Iterator[dict[str, Any]]:
        """Yield steps that match `operation` to a source operation on transposed data."""
        found = dict.fromkeys((*self._of_same_name(operation), *self._turned_readers(operation)))
        name = "crosses"
        if operation.kind in CLAMPS and clamp_of(operation) is not None:
            name = "same bounds"
        for source in found:
            data = next(
                (each for each in source.inputs if each is not None and each.stored is None), None
            )
            for perm in self._perms():
                if data is not None and len(perm) == data.rank:
                    yield {"identity": name, "source": source.label, "perm": list(perm)}

    def _turned_readers(self, operation: Operation) -> Iterator[Operation]:
        """Yield source operations that read a value permuted and scaled as an operand is."""
        bases = [
            self.base(each)
            for each in operation.inputs[:2]
            if each is not None and each.stored is None
        ]
        for root in dict.fromkeys(base[0] for base in bases if base is not None):
            yield from self._permuted_readers(operation.kind, root)

    def _permuted_readers(self, kind: str, value: Datum) -> Iterator[Operation]:
        """Yield source operations that read a value with its axes permuted."""
        for perm in self._perms():
            if len(perm) == value.rank:
                with suppress(Unproved):
                    turned = self.permuted(value, perm)
                    yield from self._readers_of(kind, turned.term)[:MAX_TURNED]

    def _perms(self) -> list[tuple[int, ...]]:
        """Return the permutations of axes in the source, and their inverses."""
        if self._orders is None:
            found = (
                each.attributes.get("perm")
                for each in self.source.operations.values()
                if not each.domain
            )
            both = [
                (perm, tuple(sorted(range(len(perm)), key=perm.__getitem__)))
                for perm in found
                if perm
            ]
            self._orders = list(dict.fromkeys(perm for pair in both for perm in pair))
        return self._orders

    def _clamped(self, operation: Operation) -> list[Datum]:
        """Return values of the source that a clamp may be, those with its name first."""
        result = operation.outputs[0]
        bases = [self.base(data) for data, _, _ in clamps(result, self.first_of)]
        roots = [base[0].term for base in bases if base is not None]
        found = [
            each.outputs[0]
            for root in roots
            for kind in CLAMPS
            for each in self._readers_of(kind, root)
        ]
        row, seen = found[:], set[int]()
        while row and len(found) <= MAX_TRIED:
            value = row.pop(0)
            if value.term not in seen:
                readers = [each for same in self._same(value) for each in same.readers]
            else:
                readers = []
            seen.add(value.term)
            limited = [
                each.outputs[0]
                for each in readers
                if each.kind in CLAMPS and each.outputs[0] not in found
            ]
            found.extend(limited)
            row.extend(
                [*limited, *(each.outputs[0] for each in readers if own_line(each) is not None)]
            )
        return sorted(
            dict.fromkeys(found), key=lambda each: stem(each.label) != stem(result.label)
        )[:MAX_TRIED]

    def _same(self, value: Datum) -> list[Datum]:
        """Return the values of the source in the class of one."""
        if self._classes is None:
            self._classes = defaultdict(list)
            for each in self.source.data.values():
                if each.term >= 0:
                    self._classes[each.term].append(each)
        return self._classes.get(self.term_of(value), [])

    def _affines(self, operation: Operation) -> Iterator[dict[str, Any]]:
        own = own_line(unrounded(operation, self.exact))
        base = None if own is None else self.base(own[0])
        if base is None:
            return
        made = [
            each for each in self.members_of(base[0]) if each.label == operation.outputs[0].label
        ]
        others = [each for each in self.members_of(base[0]) if each not in made]
        targets = [*made, *others][:MAX_TRIED]
        for target in targets:
            yield {"identity": "rounded affine", "source": target.label}
        for target in targets:
            if operation.kind in ("Mul", "Div"):
                yield {"identity": "rounded affine", "source": target.label, "only": "scale"}
            if operation.kind in ("Add", "Sub"):
                yield {"identity": "rounded affine", "source": target.label, "only": "shift"}
        if own is not None and own[1].rank == base[1].rank:
            first = next(
                (
                    each
                    for each in (base[0], *self.members_of(base[0]))
                    if each.label in self.source.data
                ),
                None,
            )
            family = None if first is None else self.family(first)
            line = None if family is None else own[1].after(base[1]).over(family[1])
            if first is None or line is None:
                return
            if product(np.broadcast_shapes(line.scale.shape, line.shift.shape)) <= MAX_STATED:
                claim = stated(line)
                yield {"identity": "rounded affine", "source": first.label, "applies": [claim]}

    def _sums(self, operation: Operation) -> Iterator[dict[str, Any]]:
        """Yield the sums of the source that a Gemm may be."""
        addend = operation.operand(2)
        same = [] if addend is None else self._same(addend)
        sums = (reader for each in same for reader in each.readers if reader.kind == "Add")
        yield from (
            {"identity": "product and sum", "source": each.label}
            for each in islice(sums, MAX_TRIED)
        )

    def _claims(self, operation: Operation, source: Operation) -> Iterator[list[dict[str, Any]]]:
        """Yield the lists of affines that a layer may apply, the likely ones first."""
        label = operation.outputs[0].label
        members = self.members_of(source.outputs[0])
        yield from ([{"value": each.label}] for each in members if each.label == label)
        claim = self.claim_of(label)
        if claim:
            yield claim
            # A part that moved on, or came twice, may be recorded, too.
            if 1 < len(claim) < MAX_PARTS:
                yield [each for i, each in enumerate(claim) if each not in claim[:i]]
                yield from ([*claim[:i], *claim[i + 1 :]] for i in range(len(claim)))
        yield []
        yield from ([{"value": each.label}] for each in members[:MAX_TRIED] if each.label != label)

    def _counterparts(self, operation: Operation) -> list[Operation]:
        """Return source operations of the same kind on operands related to its operands."""
        same = self.source.operations.get(operation.label) or self.source.operations.get(
            stem(operation.label)
        )
        is_named = same is not None and same.kind in _alike(operation.kind)
        found = {same.label: same} if same is not None and is_named else {}
        for operand in operation.inputs:
            if operand is not None and operand.stored is None:
                base = self.base(operand)
                root = operand.term if base is None else base[0].term
                core = self.views.get(root, (root, ()))[0]
                for pad in self._readers_of("Pad", core):
                    data = pad.outputs[0]
                    for behind in (
                        self._readers_of(operation.kind, data.term),
                        self._permuted_readers(operation.kind, data),
                    ):
                        found.update((each.label, each) for each in behind)
                for kind in DENSE if operation.kind in DENSE else (operation.kind,):
                    found.update((each.label, each) for each in self._readers_of(kind, root))
        ordered = sorted(found.values(), key=lambda each: stem(each.label) != stem(operation.label))
        return ordered[:MAX_TRIED]

    def _readers_of(self, kind: str, root: int) -> list[Operation]:
        if self._readers is None:
            self._index()
        assert self._readers is not None
        return self._readers.get((kind, root), [])

    def _index(self) -> None:
        self._readers = defaultdict(list)
        roots: dict[Datum, int | None] = {}

        def root_of(value: Datum) -> int | None:
            if value not in roots:
                family = self.family(value) if value.term >= 0 else None
                roots[value] = None if value.term < 0 else value.term
                if family is not None:
                    roots[value] = family[0].term
            return roots[value]

        for operation in self.source.operations.values():
            data = [each for each in operation.inputs if each is not None and each.stored is None]
            for root in {root_of(each) for each in data}:
                if root is not None:
                    self._readers[operation.kind, root].append(operation)

    def _moves(self, operation: Operation) -> bool:
        """Try to prove that a result of moves holds the elements of a value of the source."""
        for nearest in (True, False):
            leaves = self._leaves(operation, nearest=nearest) or ()
            names = [leaf.label for leaf in leaves]
            for target in self._moved(leaves[0]) if leaves else ():
                if self._try(
                    operation, {"identity": "same elements", "source": target.label, "from": names}
                ):
                    return True
        return False

    def _leaves(self, operation: Operation, *, nearest: bool) -> list[Datum] | None:
        """Return the source values that moves turn into `operation`, None if one is unknown."""
        found: dict[int, Datum] = {}
        seen, queue = {operation}, [operation]
        while queue:
            each = queue.pop(0)
            for value in each.inputs if each.kind == "Concat" else each.inputs[:1]:
                if value is None:
                    return None
                known = self.known.get(self.term_of(value))
                is_leaf = nearest and known is not None
                if not is_leaf and value.producer is not None and is_move(value.producer):
                    if value.producer not in seen:
                        seen.add(value.producer)
                        queue.append(value.producer)
                    continue
                if known is None:
                    return None
                found[known.term] = known
        return list(found.values()) or None

    def _moved(self, leaf: Datum) -> list[Datum]:
        """Return values of the source to which only moves lead from `leaf`."""
        found, terms, queue = [leaf], {leaf.term}, [leaf, *self._same(leaf)]
        while queue and len(found) < MAX_TRIED:
            for reader in queue.pop(0).readers:
                if (
                    is_move(reader)
                    and reader.outputs[0].term not in terms
                    and reader.outputs[0].term >= 0
                ):
                    terms.add(reader.outputs[0].term)
                    found.append(reader.outputs[0])
                    queue.append(reader.outputs[0])
        return found
