"""Metadata, documentation, devices and names of nodes that passes replace, merge or make."""

from __future__ import annotations

import irc
import numpy as np
import pytest
from graphs import F32, Graph, assert_named, batch_norm
from irc.ir import Node, Rewriter
from onnx import ModelProto, NodeProto, helper, numpy_helper


def marked(op_type: str, inputs: list[str], output: str, **marks: str) -> NodeProto:
    node = helper.make_node(
        op_type, inputs, [output], name=f"{op_type}_{output}", doc_string=f"doc {output}"
    )
    for key, value in {"namespace": f"of/{output}", **marks}.items():
        node.metadata_props.add(key=key, value=value)
    return node


def model_of(nodes: list[NodeProto], **weights: list[list[float]] | list[float]) -> ModelProto:
    x, y = (helper.make_tensor_value_info(name, 1, ["N", 2]) for name in ("x", nodes[-1].output[0]))
    initializers = [
        numpy_helper.from_array(np.array(value, np.float32), name)
        for name, value in weights.items()
    ]
    graph = helper.make_graph(nodes, "g", [x], [y], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=11)


def marks(node: NodeProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in node.metadata_props}


def dense(**other: str) -> ModelProto:
    nodes = [marked("MatMul", ["x", "w"], "h"), marked("Add", ["h", "b"], "y", **other)]
    return model_of(nodes, w=[[1.0, 2.0], [3.0, 4.0]], b=[5.0, 6.0])


def test_a_gemm_has_the_metadata_of_both_operators_and_its_own_go_first() -> None:
    (gemm,) = irc.compile(dense(only="here")).model.graph.node
    assert (gemm.op_type, gemm.name) == ("Gemm", "MatMul_h")
    assert marks(gemm) == {"namespace": "of/h", "only": "here"}
    assert gemm.doc_string == "doc h"


def test_a_gemm_runs_on_the_devices_of_the_node_whose_name_it_has() -> None:
    model = dense()
    for node in model.graph.node:
        configuration = node.device_configurations.add(
            configuration_id="two", pipeline_stage=len(node.name)
        )
        for name in (node.input[0], "nowhere"):
            configuration.sharding_spec.add(tensor_name=name, device=[0, 1])
    model.configuration.add(name="two", num_devices=2)
    (gemm,) = irc.compile(model).model.graph.node
    (configuration,) = gemm.device_configurations
    assert (configuration.configuration_id, configuration.pipeline_stage) == (
        "two",
        len("MatMul_h"),
    )
    assert [spec.tensor_name for spec in configuration.sharding_spec] == ["x"]


def test_a_layer_keeps_its_metadata_and_gets_those_of_the_affine_that_it_takes_in() -> None:
    norm = marked("BatchNormalization", ["h", "g", "b", "m", "v"], "y", only="here")
    model = model_of(
        [marked("Gemm", ["x", "w"], "h"), norm],
        w=[[1.0, 2.0], [3.0, 4.0]],
        g=[1.0, 2.0],
        b=[0.0, 1.0],
        m=[0.5, 0.5],
        v=[1.0, 2.0],
    )
    (gemm,) = irc.compile(model).model.graph.node
    assert marks(gemm) == {"namespace": "of/h", "only": "here"}
    assert gemm.doc_string == "doc h"


def test_a_layer_that_takes_the_name_of_a_result_shards_that_result() -> None:
    norm = marked("BatchNormalization", ["h", "g", "b", "m", "v"], "y")
    one, layer = [1.0, 2.0], marked("Gemm", ["x", "w"], "h")
    configuration = layer.device_configurations.add(configuration_id="two")
    for name in ("h", "x", "nowhere"):
        configuration.sharding_spec.add(tensor_name=name, device=[0, 1])
    model = model_of([layer, norm], w=[one, one], g=one, b=one, m=one, v=one)
    model.configuration.add(name="two", num_devices=2)
    assert irc.emit(irc.load(model)).model == model
    (gemm,) = irc.compile(model).model.graph.node
    assert [spec.tensor_name for spec in gemm.device_configurations[0].sharding_spec] == ["y", "x"]


