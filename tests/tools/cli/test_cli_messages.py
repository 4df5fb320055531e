"""What the command line says of a model: counts, what is absent, and what is odd, from outside."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from harness import EXAMPLE
from irc.tools.cli.main import main
from onnx import ModelProto, helper, parser

IMPORTS = '<ir_version: 8, opset_import: ["" : 17, "acme" : 1]>'


def model_of(body: str, imports: str = IMPORTS) -> ModelProto:
    return parser.parse_model(f"{imports} g {body}")


def with_training_graph() -> ModelProto:
    """Two operators, and three of a training graph."""
    model = model_of(
        "(float[2] x) => (float[2] y) <float[2] w = {1, 2}> { a = Mul(x, w) y = Relu(a) }"
    )
    nodes = [helper.make_node("Neg", [before], [after]) for before, after in ("wa", "ab", "bc")]
    training = model.training_info.add()
    training.algorithm.CopyFrom(helper.make_graph(nodes, "step", [], []))
    training.update_binding.add(key="w", value="c")
    return model


def with_malformed_constant() -> ModelProto:
    model = model_of(
        "(float[2] x) => (float[2] y) { a = Constant <value = float[2] {1, 2}> () y = Add(x, a) }"
    )
    model.graph.node[0].attribute[0].t.dims[:] = [3]
    return model


OF_ANOTHER_DOMAIN = model_of("(float[2] x) => (float[2] y) { a = acme.Constant () y = Add(x, a) }")


@pytest.mark.parametrize(
    ("model", "count"),
    [(with_training_graph(), 2), (with_malformed_constant(), 1), (OF_ANOTHER_DOMAIN, 2)],
)
def test_both_sides_are_counted_the_same_way(
    model: ModelProto, count: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model that no pass changes has the same operators in all three places."""
    path, out = str(tmp_path / "m.onnx"), str(tmp_path / "o.onnx")
    onnx.save(model, path)
    for passes in ("default", "none"):
        assert (
            main(
                ["compile", path, "-o", out, "--passes", passes, "--json", str(tmp_path / "j.json")]
            )
            == 0
        )
        assert f"{count} -> {count} operators; " in capsys.readouterr().err
        assert json.loads((tmp_path / "j.json").read_text())["operators"] == [count, count]
    assert main(["inspect", path]) == 0
    assert f"\noperators: {count} (" in capsys.readouterr().out


NORM = "BatchNormalization (a, s, s, s, s)"
TENSORS = "<float[2,2,1,1] w = {1, 2, 3, 4}, float[2] b = {1, 2}, float[2] s = {1, 1}>"
IMAGE = "float[1,2,4,4]"

IN_FUNCTION = model_of(
    f"""({IMAGE} x) => ({IMAGE} y) {TENSORS} {{ a = Conv (x, w, b) y = acme.Norm (a, s) }}
    <domain: "acme", opset_import: ["" : 17]> Norm (a, s) => (y) {{ [inner] y = {NORM} }}"""
)
IN_BRANCH = model_of(f"""({IMAGE} x, bool c) => ({IMAGE} y) {TENSORS} {{
    a = Conv (x, w, b)
    y = If (c) <then_branch = t () => ({IMAGE} p) {{ [inner] p = {NORM} }},
                else_branch = e () => ({IMAGE} q) {{ q = Identity (a) }}> }}""")


@pytest.mark.parametrize("model", [IN_FUNCTION, IN_BRANCH], ids=["function", "branch"])
def test_what_stands_in_a_body_is_not_called_absent(
    model: ModelProto, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "m.onnx")
    onnx.save(model, path)
    assert (
        main(f"compile {path} -o {tmp_path / 'o.onnx'} --fold-map {tmp_path / 'm.json'}".split())
        == 0
    )
    assert main(["inspect", path]) == 0
    assert "no BatchNormalization" not in "".join(capsys.readouterr())
    assert main(["foldmap", "recover", path, "--from", path, "-o", str(tmp_path / "r.json")]) == 1
    expected = (
        "no BatchNormalization is right behind a layer of constant weights in the main graph"
        " ('inner' is not)"
    )
    assert capsys.readouterr().err == f"irc: {path}: {expected}\n"
    assert main(["align", path, path, "--by", "sqnr"]) == 2
    assert "no operator of the main graph is" in capsys.readouterr().err


