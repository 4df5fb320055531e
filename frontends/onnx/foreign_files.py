"""Files that are not ONNX models: the name of their format, and the way from there to ONNX."""

from __future__ import annotations

import zipfile
from pathlib import Path

HEAD = 4096
"""Bytes at the beginning of a file that tell its format."""

EXPORT = (
    "export it with torch.onnx.export, or compile it in Python: irc.compile(model.eval(),"
    " args=(x,))"
)

_LEADING = (
    (
        b"version https://git-lfs.github.com/spec/",
        "a Git LFS pointer, not the model: run `git lfs pull` beside it",
    ),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file, as Keras writes: convert the Keras model with tf2onnx"),
    (b"\x93NUMPY", "a numpy array, not a model"),
    (b"\x1f\x8b", "a gzip archive: unpack it first"),
    (b"\xfd7zXZ\x00", "an xz archive: unpack it first"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive: unpack it first"),
)
"""Formats by their first bytes."""

_FLATBUFFERS = {
    b"TFL3": (
        "a TensorFlow Lite model: `python -m tf2onnx.convert --tflite {path} --output MODEL.onnx`"
        " converts it"
    ),
    b"ORTM": (
        "onnxruntime's own format (.ort), which has no way back: compile the ONNX file that it was"
        " made from"
    ),
}
"""Formats by the identifier in bytes 4 to 7."""


def describe_file(head: bytes, path: str | Path) -> str | None:
    """Return a phrase for a file that is known not to be ONNX, or None.

    `head` are its first bytes.
    """
    for leading, found in _LEADING:
        if head.startswith(leading):
            return found
    if (found_flat := _FLATBUFFERS.get(head[4:8])) is not None:
        return found_flat.format(path=path)
    if head.startswith(b"PK\x03\x04"):
        return _describe_zip(path)
    if head[:1] == b"\x80" and b"\x02" <= head[1:2] <= b"\x05":
        return (
            "a pickle, as old versions of torch.save write: load the module with torch, then"
            f" {EXPORT}"
        )
    if head[8:10] == b'{"' and int.from_bytes(head[:8], "little") < 1 << 32:
        return (
            f"safetensors, weights without a graph: load them into the torch module, then {EXPORT}"
        )
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith((b"<!doctype html", b"<html")):
        return (
            "an HTML page, not the model: download the file itself (GitHub: `Raw`, Hugging Face:"
            " `resolve`)"
        )
    if text.startswith(b"<?xml") and b"<net" in text:
        return (
            "an OpenVINO model, which has no way back: compile the ONNX file that it was made from"
        )
    if text.startswith(b"{") and b'"irc.fold_map"' in text:
        return "a fold map: `irc foldmap show` prints it"
    if Path(path).name == "saved_model.pb":
        return describe_folder(Path(path).parent)
    return None


def describe_folder(path: Path) -> str | None:
    """Return a phrase for a folder that is a model of another format, or None."""
    if (path / "saved_model.pb").is_file():
        return (
            f"a TensorFlow SavedModel: `python -m tf2onnx.convert --saved-model {path} --output"
            " MODEL.onnx` converts it"
        )
    if (path / "Manifest.json").is_file() and path.suffix == ".mlpackage":
        return "a Core ML package, which has no way back: compile the ONNX file of the same network"
    return None


def _describe_zip(path: str | Path) -> str:
    """Return a phrase for a zip archive by the names in it."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = {name.split("/", 1)[-1] for name in archive.namelist()}
    except (OSError, ValueError, NotImplementedError, zipfile.BadZipFile):
        names = set()
    # the names in archives of torch, newer versions first
    has_programs = any(name.startswith("models/") and name.endswith(".json") for name in names)
    if has_programs or "serialized_exported_program.json" in names:
        return "a torch ExportedProgram: give it a name that ends with .pt2"
    if "constants.pkl" in names:
        return (
            "a TorchScript program: load it with torch.jit.load, then torch.onnx.export(...,"
            " dynamo=False)"
        )
    if "data.pkl" in names:
        return (
            f"a file of torch.save, which has no graph: load the module with torch, then {EXPORT}"
        )
    if names and all(name.endswith(".npy") for name in names):
        return "a numpy archive (.npz), not a model"
    if "model.weights.h5" in names:
        return "a Keras model: convert it with tf2onnx"
    return "a zip archive: unpack it first"
