"""Passes as such.

Composition, options, errors, instruments; every order of the five gives an equivalent model.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from graphs import (
    F64,
    Graph,
    assert_equivalent,
    assert_interface,
    assert_nothing_stale,
    batch_norm,
    compiled,
    is_valid,
    operators,
    size,
)
from irc.frontends.onnx import from_model
from irc.ir.module import Module
from irc.ir.text.printer import to_text
from irc.ir.verifier import verify
from irc.passes import (
    DEFAULT_PIPELINE,
    PASSES,
    CanonicalizeOps,
    DumpIR,
    FoldConstant,
    FoldScaleAxis,
    Pass,
    PassContext,
    PrintIR,
    Sequential,
    SimplifyExpr,
    SimplifyInference,
    Timing,
    Verify,
    default_pipeline,
    parse_pipeline,
)
from irc.passes.pipelines import DEFAULT
from irc.support.errors import IRError, PassError, UsageError
from onnx import ModelProto, helper


def mixed_model(dtype: np.dtype[Any] = F64) -> ModelProto:
    """Something for every pass to do and to refuse, and something that depends on order."""
    graph = Graph(dtype=dtype)
    graph.input("x", [2, 3, 4, 4])
    graph.input("c", [], np.dtype(np.bool_))
    weight = graph.constant(graph.random(4, 3, 3, 3), "identity")
    graph.node("Conv", ["x", weight, graph.initializer(graph.random(4), "b")], "h1", "conv1")
    graph.batch_norm("h1", batch_norm(4, 1, dtype), "n1", "bn1", "identity")
    graph.node("Mul", [graph.initializer(graph.positive(4, 1, 1)), "n1"], "m1")
    graph.node("Dropout", [graph.node("Relu", ["m1"])], "r1")
    graph.node(
        "ConvTranspose", ["r1", graph.initializer(graph.random(4, 2, 2, 2))], "h2", "up", group=2
    )
    graph.batch_norm("h2", batch_norm(4, 2, dtype), "n2", "bn2")
    then = helper.make_graph(
        [helper.make_node("Neg", ["n2"], ["then"])],
        "t",
        [],
        [helper.make_tensor_value_info("then", 11, [2, 4, 3, 3])],
    )
    other = helper.make_graph(
        [helper.make_node("Identity", ["n2"], ["else"])],
        "e",
        [],
        [helper.make_tensor_value_info("else", 11, [2, 4, 3, 3])],
    )
    graph.node("If", ["c"], "i", then_branch=then, else_branch=other)
    graph.batch_norm("i", batch_norm(4, 3, dtype), "kept", "bn3")
    flat = graph.node("Flatten", ["kept"])
    graph.node("MatMul", [flat, graph.initializer(graph.random(36, 5))], "h3", "fc")
    graph.node("Add", ["h3", graph.initializer(graph.random(5))], "a3")
    graph.batch_norm("a3", batch_norm(5, 4, dtype), "n3", "bn4")
    graph.node(
        "Add",
        [
            graph.node("Sub", [graph.node("Sigmoid", ["n3"]), graph.initializer(0.5)]),
            graph.initializer(3.0),
        ],
        "y",
    )
    graph.output("y", [2, 5])
    return graph.model()


FIVE = (SimplifyInference, FoldScaleAxis, CanonicalizeOps, SimplifyExpr, FoldConstant)
FIVE_IN_ORDER = ",".join(pass_.name for pass_ in FIVE)

ORDERS = [
    *itertools.permutations(range(5)),
    *itertools.permutations(range(5), 2),
    *((i,) for i in range(5)),
    (0, 0, 1, 1, 2, 2, 3, 3, 4, 4),
    (4, 3, 2, 1, 0, 0, 1, 2, 3, 4),
]


@pytest.fixture(scope="module")
def mixed() -> ModelProto:
    return mixed_model()


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS, ids=lambda order: "".join(map(str, order)))
def test_every_order_gives_an_equivalent_model(order: tuple[int, ...], mixed: ModelProto) -> None:
    passes = Sequential(FIVE[i]() for i in order)
    result = compiled(mixed, passes, context=PassContext([Verify()]))
    assert size(result.model) <= size(mixed)
    assert_interface(mixed, result.model)
    assert_nothing_stale(mixed, result.model)
    assert is_valid(result.model) is None
    assert_equivalent(mixed, result.model)


def test_the_default_order_folds_what_can_be_folded(mixed: ModelProto) -> None:
    expected = ["Conv", "Relu", "ConvTranspose", "If", "Flatten", "Gemm", "Sigmoid", "Add"]
    assert operators(compiled(mixed).model) == expected


APPROXIMATE = ("BiasCorrection", "HighBiasAbsorption")
"""Passes that keep the function of what follows them, or of nearly all inputs; their tests say how
nearly.
"""


@pytest.mark.parametrize("name", sorted(PASSES))
def test_each_pass_alone_keeps_the_model_whole(name: str, mixed: ModelProto) -> None:
    result = compiled(mixed, name, context=PassContext([Verify()]))
    assert size(result.model) <= size(mixed)
    assert is_valid(result.model) is None
    if name not in APPROXIMATE:
        assert_equivalent(mixed, result.model)


def test_a_second_run_of_the_pipeline_changes_nothing(mixed: ModelProto) -> None:
    module = default_pipeline()(from_model(mixed))
    before = to_text(module)
    for pass_ in default_pipeline().flat:
        assert not pass_.run(module, PassContext()), pass_
    assert to_text(module) == before


# composition


def test_sequential_returns_the_module_it_was_given(mixed: ModelProto) -> None:
    module = from_model(mixed)
    assert Sequential([SimplifyInference(), FoldScaleAxis()])(module) is module
    assert SimplifyExpr()(module) is module
    assert module.provenance.passes == ["SimplifyInference", "FoldScaleAxis", "SimplifyExpr"]


def test_an_empty_sequential_does_nothing(mixed: ModelProto) -> None:
    assert compiled(mixed, Sequential([])).model == mixed
    assert compiled(mixed, "none").model == mixed


def test_disabled_passes_are_left_out(mixed: ModelProto) -> None:
    context = PassContext(disabled=frozenset({"FoldScaleAxis"}))
    result = compiled(mixed, context=context)
    assert operators(result.model).count("BatchNormalization") == 4
    passes = result.fold_map.data["producer"]["passes"]
    assert set(passes) == {str(pass_) for pass_ in DEFAULT_PIPELINE} - {"FoldScaleAxis"}


def test_a_pass_is_a_frozen_dataclass() -> None:
    for pass_ in PASSES.values():
        assert dataclasses.is_dataclass(pass_)
        assert pass_() == pass_()
        assert len({pass_(), pass_()}) == 1
        assert re.search(r"^\s*1\. ", pass_.__doc__ or "", re.M), (
            "the docstring states the rules as numbered sentences"
        )
    with pytest.raises(dataclasses.FrozenInstanceError):
        FoldConstant().max_bytes = 3  # type: ignore[misc]


# text

SPECS = [
    "SimplifyInference",
    "FoldConstant{max_bytes=1024}",
    "SimplifyInference,FoldScaleAxis{max_growth=0},FoldConstant",
    "CanonicalizeOps{bias_add=false}",
    "FreezeInitializers,SimplifyInference,FoldScaleAxis,CanonicalizeOps,SimplifyExpr,FoldConstant,UnfuseBias",
    "FoldConstant,FoldConstant",
]


@pytest.mark.parametrize("spec", SPECS)
def test_pipelines_as_text(spec: str) -> None:
    pipeline = parse_pipeline(spec)
    assert str(pipeline) == spec
    assert parse_pipeline(str(pipeline)).passes == pipeline.passes


@pytest.mark.parametrize(
    ("spec", "same"),
    [
        (
            " FoldConstant { max_bytes = 7 } , SimplifyExpr ",
            "FoldConstant{max_bytes=7},SimplifyExpr",
        ),
        ("FoldConstant{max_bytes=65536}", "FoldConstant"),
        ("FoldConstant{}", "FoldConstant"),
        ("CanonicalizeOps{bias_add=true}", "CanonicalizeOps"),
        ("default", DEFAULT),
        ("none", ""),
        ("", ""),
        ("none,SimplifyExpr,none", "SimplifyExpr"),
        ("default,UnfuseBias", f"{DEFAULT},UnfuseBias"),
    ],
)
def test_text_is_normalized(spec: str, same: str) -> None:
    assert str(parse_pipeline(spec)) == same


MISTAKES: dict[str, list[str]] = {
    "FoldScaleAxes": ["FoldScaleAxes", "did you mean FoldScaleAxis?", *PASSES],
    "SimplifyInference,foldconstant": ["foldconstant", "FoldConstant"],
    "Nonsense": ["Nonsense", *PASSES],
    "FoldConstant{max_byte=1}": ["FoldConstant", "max_byte", "max_bytes"],
    "FoldConstant{max_bytes=many}": ["FoldConstant", "max_bytes", "int", "many"],
    "FoldConstant{max_bytes}": ["max_bytes"],
    "CanonicalizeOps{bias_add=1}": ["bias_add", "bool"],
    "SimplifyExpr{x=1}": ["SimplifyExpr", "x", "affines"],
    "FoldConstant{max_bytes=1": ["FoldConstant{max_bytes=1"],
    "FoldConstant SimplifyExpr": ["expected"],
    "FoldConstant;SimplifyExpr": [";"],
    ",": [","],
    "default{x=1}": ["default"],
    "none{x=1}": ["none"],
}


@pytest.mark.parametrize("spec", MISTAKES)
def test_mistakes_name_what_is_known(spec: str) -> None:
    with pytest.raises(PassError) as caught:
        parse_pipeline(spec)
    for part in MISTAKES[spec]:
        assert part in str(caught.value)
    assert isinstance(caught.value, UsageError)
    assert isinstance(caught.value, IRError)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "spec",
    ["FoldConstant{max_byte=1}", "FoldScaleAxis{max_grow=1}", "CanonicalizeOps{bias_ad=true}"],
)
def test_an_unknown_option_is_answered_with_the_nearest(spec: str) -> None:
    with pytest.raises(PassError, match="did you mean"):
        parse_pipeline(spec)


def test_mistakes_reach_the_caller_of_compile(mixed: ModelProto) -> None:
    with pytest.raises(PassError, match="did you mean SimplifyExpr"):
        compiled(mixed, "SimplifyExp")


def test_unknown_names_elsewhere() -> None:
    with pytest.raises(PassError, match="did you mean FoldConstant"):
        PassContext(disabled=frozenset({"FoldConstants"}))
    with pytest.raises(PassError, match="did you mean FoldConstant"):
        PrintIR("FoldConstants")


@pytest.mark.parametrize("value", ["1.5", "1e3", "0x10", ""])
def test_odd_numbers_for_an_option(value: str) -> None:
    with pytest.raises(PassError):
        parse_pipeline(f"FoldConstant{{max_bytes={value}}}")


# instruments


def test_timing(mixed: ModelProto) -> None:
    timing = Timing()
    compiled(mixed, FIVE_IN_ORDER, context=PassContext([timing]))
    assert [name for name, _ in timing.seconds] == [pass_.name for pass_ in FIVE]
    assert all(seconds >= 0 for _, seconds in timing.seconds)
    lines = timing.render().splitlines()
    assert len(lines) == 6
    assert lines[-1].startswith("total")
    assert len({len(line) for line in lines}) == 1
    assert Timing().render().startswith("total")


def test_printing(mixed: ModelProto) -> None:
    printed: list[str] = []
    compiled(mixed, FIVE_IN_ORDER, context=PassContext([PrintIR("FoldScaleAxis", printed.append)]))
    (text,) = printed
    assert text.startswith("// IR after FoldScaleAxis\n")
    everything: list[str] = []
    compiled(mixed, FIVE_IN_ORDER, context=PassContext([PrintIR("all", everything.append)]))
    assert any("SimplifyInference" in item.splitlines()[0] for item in everything)
    assert not any("CanonicalizeOps" in item.splitlines()[0] for item in everything), (
        "it changed nothing"
    )
    unchanged: list[str] = []
    compiled(
        mixed, FIVE_IN_ORDER, context=PassContext([PrintIR("CanonicalizeOps", unchanged.append)])
    )
    assert unchanged[0].splitlines()[0] == "// IR after CanonicalizeOps (unchanged)"


def test_printing_goes_to_stderr(mixed: ModelProto, capsys: pytest.CaptureFixture[str]) -> None:
    compiled(mixed, FIVE_IN_ORDER, context=PassContext([PrintIR("FoldConstant")]))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("// IR after FoldConstant\n")


def test_dumping(mixed: ModelProto, tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    compiled(mixed, FIVE_IN_ORDER, context=PassContext([DumpIR(folder)]))
    names = sorted(path.name for path in folder.iterdir())
    assert names == [
        "00-source.irc", "01-SimplifyInference.irc", "02-FoldScaleAxis.irc", "03-CanonicalizeOps.irc",
        "04-SimplifyExpr.irc", "05-FoldConstant.irc",
    ]  # fmt: skip
    assert (folder / "00-source.irc").read_text(encoding="utf-8") == to_text(from_model(mixed))


def test_dumping_where_no_folder_can_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PassError, match="file"):
        DumpIR(tmp_path / "file")


class Recorder:
    """Notes what it is called with."""

    def __init__(self, log: list[tuple[str, str, str]], name: str) -> None:
        self.log, self.name = log, name

    def before(self, pass_: Pass, module: Module) -> None:
        self.log.append((self.name, "before", str(pass_)))

    def after(self, pass_: Pass, module: Module, changed: bool) -> None:
        self.log.append((self.name, f"after {changed}", str(pass_)))


def test_instruments_stand_around_every_pass(mixed: ModelProto) -> None:
    log: list[tuple[str, str, str]] = []
    context = PassContext([Recorder(log, "a"), Recorder(log, "b")])
    compiled(mixed, Sequential([SimplifyInference(), CanonicalizeOps()]), context=context)
    assert log == [
        ("a", "before", "SimplifyInference"),
        ("b", "before", "SimplifyInference"),
        ("a", "after True", "SimplifyInference"),
        ("b", "after True", "SimplifyInference"),
        ("a", "before", "CanonicalizeOps"),
        ("b", "before", "CanonicalizeOps"),
        ("a", "after False", "CanonicalizeOps"),
        ("b", "after False", "CanonicalizeOps"),
    ]


@dataclasses.dataclass(frozen=True)
class Breaks(Pass):
    """1. Breaks the IR."""

    name: ClassVar[str] = "Breaks"

    def run(self, module: Module, ctx: PassContext) -> bool:
        node = next(iter(module.graph))
        node.output.users.clear()
        return True


@dataclasses.dataclass(frozen=True)
class Lies(Pass):
    """1. Changes a name and says it did not."""

    name: ClassVar[str] = "Lies"

    def run(self, module: Module, ctx: PassContext) -> bool:
        next(iter(module.graph)).output.name = "another"
        return False


@dataclasses.dataclass(frozen=True)
class Crashes(Pass):
    """1. Raises."""

    name: ClassVar[str] = "Crashes"

    def run(self, module: Module, ctx: PassContext) -> bool:
        raise ZeroDivisionError("by design")


@pytest.mark.parametrize(
    ("pass_", "message"), [(Breaks(), "Breaks broke the IR"), (Lies(), "Lies changed the IR")]
)
def test_the_verifier_names_the_culprit(pass_: Pass, message: str, mixed: ModelProto) -> None:
    with pytest.raises(PassError, match=message):
        Sequential([SimplifyInference(), pass_])(from_model(mixed), PassContext([Verify()]))


def test_a_crash_names_the_pass_and_those_before(mixed: ModelProto) -> None:
    with pytest.raises(
        PassError, match=r"Crashes failed after SimplifyInference: ZeroDivisionError: by design"
    ) as caught:
        Sequential([SimplifyInference(), Crashes()])(from_model(mixed))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    with pytest.raises(PassError, match="Crashes failed as the first pass"):
        Sequential([Crashes()])(from_model(mixed))


# structure, pass by pass


def models() -> Iterator[tuple[str, ModelProto]]:
    """A few models of every kind."""
    for dtype in (np.dtype(np.float32), F64):
        yield f"mixed {dtype}", mixed_model(dtype)


def test_the_module_is_sound_after_every_pass() -> None:
    for name, model in models():
        module = from_model(model)
        for pass_ in default_pipeline().flat:
            pass_(module)
            verify(module)
        assert module.provenance.passes, name


def test_a_model_that_is_not_ssa_is_left_as_it_is() -> None:
    graph = Graph(ir=3, opset=8)
    graph.input("x", [2, 3])
    graph.node("Relu", ["x"], "x2")
    graph.node(
        "BatchNormalization", ["x2", *(graph.initializer(graph.positive(3)) for _ in range(4))], "y"
    )
    graph.output("y", [2, 3])
    model = graph.model()
    model.graph.input.append(helper.make_tensor_value_info("x2", 1, [2, 3]))
    context = PassContext()
    result = compiled(model, context=context)
    assert result.model == model
    assert any("x2" in warning for warning in result.warnings)