def test_an_unnamed_operator_that_stays_keeps_what_a_pass_wrote_on_it() -> None:
    one = [1.0, 2.0]
    norm = marked("BatchNormalization", ["r", "g", "b", "m", "v"], "y")
    norm.name = ""
    module = irc.load(model_of([marked("Relu", ["x"], "r"), norm], g=one, b=one, m=one, v=one))
    (batch_norm_,) = (node for node in module.graph if node.op == "nn.batch_norm")
    Rewriter(module).set_metadata(batch_norm_, "late", "too")
    irc.passes.default_pipeline()(module)
    _, after = irc.emit(module).model.graph.node
    assert marks(after) == {"namespace": "of/y", "late": "too"}


def test_many_operators_that_become_one_are_noted_in_linear_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = [marked("Exp", ["x"], f"e{i}", **{str(i): "here"}) for i in range(500)]
    model = model_of(
        [*nodes, helper.make_node("Sum", [node.output[0] for node in nodes], ["y"], name="sum")]
    )
    reads = []
    monkeypatch.setattr(
        Node, "messages", lambda node, plain=Node.messages: reads.append(node) or plain(node)
    )
    exp, _ = irc.compile(model, "EliminateCommonSubexpr").model.graph.node
    assert marks(exp) == {"namespace": "of/e0", **{str(i): "here" for i in range(500)}}
    assert len(reads) <= 2


def test_an_operator_that_is_removed_leaves_no_metadata() -> None:
    nodes = [
        marked("Relu", ["x"], "h"),
        marked("Identity", ["h"], "i", only="there"),
        marked("Neg", ["i"], "y"),
    ]
    relu, _ = irc.compile(model_of(nodes)).model.graph.node
    assert marks(relu) == {"namespace": "of/h"}


def test_operators_that_are_one_keep_the_metadata_of_both() -> None:
    nodes = [
        marked("Exp", ["x"], "a", first="1"),
        marked("Exp", ["x"], "b", second="2"),
        marked("Add", ["a", "b"], "y"),
    ]
    exp, _ = irc.compile(model_of(nodes), "EliminateCommonSubexpr").model.graph.node
    assert marks(exp) == {"namespace": "of/a", "first": "1", "second": "2"}


def test_marks_that_a_pass_sets_are_merged_as_those_of_the_file() -> None:
    module = irc.load(dense())
    first, second = (node for node in module.graph if node.op not in ("constant", "return"))
    editor = Rewriter(module)
    editor.set_metadata(first, "namespace", "mine")
    editor.set_metadata(second, "late", "too")
    irc.passes.default_pipeline()(module)
    (gemm,) = irc.emit(module).model.graph.node
    assert marks(gemm) == {"namespace": "mine", "late": "too"}


@pytest.mark.parametrize(
    "names", [("", "", ""), ("same", "same", "same"), ("norm.1", "", "norm.1")]
)
def test_nodes_that_are_made_or_changed_have_names_of_their_own(names: tuple[str, ...]) -> None:
    graph = Graph(dtype=F32)
    data = graph.node("Relu", [graph.input("x", ["N", 2, 4, 4])], "r")
    normed = graph.batch_norm(data, batch_norm(2), "n")
    graph.output(graph.node("MaxPool", [normed], "y", kernel_shape=[2, 2]), [None] * 4)
    model = graph.model()
    for node, name in zip(model.graph.node, names, strict=True):
        node.name = name
    after = irc.compile(model, "SimplifyInference,CanonicalizeOps,SimplifyExpr,FoldConstant").model
    assert_named(model, after)
    assert after.graph.node[0] == model.graph.node[0]
    unfused = irc.compile(dense(), "UnfuseBias,CrossLayerEqualization").model
    assert_named(dense(), unfused)
