"""`irc quantize --data folder/ --preprocess ...`: pictures, sounds and arrays as data."""

from __future__ import annotations

import sys
import wave
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from graphs import Graph
from harness import run
from irc.support.errors import UsageError, VerifyError
from irc.support.preprocessing import PRESETS
from irc.tools.cli.main import main
from irc.tools.int8.media import read_picture, read_sound
from irc.tools.int8.samples import read_samples
from onnx import ModelProto
from PIL import Image

Array = np.ndarray[Any, Any]


def net(*shape: int | str, dtype: type = np.float32) -> ModelProto:
    g = Graph(opset=17, ir=8)
    g.node("Identity", [g.input("x", shape, np.dtype(dtype))], "y")
    g.output("y", None, np.dtype(dtype))
    return g.model()


def picture(path: Path, height: int, width: int, mode: str = "RGB", seed: int = 0) -> Array:
    channels = {"L": 1, "RGB": 3, "RGBA": 4}[mode]
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, channels))
    pixels = pixels.astype(np.uint8)
    Image.fromarray(pixels.squeeze() if channels == 1 else pixels, mode).save(path)
    return pixels


def only(model: ModelProto, data: Path, preprocess: str | list[str] = ()) -> Array:  # type: ignore[assignment]
    (batch,) = read_samples(data, model, preprocess)
    return np.asarray(batch["x"])


def test_pixels_become_what_the_words_say(tmp_path: Path) -> None:
    pixels = picture(tmp_path / "a.png", 5, 4).astype(np.float64)
    mean, std = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    expected = ((pixels / 255 - mean) / std).transpose(2, 0, 1)[None].astype(np.float32)
    words = "scale=1/255,mean=.485:.456:.406,std=.229:.224:.225"
    assert (only(net("N", 3, 5, 4), tmp_path, words) == expected).all()
    assert (only(net("N", 5, 4, 3), tmp_path, words) == expected.transpose(0, 2, 3, 1)).all()
    assert (only(net(3, 5, 4), tmp_path, f"chw,{words}") == expected[0]).all()
    caffe = pixels[..., ::-1] - [103.939, 116.779, 123.68]
    found = only(net("N", 3, "H", "W"), tmp_path / "a.png", "x:caffe")
    assert (found == caffe.transpose(2, 0, 1)[None].astype(np.float32)).all()
    found = only(net("N", 3, 5, 4), tmp_path, "tf")
    assert np.abs(found - (pixels / 127.5 - 1).transpose(2, 0, 1)[None]).max() <= 2.0**-23


