"""`irc unfold` and `irc foldmap`, from outside."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from graphs import conv_bn
from harness import EXAMPLE
from irc.backends.quantizers.export import EXPORTERS
from irc.tools.cli.foldmap import FORMS
from irc.tools.cli.main import main


@pytest.fixture
def compiled(tmp_path: Path) -> tuple[str, str]:
    """The example and its fold map, as files."""
    output, fold_map = str(tmp_path / "out.onnx"), str(tmp_path / "map.json")
    assert main(["compile", str(EXAMPLE), "-o", output, "--fold-map", fold_map, "-q"]) == 0
    return output, fold_map


@pytest.fixture
def other(tmp_path: Path) -> str:
    """Another model."""
    graph, *_ = conv_bn()
    graph.output("y")
    onnx.save(graph.model(), tmp_path / "other.onnx")
    return str(tmp_path / "other.onnx")


def test_unfold_gives_the_file_back(compiled: tuple[str, str], tmp_path: Path) -> None:
    assert main(["unfold", *compiled, "-o", str(tmp_path / "back.onnx")]) == 0
    assert (tmp_path / "back.onnx").read_bytes() == EXAMPLE.read_bytes()


def test_unfold_from_the_model_alone(tmp_path: Path) -> None:
    output, back = str(tmp_path / "out.onnx"), tmp_path / "back.onnx"
    assert main(["compile", str(EXAMPLE), "-o", output, "--embed-fold-map", "-q"]) == 0
    assert main(["unfold", output, output, "-o", str(back)]) == 0
    assert back.read_bytes() == EXAMPLE.read_bytes()


def test_unfold_refuses_another_model(
    compiled: tuple[str, str], other: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["unfold", other, compiled[1], "-o", str(tmp_path / "back.onnx")]) == 1
    message = (
        f"irc: {other}: the fold map belongs to another model, or the model was changed since\n"
    )
    assert capsys.readouterr().err == message
    assert not (tmp_path / "back.onnx").exists()


def test_show_prints_affines_and_layers(
    compiled: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["foldmap", "show", compiled[1]]) == 0
    text = capsys.readouterr().out
    passes = json.loads(Path(compiled[1]).read_text())["producer"]["passes"]
    for words in (
        f"\npasses: {','.join(passes)}\nscales and shifts: 8 folded",
        "folded into stem/conv",
        "A45 backward",
        "stem/conv.bias (new)",
        "0.8239",
    ):
        assert words in text


def test_show_says_why_affines_stay_and_what_else_is_known(
    tmp_path: Path, other: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fold_map, output = str(tmp_path / "map.json"), str(tmp_path / "out.onnx")
    assert (
        main(["compile", other, "-o", output, "--passes", "none", "--fold-map", fold_map, "-q"])
        == 0
    )
    assert main(["foldmap", "show", fold_map]) == 0
    text = capsys.readouterr().out
    assert "kept (not_attempted): no pass that could fold it was run" in text
    assert "Statistics of other tensors" in text


def test_check_tells_what_is_stale(
    compiled: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, fold_map = compiled
    assert main(["foldmap", "check", output, fold_map]) == 0
    assert capsys.readouterr().out == f"{fold_map} is the fold map of {output}\n"
    model = onnx.load(output)
    weight = next(tensor for tensor in model.graph.initializer if tensor.name == "stem/conv.weight")
    weight.raw_data = weight.raw_data[::-1]
    onnx.save(model, tmp_path / "changed.onnx")
    assert main(["foldmap", "check", str(tmp_path / "changed.onnx"), fold_map]) == 1
    found = capsys.readouterr()
    assert found.out == "1 layer missing, or weight or bias were changed: stem/conv\n"
    assert "belongs to another model, or it was changed since" in found.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["unfold", "{model}", "missing.json", "-o", "x"],
            "missing.json: cannot be read: No such file or directory",
        ),
        (["unfold", "missing.onnx", "{map}", "-o", "x"], "missing.onnx: there is no such file"),
        (["foldmap", "show", "{model}"], "out.onnx: the model holds no fold map"),
        (
            ["compile", "{model}", "-o", "x", "--fold-map", "m.npz"],
            "m.npz: the fold map's arrays go to this file",
        ),
        (
            ["compile", "{model}", "-o", "m.npz", "--fold-map", "m.json"],
            "m.npz: two outputs cannot be one file",
        ),
    ],
)
def test_one_sentence_for_what_cannot_be(
    arguments: list[str],
    message: str,
    compiled: tuple[str, str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    model, fold_map = compiled
    status = main([argument.format(model=model, map=fold_map) for argument in arguments])
    error = capsys.readouterr().err
    assert status == (2 if arguments[0] == "compile" else 1)
    assert message in error
    assert error.count("\n") == 1


def test_arguments_that_are_missing_are_usage(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["foldmap"], ["unfold", "a", "b"]):
        with pytest.raises(SystemExit) as status:
            main(arguments)
        assert status.value.code == 2
    capsys.readouterr()


def test_the_command_has_all_forms() -> None:
    assert set(FORMS) == set(EXPORTERS)


PASSES = "default,CrossLayerEqualization,HighBiasAbsorption,BiasCorrection,FoldConstant"


@pytest.mark.parametrize("form", FORMS)
def test_export_writes_what_a_quantizer_takes(
    form: str, compiled: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out.json"
    command = [
        "foldmap",
        "export",
        *compiled,
        "--to",
        form,
        "-o",
        str(output),
        "--input-range",
        "image=0:1",
    ]
    assert main(command) == 0
    text = output.read_text()
    assert ("depthwise/conv" if form == "aimet" else "stem/bn") in text
    if form == "tensorrt":
        assert text.startswith("TRT-8501-EntropyCalibration2\n")
    else:
        json.loads(text)


def test_export_says_what_is_missing(
    compiled: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["foldmap", "export", *compiled, "--to", "ort-calibration", "-o", "-"]) == 2
    assert (
        "give the range of input 'image': --input-range image=LOW:HIGH" in capsys.readouterr().err
    )
    assert main(["foldmap", "export", *compiled, "--to", "nncf", "-o", "-"]) == 0
    assert "warning: nothing is written for image" in capsys.readouterr().err


def test_export_says_where_ranges_come_from_and_which_are_guesses(
    compiled: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["foldmap", "export", *compiled, "-o", "-", "--input-range", "image=0:1"]
    assert main([*command, "--to", "ranges"]) == 0
    written = capsys.readouterr()
    document = json.loads(written.out)
    guessed = [name for name, found in document.items() if found["origin"] == "propagated"]
    assert {found["origin"] for found in document.values()} == {
        "given",
        "statistic",
        "propagated",
        "bound",
    }
    assert (
        "guesses; if you know better, give --range NAME=LOW:HIGH: " + ", ".join(guessed)
        in written.err
    )
    assert (
        main(
            [
                *command,
                "--to",
                "nncf",
                *[text for name in guessed for text in ("--range", f"{name}=-9:9")],
            ]
        )
        == 0
    )
    written = capsys.readouterr()
    assert "guess" not in written.err
    assert {json.loads(written.out)[name]["origin"] for name in guessed} == {"given"}


def test_a_range_that_is_none_is_usage(
    compiled: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["foldmap", "export", *compiled, "--to", "nncf", "-o", "-", "--range"]
    for text in ("x", "x=1", "x=b:c", "image=2:1", "nowhere=0:1"):
        assert main([*command, text]) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_equalized_models_have_a_history_and_come_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, fold_map, back = (
        str(tmp_path / name) for name in ("out.onnx", "map.json", "back.onnx")
    )
    assert (
        main(f"compile {EXAMPLE} -o {output} --fold-map {fold_map} --passes {PASSES} -q".split())
        == 0
    )
    data = json.loads(Path(fold_map).read_text())
    assert [entry["pass"] for entry in data["history"]] == [
        "CrossLayerEqualization",
        "BiasCorrection",
    ]
    assert {key for entry in data["history"] for layer in entry["layers"].values() for key in layer} >= {
        "rescale_out", "rescale_in", "correction",
    }  # fmt: skip
    assert main(["foldmap", "check", output, fold_map]) == 0
    assert main(["unfold", output, fold_map, "-o", back]) == 0
    assert Path(back).read_bytes() == EXAMPLE.read_bytes()
