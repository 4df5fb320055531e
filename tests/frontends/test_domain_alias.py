"""`ai.onnx` is another name of ONNX's own domain.

In imports, on operators, in bodies and functions.
"""

from __future__ import annotations

import irc
import onnx
import pytest
import zoo
from graphs import Graph, all_nodes, batch_norm
from irc import certify
from irc.backends.foldmap.inverse import unfold
from irc.frontends.onnx.codec.domains import with_canonical_domains
from irc.frontends.text import parse
from irc.ir.text.printer import to_text
from irc.tools.verify import VerifyNumerics
from onnx import ModelProto

ALIAS = "ai.onnx"
IMPORTS = {"alone": (ALIAS,), "beside": ("", ALIAS), "not": ("",)}
"""The names under which the opset of ONNX is imported."""


def aliased(model: ModelProto, imports: str = "alone") -> ModelProto:
    """A copy of a model whose operators of ONNX have the domain `ai.onnx`, in bodies, too."""
    made = ModelProto()
    made.CopyFrom(model)
    for node in all_nodes(made):
        node.domain = node.domain or ALIAS
    for owner in (made, *made.functions):
        others = [(entry.domain, entry.version) for entry in owner.opset_import]
        del owner.opset_import[:]
        for domain, version in others:
            for name in (domain,) if domain else IMPORTS[imports]:
                owner.opset_import.add(domain=name, version=version)
    return made


def conv_bn_relu() -> ModelProto:
    graph = Graph()
    weight = graph.initializer(graph.random(4, 3, 1, 1), "w")
    value = graph.node("Conv", [graph.input("x", ["N", 3, 4, 4]), weight])
    graph.node("Relu", [graph.batch_norm(value, batch_norm(4))], "y")
    graph.output("y", ["N", 4, 4, 4])
    return graph.model()


FUNCTION = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["" : 17, "f" : 1]>
    g (float[N,2,4,4] x) => (float[N,2,4,4] y)
    <float[2,2,1,1] w = {1.0, 2.0, 3.0, 4.0},
     float[2] s = {0.5, 2.0}, float[2] b = {1.0, -1.0}, float[2] v = {1.0, 3.0}>
    { h = Conv(x, w)  i = f.norm(h, s, b, v)  y = Relu(i) }
    <domain: "f", opset_import: ["" : 17]>
    norm (h, s, b, v) => (i) { j = Identity(h)  i = BatchNormalization(j, s, b, b, v) }""")

BRANCHES = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["" : 17]>
    g (float[N,2] x, bool c) => (float[N,2] y) {
        z = If (c) <
            then_branch = t () => (float[N,2] p) { p = Relu(x) },
            else_branch = e () => (float[N,2] q) { k = Constant<value_float = 2.0>() q = Mul(x, k) }>
        a = Identity(z)
        b = Transpose<perm = [1, 0]>(a)
        d = Transpose<perm = [1, 0]>(b)
        shape = Shape(d)
        r = Reshape(d, shape)
        y = Neg(r)
    }""")

FOREIGN = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["" : 17]>
    g (float[2,6] x) => (float[2,3] y) {
        k = Constant<value_ints = [3, 3]>()
        zero = Constant<value = int64 {0}>()
        parts = SplitToSequence<axis = 1>(x, k)
        p = SequenceAt(parts, zero)
        condition = Constant<value = bool {1}>()
        y = If (condition) <
            then_branch = t () => (float[2,3] a) { a = Celu(p) },
            else_branch = e () => (float[2,3] b) { b = Neg(p) }>
    }""")

MODELS = {"main": conv_bn_relu(), "function": FUNCTION, "branches": BRANCHES, "foreign": FOREIGN}


def operators(model: ModelProto) -> list[str]:
    return sorted(node.op_type for node in all_nodes(model))


@pytest.mark.parametrize("imports", IMPORTS)
@pytest.mark.parametrize("name", MODELS)
def test_the_alias_makes_no_difference(name: str, imports: str) -> None:
    """Neither to the rewrites, nor to their proof, nor to their verification."""
    source = aliased(MODELS[name], imports)
    plain = irc.compile(MODELS[name], certificate=True)
    assert operators(plain.model) != operators(MODELS[name])
    verify = VerifyNumerics()
    result = irc.compile(source, certificate=True, context=irc.passes.PassContext([verify]))
    verify.finish(result.module, result.model)
    assert result.warnings == plain.warnings
    assert operators(result.model) == operators(plain.model)
    assert certify(source, result.model, result.certificate()) == certify(
        MODELS[name], plain.model, plain.certificate()
    )
    assert irc.compile(result.model).model == result.model
    assert unfold(result.model, result.fold_map) == source


@pytest.mark.parametrize("imports", ["alone", "not"])
def test_the_zoo_under_the_alias(imports: str) -> None:
    """Without passes every model comes back as it was, and the passes get the same module."""
    count = 0
    for name, model in zoo.models():
        source = aliased(model, imports)
        try:
            plain = to_text(irc.load(model))
        except irc.IRError:
            continue
        module = irc.load(source)
        assert to_text(module) == plain, name
        assert irc.emit(module).model == source, name
        count += 1
    assert count > 300


@pytest.mark.parametrize("where", ["model", "function"])
def test_two_opsets_of_one_domain_are_left_alone(where: str) -> None:
    """Runtimes take either; that of another domain is none of ONNX's."""
    source = aliased(FUNCTION)
    owner = source if where == "model" else source.functions[0]
    owner.opset_import.add(domain="", version=17)
    assert len(irc.compile(source).fold_map.layers) == 1
    owner.opset_import[-1].version = 13
    result = irc.compile(source)
    assert result.model == source
    assert "opsets 13 and 17 of ONNX" in result.warnings[0]


def test_ir_text_has_one_name() -> None:
    module = parse("""module {ir_version=9, opsets={"ai.onnx": 17}}
        graph @g(%x: f32[2]) { %y = "ai.onnx::Celu"(%x) : f32[2] return(%y) }""")
    assert module.graph.opsets == {"": 17}
    assert [node.op for node in module.graph.nodes()] == ["::Celu"]
    assert 'opsets={"": 17}' in str(irc.load(aliased(MODELS["branches"])))


def test_int8_models() -> None:
    """onnxruntime's quantizer wants one import of ONNX's domain."""
    found = {}
    for imports in IMPORTS:
        quantized = irc.quantize(
            aliased(MODELS["main"], imports), input_ranges={"x": (-1, 1)}
        ).model
        found[imports] = operators(quantized)
    assert found["alone"] == found["beside"] == found["not"]
    assert "QuantizeLinear" in found["alone"]


def test_messages_with_one_name() -> None:
    assert with_canonical_domains(FUNCTION) is FUNCTION
    assert with_canonical_domains(aliased(FUNCTION, "beside")) == FUNCTION
    assert with_canonical_domains(aliased(FUNCTION)) == FUNCTION