def test_sizes_are_those_of_torchvision(tmp_path: Path) -> None:
    for name, height, width in (("a.png", 40, 61), ("b.jpg", 61, 40), ("c.jpeg", 300, 200)):
        picture(tmp_path / name, height, width)
        short = min(height, width)
        scaled = (height * 32 // short, width * 32 // short)
        found = read_picture(tmp_path / name, 3, (32,), (24,))
        with Image.open(tmp_path / name) as opened:
            resized = opened.resize(scaled[::-1], Image.Resampling.BILINEAR)
        top, left = (round((extent - 24) / 2) for extent in scaled)
        assert (found == np.asarray(resized)[top : top + 24, left : left + 24]).all()
    (batch,) = read_samples(tmp_path, net("N", 3, 24, 24), "resize=32,crop=24,scale=1/255")
    assert batch["x"].shape == (3, 3, 24, 24), "pictures of one size are one batch"
    assert only(net("N", 3, 20, 30), tmp_path / "a.png", "scale=2").shape == (1, 3, 20, 30)
    assert only(net("N", 3, "H", "W"), tmp_path / "a.png", "resize=20x30").shape == (1, 3, 20, 30)
    assert only(net("N", 1, "H", "W"), tmp_path / "a.png", "scale=1/2").shape == (1, 1, 40, 61)


def test_arrays_are_preprocessed_too(tmp_path: Path) -> None:
    pixels = np.arange(24, dtype=np.uint8).reshape(1, 2, 4, 3)
    np.save(tmp_path / "a.npy", pixels)
    np.savez(tmp_path / "b.npz", x=pixels + 1)
    (batch,) = read_samples(tmp_path, net("N", 3, 2, 4), "uint8,nhwc,bgr,scale=1/2,mean=1:2:3")
    expected = [
        (each[..., ::-1].transpose(0, 3, 1, 2) / 2 - np.reshape([1, 2, 3], (3, 1, 1)))
        for each in (pixels, pixels + 1)
    ]
    assert (batch["x"] == np.concatenate(expected)).all()
    assert batch["x"].dtype == np.float32
    given = read_samples({"x": pixels}, net("N", 3, 2, 4), "nhwc")
    assert (given[0]["x"] == pixels.transpose(0, 3, 1, 2)).all()


def sound(path: Path, width: int, frames: Array) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(frames.shape[1])
        file.setsampwidth(width)
        file.setframerate(16000)
        offset = 128 if width == 1 else 0
        numbers = (frames.reshape(-1) + offset).astype("<i4").view(np.uint8).reshape(-1, 4)
        file.writeframes(numbers[:, :width].tobytes())


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_sounds_are_between_minus_one_and_one(width: int, tmp_path: Path) -> None:
    top = 2 ** (8 * width - 1)
    frames = np.array([[0, -top], [top - 1, 1], [-1, top // 2]])
    sound(tmp_path / "a.wav", width, frames)
    assert (read_sound(tmp_path / "a.wav") == frames.T / top).all()


def test_sounds_get_the_length_of_the_input(tmp_path: Path) -> None:
    frames = np.array([[100], [-200], [300]])
    sound(tmp_path / "a.wav", 2, frames)
    whole = (frames.T / 2**15).astype(np.float32)
    assert (only(net("N", "T"), tmp_path) == whole).all()
    assert (only(net("N", 1, 2), tmp_path) == whole[None, :, :2]).all()
    assert (only(net(1, 5), tmp_path) == np.pad(whole, ((0, 0), (0, 2)))).all()
    assert (only(net("N", "T"), tmp_path, "scale=32768") == frames.T).all()
    with pytest.raises(VerifyError, match="1 channels, and the input 'x' 2"):
        read_samples(tmp_path, net("N", 2, "T"))
    with pytest.raises(VerifyError, match="sounds are floats"):
        read_samples(tmp_path, net("N", "T", dtype=np.int32))


def test_what_does_not_fit_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture(tmp_path / "a.png", 5, 4)
    model = net("N", 3, 5, 5)
    for words, error, reason in (
        ("", UsageError, "a picture needs --preprocess"),
        ("crop=6", VerifyError, "the picture is 5 x 4, and crop is 6 x 6: write resize=6"),
        ("crop=4", VerifyError, "the picture is 4 x 4, and the model takes 5 x 5: write crop=5"),
        ("mean=1:2", UsageError, "has 3 channels, and there are numbers for 2"),
        ("y:scale=2", UsageError, "no input 'y'"),
    ):
        with pytest.raises(error, match=reason):
            read_samples(tmp_path, model, [words] if words else [])
    with pytest.raises(VerifyError, match="is not one for pictures"):
        read_samples(tmp_path, net("N", 3), "scale=2")
    with pytest.raises(UsageError, match=r"uint8 in the model, which cannot hold \(x"):
        read_samples(tmp_path, net("N", 3, 5, 4, dtype=np.uint8), "scale=1/255")
    (tmp_path / "b.png").write_bytes((tmp_path / "a.png").read_bytes()[:60])
    with pytest.raises(VerifyError, match=r"b\.png: no picture can be read"):
        read_samples(tmp_path, model, "scale=2")
    (tmp_path / "c.wav").write_bytes(b"RIFF")
    with pytest.raises(VerifyError, match=r"c\.wav: no sound can be read"):
        read_samples(tmp_path / "c.wav", net("N", "T"))
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(UsageError, match=r"irc-compiler\[pictures\]"):
        read_samples(tmp_path, model, "scale=2")


def test_integers_of_pictures_need_no_numbers(tmp_path: Path) -> None:
    pixels = picture(tmp_path / "a.png", 5, 4, "RGBA")
    found = only(net("N", 3, 5, 4, dtype=np.uint8), tmp_path, "rgb")
    assert (found == pixels[..., :3].transpose(2, 0, 1)).all()


def test_quantize_takes_a_folder_of_pictures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    g = Graph(opset=17, ir=8)
    x = g.input("x", ["N", 3, 16, 16])
    x = g.node("Conv", [x, g.initializer(g.random(4, 3, 3, 3), "w")], "c", name="c")
    g.node("Relu", [x], "y")
    g.output("y", None)
    path, out, folder = tmp_path / "m.onnx", tmp_path / "q.onnx", tmp_path / "data"
    onnx.save(g.model(), path)
    folder.mkdir()
    for seed in range(6):
        picture(folder / f"{seed}.png", 20, 24, seed=seed)
    command = ["quantize", str(path), "-o", str(out), "--data", str(folder), "--no-time"]
    assert main([*command, "--preprocess", "torchvision,resize=18,crop=16"]) == 0
    assert "held out of the calibration" in capsys.readouterr().err
    (info,) = onnx.load(out).graph.input
    assert info.type.tensor_type.elem_type == onnx.TensorProto.FLOAT, "the model is not changed"
    run(onnx.load(out), {"x": np.zeros((1, 3, 16, 16), np.float32)})
    assert main(command) == 2
    assert "a picture needs --preprocess" in capsys.readouterr().err
    assert main([*command[:4], "--input-range", "x=0:1", "--preprocess", "tf"]) == 2
    assert "--preprocess changes data" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["compile", "quantize"])
def test_help_has_the_numbers_of_the_presets(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    text = "".join(capsys.readouterr().out.split())
    for name, words in PRESETS.items():
        numbers = ",".join(each for each in words.split(",") if "=" not in each or each[0] in "sm")
        assert f"{name}({numbers})" in text