def test_operators_in_bodies_need_an_opset_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The If is of another domain; the function imports no opset, and the model does."""
    in_branch = model_of(
        "(float[2] x) => (float[2] y) { y = acme.If (x) <then_branch = t () => (float[2] p) { p ="
        " Abs (x) }> }",
        '<ir_version: 8, opset_import: ["acme" : 1]>',
    )
    in_function = model_of("""(float[2] x) => (float[2] y) { y = acme.F (x) }
        <domain: "acme", opset_import: ["acme" : 1]> F (x) => (y) { y = Abs (x) }""")
    for model, owner in ((in_branch, "the model"), (in_function, "function 'F'")):
        onnx.save(model, tmp_path / "m.onnx")
        assert main(["compile", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "o.onnx")]) == 0
        assert (
            f"warning: {owner} imports no opset of ONNX, so its operators are"
            in capsys.readouterr().err
        )


HIDING = """(float[2] x, bool c) => (float[2] y) <float[2] w = {1, 2}> {
    a = Relu (x)
    y = If (c) <then_branch = t () => (float[2] p) { [inner] a = Neg (x) p = Abs (a) },
                else_branch = e () => (float[2] q) <float[2] w = {3, 4}> { b = Add (a, w) q = Abs (b) }> }"""
SHADOWED = "rename the values inside: node 'inner' (Neg) defines 'a'; graph 'e' defines 'w'"
IN_BODY_OF_FUNCTION = """(float[2] x) => (float[2] y) { y = acme.F (x) }
    <domain: "acme", opset_import: ["" : 17]> F (x) => (y) { [inner] y = Gelu (x) }"""
ML = '<ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 3]>'


@pytest.mark.parametrize(
    ("body", "imports", "warning"),
    [
        (HIDING, IMPORTS, SHADOWED),
        (
            "(float[2] x) => () { a = Relu (x) }",
            IMPORTS,
            "the model has no outputs, so it computes nothing",
        ),
        (
            "(float[2] x) => (float[2] y) { [mine] a = Reluu (x) y = Reluu (a) }",
            IMPORTS,
            "Reluu 'mine' is left as it is: ONNX has no operator 'Reluu'; did you mean Relu?",
        ),
        (
            "(float[2] x) => (float[2] y) { y = Gelu (x) }",
            IMPORTS,
            (
                "Gelu 'y' is left as it is: opset 17 of ONNX, which the model imports, has no Gelu:"
                " ONNX has it from opset 20 on; import an opset that has it, or name the domain"
                " that the operator belongs to"
            ),
        ),
        (
            IN_BODY_OF_FUNCTION,
            IMPORTS,
            (
                "Gelu 'inner' is left as it is: opset 17 of ONNX, which function 'F' imports, has"
                " no Gelu: "
            ),
        ),
        (
            "(float[2] x, int64[2] i) => (float[2] y) { y = Scatter (x, i, x) }",
            IMPORTS,
            "has no Scatter: ONNX has it in older opsets only",
        ),
        (
            "(float[2] x) => (float[2] y) { y = ai.onnx.ml.Scalar (x) }",
            ML,
            (
                "Scalar 'y' is left as it is: ai.onnx.ml has no operator 'Scalar'; did you mean"
                " Scaler?"
            ),
        ),
        (
            "(float[2] x) => (float[2] y) { y = other.Foo (x) }",
            IMPORTS,
            (
                "Foo 'y' is left as it is: the model does not import its domain 'other': add it to"
                " opset_import"
            ),
        ),
        ("(float[2] x) => (float[2] y) { a = acme.Foo (x) y = Identity (a) }", IMPORTS, None),
        (  # an operator of another domain may say how the inputs of its bodies are called
            (
                "(float[2] x) => (float[2] y) {"
                "y = acme.Search (x) <body = b (float[2] x) => (float[2] p) { p = Abs (x) }> }"
            ),
            IMPORTS,
            None,
        ),
        (
            "(float[2] x) => (float[2] y) { y = Gelu (x) }",
            IMPORTS.replace("17", "99"),
            "opset 99, newer than the",
        ),
    ],
)
def test_what_onnx_forbids_is_one_warning(
    body: str, imports: str, warning: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With node and name.

    A second compile says the same, but of names, which the first one has made unique.
    """
    first, second = str(tmp_path / "m.onnx"), str(tmp_path / "o.onnx")
    onnx.save(model_of(body, imports), first)
    for path, out in ((first, second), (second, str(tmp_path / "p.onnx"))):
        assert main(["compile", path, "-o", out]) == 0
        found = [
            line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")
        ]
        if path == second and warning == SHADOWED:
            warning = None
        assert len(found) == (warning is not None)
        assert warning is None or warning in found[0]


def with_tensor(tensor: onnx.TensorProto) -> ModelProto:
    node = helper.make_node("Identity", [tensor.name], ["y"])
    result = helper.make_tensor_value_info("y", tensor.data_type, None)
    return helper.make_model(helper.make_graph([node], "g", [], [result], [tensor]), ir_version=8)


