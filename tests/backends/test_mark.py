"""The mark of irc's own results.

`irc.compiled` in the metadata of a model of which something changed.
"""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import irc
import onnx
import pytest
from graphs import Graph, batch_norm, conv_bn, unmarked
from irc import Rejected, certify
from irc.backends.foldmap.digests import graph_digest
from irc.backends.foldmap.fold_map import FoldMap
from irc.backends.foldmap.inverse import unfold
from irc.frontends.onnx.codec.protos import is_compiled
from irc.frontends.text import parse
from irc.ir.text.printer import side_data
from onnx import ModelProto

MARK = ("irc.compiled", "1")


def net(**metadata: str) -> ModelProto:
    """A convolution with a BatchNormalization that folds."""
    graph, _, _ = conv_bn()
    graph.output("y", [2, 4, 4, 4])
    model = graph.model()
    for key, value in metadata.items():
        model.metadata_props.add(key=key.replace("_", "."), value=value)
    return model


def metadata(model: ModelProto) -> list[tuple[str, str]]:
    return [(entry.key, entry.value) for entry in model.metadata_props]


def bytes_of(model: ModelProto) -> bytes:
    return model.SerializeToString(deterministic=True)


@pytest.mark.parametrize(
    "source", [net(), net(author="me", z="1"), net(irc_compiled="of another"), net(irc_fold="x")]
)
def test_what_irc_changed_bears_one_mark(source: ModelProto) -> None:
    """A second compile leaves it, unfolding brings the source back, digests do not see it."""
    result = irc.compile(source)
    own = [] if is_compiled(source) else [MARK]
    assert metadata(result.model) == metadata(source) + own
    assert bytes_of(irc.compile(result.model).model) == bytes_of(result.model)
    assert bytes_of(irc.compile(source).model) == bytes_of(result.model)
    assert bytes_of(unfold(result.model, result.fold_map)) == bytes_of(source)
    assert graph_digest(unmarked(result.model)) == graph_digest(result.model)


def test_the_files_of_a_compile(tmp_path: Path) -> None:
    source, made, again = (tmp_path / name for name in ("m.onnx", "o.onnx", "p.onnx"))
    onnx.save(net(author="me"), source)
    irc.compile(source).save(made, fold_map=tmp_path / "map.json", embed_fold_map=True)
    assert is_compiled(onnx.load(made))
    irc.compile(made).save(again)
    assert again.read_bytes() == made.read_bytes()
    found = unfold(onnx.load(made), FoldMap.load(made))
    assert bytes_of(found) == source.read_bytes()


def kept() -> ModelProto:
    """A BatchNormalization behind a Relu that nothing absorbs.

    Passes take it apart, and it is written as it came.
    """
    graph = Graph()
    value = graph.node("Relu", [graph.input("x", [2, 4, 3, 3])])
    graph.node("Tanh", [graph.batch_norm(value, batch_norm(4))], "y")
    graph.output("y", [2, 4, 3, 3])
    return graph.model()


@pytest.mark.parametrize(
    ("source", "passes"),
    [
        (net(), "none"),
        (net(), "SimplifyInference"),
        (net(), "CanonicalizeOps"),
        (kept(), None),
        (kept(), "default"),
    ],
)
def test_where_nothing_changed_is_no_mark(source: ModelProto, passes: str | None) -> None:
    assert bytes_of(irc.compile(source, passes).model) == bytes_of(source)
    compiled = irc.compile(net(author="me")).model
    assert bytes_of(irc.compile(compiled, "none").model) == bytes_of(compiled)


def test_types_and_an_old_fold_map_are_no_change_of_a_node() -> None:
    source = kept()
    source.graph.value_info.add(name="Relu_0").CopyFrom(source.graph.input[0])
    source.graph.value_info[0].name = "gone"
    source.metadata_props.add(key="irc.fold_map", value="of another model")
    assert not is_compiled(irc.compile(source).model)


def test_a_change_of_a_constant_or_of_a_function_counts() -> None:
    unread = kept()
    unread.graph.initializer.add(name="unread", data_type=1, dims=[1], float_data=[0.0])
    result = irc.compile(unread).model
    assert result.graph.node == unread.graph.node
    assert is_compiled(result)
    calling = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17, "f" : 1]>
        g (float[2] x) => (float[2] y) { y = f.twice(x) }
        <domain: "f", opset_import: ["" : 17]> twice (x) => (y) { a = Identity(x)  b = Add(a, a)  y = Identity(b) }"""
    )
    result = irc.compile(calling, "SimplifyExpr").model
    assert result.graph == calling.graph
    assert result.functions != calling.functions
    assert is_compiled(result)


def test_a_module_in_python() -> None:
    module = irc.load(net())
    assert not is_compiled(irc.emit(module).model)
    irc.compile(module)
    assert is_compiled(irc.emit(module).model)


def test_ir_text_has_no_metadata() -> None:
    """So the text of a result does not bear the mark.

    A model that irc changes on the way from text does.
    """
    source, result = irc.load(net()), irc.load(irc.compile(net()).model)
    assert MARK[0] not in str(result)
    assert not is_compiled(irc.emit(parse(str(result), data=side_data(result))).model)
    assert is_compiled(irc.compile(parse(str(source), data=side_data(source))).model)


def test_certificates_leave_the_mark_out_and_no_other_metadata() -> None:
    source = net(author="me")
    result = irc.compile(source, certificate=True)
    document = result.certificate()
    assert is_compiled(result.model)
    assert certify(source, result.model, document) == certify(
        source, unmarked(result.model), document
    )
    renamed = deepcopy(result.model)
    renamed.metadata_props[0].value = "another"
    with pytest.raises(Rejected, match="about another result"):
        certify(source, renamed, document)
    marked = irc.compile(source, "none", certificate=True)
    unchanged = deepcopy(source)
    unchanged.metadata_props.add(key=MARK[0], value=MARK[1])
    assert certify(source, unchanged, marked.certificate()) == 0