@pytest.mark.parametrize(
    ("tensor", "sentence"),
    [
        ({"raw_data": bytes(576)}, "has 576 bytes, and its shape and type ask for 252"),
        ({"float_data": [0.0] * 9}, "has 9 numbers, and its shape asks for 63"),
        (
            {"data_type": onnx.TensorProto.STRING, "string_data": [b"a"]},
            "has 1 strings, and its shape asks for 63",
        ),
        (
            {"dims": [-1, 2], "raw_data": bytes(8)},
            "has the shape [-1, 2], which no tensor can have",
        ),
    ],
)
def test_sizes_that_disagree_are_both_named(
    tensor: dict[str, object], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fields: dict[str, object] = {
        "name": "w",
        "data_type": onnx.TensorProto.FLOAT,
        "dims": [7, 9],
        **tensor,
    }
    onnx.save(with_tensor(onnx.TensorProto(**fields)), tmp_path / "m.onnx")
    assert main(["compile", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "o.onnx")]) == 0
    assert f"warning: the tensor 'w' {sentence}: it is kept as it is\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("length", "sentence"),
    [
        (12, ": the tensor has 12 bytes, and its shape [7, 9] and type ask for 252"),
        (600, " has 576 bytes, and the tensor asks for 600 from 0 on"),
    ],
)
def test_sizes_in_other_files_that_disagree_are_both_named(
    length: int, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tensor = onnx.TensorProto(name="w", data_type=onnx.TensorProto.FLOAT, dims=[7, 9])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", "w.bin"), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)
    (tmp_path / "w.bin").write_bytes(bytes(576))
    path = tmp_path / "m.onnx"
    path.write_bytes(with_tensor(tensor).SerializeToString())
    assert main(["compile", str(path), "-o", str(tmp_path / "o.onnx")]) == 1
    assert capsys.readouterr().err == f"irc: {path}: tensor 'w': external data 'w.bin'{sentence}\n"


DECLARED = """(float[N,3] x, int64[2] s) =>
    (float[N,3] same, float[A,3] free, float[7,3] wrong, float[4] given, float[M,B] two, float[2,N] tied) {
    same = Relu (x) free = Neg (x) wrong = Abs (x)
    given = Reshape (x, s) two = Reshape (x, s) tied = Reshape (x, s) }"""


def test_inspect_shows_what_the_file_declares_for_outputs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "m.onnx")
    model = model_of(DECLARED)
    model.graph.output.add(name="bare").CopyFrom(onnx.ValueInfoProto(name="same"))
    model.graph.output[-1].name = "bare"
    model.graph.node.append(helper.make_node("Relu", ["x"], ["bare"]))
    onnx.save(model, path)
    assert main(["inspect", path, "--json", str(tmp_path / "j.json")]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("output ")]
    assert lines == [
        "output same: f32[N,3]",
        "output free: f32[A,3] (inferred: f32[N,3])",
        "output wrong: f32[7,3] (declared; inference contradicts it: f32[N,3])",
        "output given: f32[4] (declared; inference contradicts it: f32[?,?])",
        "output two: f32[M,B] (inferred: f32[?,?])",
        "output tied: f32[2,N] (declared; inference does not confirm it: f32[?,?])",
        "output bare: f32[N,3]",
    ]
    found = json.loads((tmp_path / "j.json").read_text())["outputs"]
    assert [each["status"] for each in found] == [
        "confirmed", "confirmed", "contradicted", "contradicted", "confirmed", "unconfirmed", "undeclared",
    ]  # fmt: skip
    assert [each["declared"] for each in found[-2:]] == ["f32[2,N]", None]
    assert main(["dump", path, "-o", str(tmp_path / "m.irc")]) == 0
    assert main(["inspect", str(tmp_path / "m.irc")]) == 0
    assert "output wrong: f32[N,3]\n" in capsys.readouterr().out


def test_layers_in_bodies_stay_float_and_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = f"""({IMAGE} x, bool c) => ({IMAGE} y) {TENSORS} {{
        y = If (c) <then_branch = t () => ({IMAGE} p) {{ [inner] p = Conv (x, w, b) }},
                    else_branch = e () => ({IMAGE} q) {{ q = Identity (x) }}> }}"""
    onnx.save(model_of(body), tmp_path / "m.onnx")
    words = f"quantize {tmp_path / 'm.onnx'} -o {tmp_path / 'q.onnx'} --input-range x=-1:1".split()
    assert main(words) == 0
    out = "".join(capsys.readouterr())
    assert "layers: 0 static, 0 dynamic, 1 float; " in out
    assert "left float: Conv 'inner': onnxruntime quantizes no bodies\n" in out


def test_a_missing_certificate_is_named_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "nope.json"
    assert main(["certify", str(EXAMPLE), str(EXAMPLE), str(path)]) == 1
    assert capsys.readouterr().err.startswith(f"irc: {path}: cannot be read: ")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [("nope.npz", "there is no such file"), ("bad.npz", "no inputs can be read from it: ")],
)
@pytest.mark.parametrize("command", ["verify", "align"])
def test_a_bad_file_of_inputs_is_named_without_a_model(
    command: str, name: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.npz").write_bytes(b"no archive")
    path = tmp_path / name
    assert main([command, str(EXAMPLE), str(EXAMPLE), "--inputs", str(path)]) == 1
    assert capsys.readouterr().err.startswith(f"irc: {path}: {sentence}")


def test_an_affine_without_effect_is_said_to_be_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.onnx"
    body = "(float[2] x) => (float[2] y) <float[2] z = {0, 0}> { a = Add(x, z) y = Relu(a) }"
    onnx.save(model_of(body), path)
    assert main(["compile", str(path), str(tmp_path / "o.onnx"), "--explain"]) == 0
    assert "Add 'a': removed: it has no effect; dropped by" in capsys.readouterr().out
