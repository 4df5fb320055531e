"""What is run on a mutated file or a random model, and what may come of it.

The right result, or one clear error.

A target makes its case from a generator, writes its files, and runs them in a `Box`. It returns
what came of it; anything that it raises is a finding.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import io
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from math import prod
from pathlib import Path
from random import Random
from typing import Any

import computed_shapes
import graphs
import harness
import irc
import irc.tools.cli.main
import numpy as np
import onnx
import oracle
import pytest
from exporter_graphs import export
from graphs import F32
from irc.backends.foldmap.fold_map import FoldMap
from irc.backends.foldmap.inverse import check, unfold
from irc.backends.foldmap.show import explain, show
from irc.backends.quantizers.export import EXPORTERS
from irc.frontends import load
from irc.frontends.onnx import read_model
from irc.ir.verifier import verify
from irc.passes import PassContext, Verify, parse_pipeline
from irc.support.errors import EmitError, IRError, SourceError, VerifyError
from irc.support.limits import Limits
from irc.tools.cli.main import main
from onnx import ModelProto
from random_graphs import grow, with_functions, without_overloads
from rich.console import Console
from verification import deviation, is_loaded
from xxhash import xxh3_128_hexdigest

from . import corpus
from .mutate import mutate_bytes, mutate_document, mutate_model, mutate_text
from .proofs import forged

PASSES = (
    *(
        "default",
        "default",
        "default",
        "none",
        "InlineFunctions,default",
        "EliminateCommonSubexpr,default",
    ),
    *(
        "default,DeadCodeElimination",
        "UnfuseBias",
        "MergeBranches,MergeLayers",
        "FreezeInitializers,default",
        "default,UnfuseBias,default",
        "default,BatchNormToConv",
        "default,ScaleByPowersOfTwo{exponent=-5}",
        "ScaleByPowersOfTwo{exponent=9},ConvertToFloat16",
    ),
    *(
        "CrossLayerEqualization,default",
        "default,HighBiasAbsorption,BiasCorrection",
        "SimplifyExpr",
        "FoldConstant",
    ),
    *(
        "CrossLayerEqualization,HighBiasAbsorption,BiasCorrection",
        "FoldConstant{max_bytes=1000000}",
    ),
)


class Finding(Exception):
    """Something that must not be, with what it is."""


class RuntimeOnly(Exception):
    """What failed is the runtime on the source model itself."""


@dataclass
class Box:
    """One execution: its generator, its folder, and `phase`, which the watcher reads."""

    rng: Random
    folder: Path
    phase: Callable[[str], None] = lambda name: None
    size: int = 0
    keep: dict[str, bytes] = field(default_factory=dict)

    def write(self, name: str, content: bytes) -> Path:
        path = self.folder / name
        path.write_bytes(content)
        self.size += len(content)
        self.keep[name] = content
        return path


def internal(error: IRError) -> bool:
    """Whether an error only wraps another one that nobody foresaw."""
    cause = error.__cause__
    return cause is not None and not isinstance(cause, IRError)


@contextlib.contextmanager
def refusals() -> Iterator[list[str]]:
    """Errors of irc are outcomes, if they are sentences and not wrapped accidents."""
    outcome: list[str] = []
    try:
        yield outcome
    except IRError as error:
        if internal(error):
            raise
        text = str(error)
        if not text.strip() or "Traceback" in text or len(text) > 4000:
            raise Finding(f"this is no clear error: {text[:500]!r}") from error
        outcome.append("refused")


def pick(rng: Random, items: Any) -> Any:
    return items[rng.randrange(len(items))]


def importer(box: Box) -> str:
    """Read, write unchanged, compile, and sometimes compare the numbers."""
    rng = box.rng
    runs = rng.random() < 0.5  # a model that computes something
    data, other = (
        pick(rng, corpus.foldable() if runs else corpus.models()),
        pick(rng, corpus.models()),
    )
    path = box.write("model.onnx", mutate_model(data, rng, other))
    surroundings(box)
    with refusals() as outcome:
        module = load(path, Limits(isolate=True))  # as the command line does
        box.phase("identity")
        source = ModelProto.FromString(path.read_bytes())
        if module.source != source:
            raise Finding("the importer changed the source")
        emitted = irc.emit(module).model
        if emitted.SerializeToString(deterministic=True) != source.SerializeToString(
            deterministic=True
        ):
            raise Finding("import and emit is no identity")
        verify(module)
        box.phase("text")
        if rng.random() < 0.2:
            text = str(module)
            if str(irc.parse(text)) != text:
                raise Finding("the text of the IR does not come back")
        box.phase("compile")
        passes = "default" if runs and rng.random() < 0.6 else pick(rng, PASSES)
        instruments = [Verify()] if rng.random() < 0.2 else []
        result = irc.compile(module, passes, context=PassContext(instruments))
        if rng.random() < 0.3:
            box.phase("fold map")
            result.fold_map.to_json()
        box.phase("save")
        result.save(box.folder / "out.onnx")
        if ModelProto.FromString((box.folder / "out.onnx").read_bytes()) is None:
            raise Finding("what was written does not parse")
        if (
            runs
            and not outside(source)
            and all(pass_.preserves for pass_ in parse_pipeline(passes).flat)
        ):
            return compare(box, source, result.model)
        return "accepted"
    return outcome[0]


def outside(model: ModelProto) -> bool:
    return any(tensor.external_data for tensor in onnx.external_data_helper._get_all_tensors(model))


def surroundings(box: Box) -> None:
    """The files that external data may point at.

    One of 64 bytes, a FIFO, a folder, and links out.
    """
    if not (box.folder / "data.bin").exists():
        import os

        (box.folder / "data.bin").write_bytes(bytes(range(64)))
        (box.folder / "folder").mkdir()
        os.mkfifo(box.folder / "fifo")
        (box.folder / "out").symlink_to("/etc/hostname")


def compare(box: Box, source: ModelProto, made: ModelProto) -> str:
    """The numbers of both, where the source is valid and the runtime runs it."""
    box.phase("source in runtime")  # or in onnx's checker before
    try:
        if source == made or graphs.is_valid(source) is not None:
            return "accepted"
    except ValueError:  # the checker stumbles over element types
        return "accepted"
    shapes = [
        [dim.dim_value for dim in info.type.tensor_type.shape.dim] for info in source.graph.input
    ]
    if sum(prod(max(dim, 8) for dim in shape) for shape in shapes) > 1 << 20:
        return "accepted"
    try:
        inputs = harness.random_inputs(source, box.rng.randrange(1000))
        before = harness.run(source, inputs)
    except Exception:
        return "accepted"
    if any(not isinstance(array, np.ndarray) or array.size > 1 << 20 for array in before.values()):
        return "accepted"
    box.phase("result in runtime")
    try:
        after = harness.run(made, inputs)
    except Exception as error:
        if "alloc" in str(error):  # the address space of a child is bounded
            return "accepted"
        raise Finding(
            f"the runtime runs the source, and not the result: {str(error)[:300]}"
        ) from error
    for name, want in before.items():
        found = after[name]
        if found.shape != want.shape or found.dtype != want.dtype:
            raise Finding(f"{name}: {found.dtype}{found.shape} is not {want.dtype}{want.shape}")
        if want.dtype.kind in "iub" and want.dtype.kind == "b":
            continue  # a comparison turns on the last bit
    box.phase("oracle")
    try:
        if not oracle.has_rounding_bound(source):
            return "accepted"
        with np.errstate(all="ignore"):
            bounds = [oracle.rounding_bound(model, inputs) for model in (source, made)]
    except pytest.skip.Exception:
        return "accepted"
    except Exception:  # an operator or a form that the evaluator does not know
        return "accepted"
    for name, want in before.items():
        if want.dtype not in (np.float32, np.float64):
            continue
        found, limit = after[name].astype(np.float64), bounds[0][name] + bounds[1][name] + 1e-30
        wide = want.astype(np.float64)
        sure = np.isfinite(limit) & (
            limit < 1e30
        )  # where the magnitudes overflow, so may the numbers
        with np.errstate(all="ignore"):
            bad = (
                sure
                & ~(np.abs(found - wide) <= limit)
                & ~(found == wide)
                & ~(np.isnan(found) & np.isnan(wide))
            )
        if bad.any():
            raise Finding(
                f"{name} differs: {wide[bad][:4]} and {found[bad][:4]}, the bound is"
                f" {limit[bad][:4]}"
            )
    return "compared"


def text(box: Box) -> str:
    """Parse, print, parse again, compile."""
    rng = box.rng
    first, second = (None, None)
    while first is None or second is None:
        first, second = (corpus.text(rng.randrange(len(corpus.models()))) for _ in range(2))
    mutated = mutate_text(first, rng, second)
    path = box.write(
        "model.irc", mutated.encode("utf-8", "surrogatepass" if rng.random() < 0.5 else "replace")
    )
    with refusals() as outcome:
        module = irc.load(path)
        printed = str(module)
        if str(irc.parse(printed)) != printed:
            raise Finding("printed text is not read as it was printed")
        box.phase("emit")
        with contextlib.suppress(EmitError):  # digests stand for elements
            irc.emit(module).model.SerializeToString()
        box.phase("compile")
        irc.compile(
            module, pick(rng, PASSES), context=PassContext([Verify()] if rng.random() < 0.2 else [])
        )
        return "accepted"
    return outcome[0]


def _digest(content: bytes) -> str:
    return f"xxh128:{xxh3_128_hexdigest(content)}"


def saved(fold_map: FoldMap, path: Path, store: str) -> dict[Path, bytes]:
    """The files of a fold map, which is written to `path`."""
    path.with_suffix(".npz").unlink(missing_ok=True)
    fold_map.save(path, store=store)
    return {
        place: place.read_bytes() for place in (path, path.with_suffix(".npz")) if place.exists()
    }


def mutated_map(box: Box, fold_map: FoldMap, model: bytes, name: str = "map.json") -> Path:
    """A fold map with changes: of the document, of the arrays in it or beside it, or in a model."""
    rng = box.rng
    form = rng.choice(("inline", "inline", "npz", "npz", "embedded"))
    files = saved(fold_map, box.folder / name, "inline" if form == "embedded" else form)
    arrays = {path.name: content for path, content in files.items() if path.suffix == ".npz"}
    content = next(content for path, content in files.items() if path.suffix == ".json")
    if rng.random() < 0.15:
        content = mutate_bytes(content, rng, b'{"ref": "A0.gamma", "shape": [1]}')
    elif rng.random() < 0.8:
        document = mutate_document(json.loads(content), rng)
        store = document.get("tensor_store") if isinstance(document, dict) else None
        if (
            form == "inline"
            and isinstance(store, dict)
            and isinstance(store.get("arrays"), dict)
            and store["arrays"]
        ):
            key = rng.choice(sorted(store["arrays"]))
            if rng.random() < 0.2:
                size = rng.choice((0, 1, 8, 10**7))
                store["arrays"][key] = base64.b64encode(zlib.compress(bytes(size))).decode()
        with contextlib.suppress(
            RecursionError
        ):  # deeper than python writes; it reads no deeper either
            content = json.dumps(document).encode("utf-8", "surrogatepass")
    for place, stored in arrays.items():
        if rng.random() < 0.5:
            made = io.BytesIO()
            with np.load(io.BytesIO(stored)) as archive:
                items = {key: archive[key] for key in archive.files}
            if items and rng.random() < 0.7:
                key = rng.choice(sorted(items))
                items[key] = rng.choice(
                    (
                        items[key].ravel()[:-1],
                        np.zeros(rng.choice((0, 1, 10**7)), np.uint8),
                        np.full(3, np.nan),
                        items[key].astype(np.int8),
                    )
                )
            np.savez_compressed(made, **items)
            changed = (
                made.getvalue()
                if rng.random() < 0.5
                else mutate_bytes(stored, rng, made.getvalue())
            )
            if rng.random() < 0.9:
                content = content.replace(_digest(stored).encode(), _digest(changed).encode())
            stored = changed
        box.write(place, stored)
    if form == "embedded":
        proto = ModelProto.FromString(model)
        packed = zlib.compress(content)
        packed = mutate_bytes(packed, rng, b"") if rng.random() < 0.2 else packed
        proto.metadata_props.add(key="irc.fold_map", value=base64.b64encode(packed).decode())
        content = proto.SerializeToString()
        content = mutate_bytes(content, rng, b"") if rng.random() < 0.2 else content
    return box.write(name, content)


def foldmap(box: Box) -> str:
    """Load, and ask everything."""
    rng = box.rng
    _, model, fold_map = corpus.folded(rng.randrange(len(corpus.foldable())))
    path = mutated_map(box, fold_map, model)
    with refusals() as outcome:
        loaded = FoldMap.load(path)
        box.phase("ask")
        questions(loaded, ModelProto.FromString(model), rng)
        return "accepted"
    return outcome[0]


def questions(loaded: FoldMap, model: ModelProto, rng: Random) -> None:
    loaded.count()
    explain(loaded)
    attempts: list[Callable[[], object]] = [
        lambda: show(loaded, Console(file=io.StringIO(), width=200)),
        lambda: check(model, loaded),
        lambda: loaded.to_json(),
        lambda: copy.copy(loaded).adopt(model),
        *(lambda layer=layer: loaded.output_stats(layer["id"]) for layer in loaded.layers),
        *(lambda layer=layer: loaded.input_stats(layer["id"]) for layer in loaded.layers),
        *(
            lambda export=export: export(model, loaded, {}, {}, 6.0)
            for export in EXPORTERS.values()
        ),
    ]
    for attempt in rng.sample(attempts, 3):
        try:
            attempt()
        except IRError as error:
            if internal(error):
                raise


def unfolding(box: Box) -> str:
    """The way back: the very source, or an error."""
    rng = box.rng
    source, model, fold_map = corpus.folded(rng.randrange(len(corpus.foldable())))
    what = rng.randrange(3)
    changed = model if what == 0 else mutate_model(model, rng, source)
    path = box.write("model.onnx", changed)
    if what == 1:
        map_path = box.folder / "map.json"
        for place, content in saved(fold_map, map_path, rng.choice(("inline", "npz"))).items():
            box.write(place.name, content)
    else:
        map_path = mutated_map(box, fold_map, model)
    surroundings(box)
    with refusals() as outcome:
        loaded = FoldMap.load(map_path)
        box.phase("read")
        proto, base_dir = read_model(path)
        box.phase("unfold")
        found = unfold(proto, loaded, base_dir)
        if found.SerializeToString(deterministic=True) != ModelProto.FromString(
            source
        ).SerializeToString(deterministic=True):
            # a map that was changed may say of another source that it is that of this model
            if what == 1 or loaded.data["source_model"] == fold_map.data["source_model"]:
                raise Finding("what came back is not the source")
            return "another source"
        return "accepted"
    return outcome[0]


def arguments(box: Box, files: Mapping[str, Path]) -> list[str]:
    """A command line over the files."""
    rng = box.rng
    model, back, page = files["model"], box.folder / "made.onnx", box.folder / "page.html"
    common = ["--passes", pick(rng, PASSES)] if rng.random() < 0.5 else []
    match rng.randrange(14):
        case 0:
            return ["dump", str(model), *common, *(["--diff"] if rng.random() < 0.3 else [])]
        case 1:
            return ["diff", str(model), str(files["other"])]
        case 2:
            return ["foldmap", "show", str(files["map"])]
        case 3:
            return ["foldmap", "check", str(files["folded"]), str(files["map"])]
        case 4:
            form = rng.choice(sorted(EXPORTERS))
            return [
                "foldmap",
                "export",
                str(files["folded"]),
                str(files["map"]),
                "--to",
                form,
                "-o",
                str(box.folder / "x.json"),
            ]
        case 5:
            return ["unfold", str(files["folded"]), str(files["map"]), "-o", str(back)]
        case 6:
            return ["report", str(model), "-o", str(page), *common]
        case _:
            chosen = [
                option
                for option in (
                    ["--fold-map", str(box.folder / "made.json")],
                    ["--fold-map-store", "inline"],
                    ["--embed-fold-map"],
                    ["--external-data"],
                    ["--freeze-initializers"],
                    ["--verify-ir"],
                    ["--explain"],
                    ["--report", str(page)],
                    ["--json", str(box.folder / "sum.json")],
                    ["--dump-ir", str(box.folder / "dump")],
                    ["--diff"],
                    ["--time-passes"],
                    ["--certificate", str(box.folder / "made.cert.json")],
                )
                if rng.random() < 0.15
            ]
            if [
                "--freeze-initializers"
            ] in chosen:  # it changes the inputs, which the certificate compares
                chosen = [option for option in chosen if option[0] != "--certificate"]
            return [
                "compile",
                str(model),
                "-o",
                str(back),
                *common,
                *(word for option in chosen for word in option),
            ]


MADE = ("made.onnx", "page.html", "made.json", "made.npz", "sum.json", "x.json", "made.cert.json")


def command(box: Box) -> str:
    """A command line: exit status 0, or 1 with one error and nothing written.

    A model that the checker of certificates cannot read is written, without a certificate.
    """
    rng = box.rng
    source, folded, fold_map = corpus.folded(rng.randrange(len(corpus.foldable())))
    data, other = pick(rng, corpus.models()), pick(rng, corpus.models())
    for name in MADE:
        (box.folder / name).unlink(missing_ok=True)
    files = {
        "model": box.write("model.onnx", mutate_model(data, rng, other)),
        "other": box.write("other.onnx", data),
        "folded": box.write(
            "folded.onnx", folded if rng.random() < 0.7 else mutate_model(folded, rng, source)
        ),
        "map": mutated_map(box, fold_map, folded),
    }
    surroundings(box)
    words = arguments(box, files)
    box.keep["arguments.txt"] = "\n".join(words).encode()
    before = {path.name for path in box.folder.iterdir()}
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = main(words)
        except IRError as error:  # main catches them
            raise Finding(f"an error came through: {error}") from error
    said = err.getvalue()
    if words[:2] == ["foldmap", "export"] and status == 2:
        status = 1  # a quantizer has to be told what nothing is known of
    if status not in (0, 1) or "Traceback" in said:
        raise Finding(f"exit status {status}: {said[-500:]}")
    if status == 1 and words[0] != "diff":
        if "irc: " not in said:
            raise Finding(f"exit status 1 without a reason: {said[-300:]!r}")
        if "Error: " in said.rpartition("irc: ")[2] and " failed after " in said:
            raise Finding(f"an accident in a pass: {said[-500:]}")
        if words[0] not in ("diff", "foldmap"):
            left = {path.name for path in box.folder.iterdir()} - before - {"dump"}
            if "sum.json" in left and json.loads((box.folder / "sum.json").read_text()).get(
                "error"
            ):
                left.remove("sum.json")
            if "made.onnx is written without it" in said:  # a certificate cannot be had
                left -= set(MADE) - {"made.cert.json"}
            if left:
                raise Finding(f"exit status 1, and files are left: {sorted(left)}")
    if any(path.name.endswith(".tmp") for path in box.folder.iterdir()):
        raise Finding("a temporary file is left")
    return "accepted" if status == 0 else "refused"


def graph(box: Box) -> str:
    """Compile a random model of either grammar, at times with functions.

    A fixpoint, valid, the same numbers.
    """
    grow_ = pick(box.rng, (grow, export))
    source = plain = grow_(box.rng.getrandbits(32), *((F32,) if grow_ is grow else ()))
    if box.rng.randrange(2):
        source = with_functions(plain, box.rng.getrandbits(32))
    box.write("model.onnx", source.SerializeToString())
    box.phase("compile")
    result = irc.compile(source).model
    box.phase("fixpoint")
    content = box.write("out.onnx", result.SerializeToString(deterministic=True)).read_bytes()
    if irc.compile(result).model.SerializeToString(deterministic=True) != content:
        raise Finding("compiling the result changes it")
    box.phase("checker")
    if graphs.is_valid(source) is not None:
        return "refused by the checker"
    complaint = graphs.is_valid(result)
    if complaint is not None:
        raise Finding(f"the result is not valid: {complaint[:500]}")
    box.phase("numbers")
    try:
        found = deviation(plain, without_overloads(result), box.rng.randrange(1000))
    except SourceError:
        return "refused by the runtime"
    except VerifyError:
        # The inference of onnxruntime fails behind some calls of functions: in the source, too.
        if is_loaded(without_overloads(source)):
            raise
        return "refused by the runtime"
    if found is not None:
        raise Finding(f"the numbers differ: {found.difference} on {found.stimulus.name}")
    return "compared"


def shapes(box: Box) -> str:
    """Compile a random model that computes shapes: the same results at every size of its symbols."""
    source = computed_shapes.grow(box.rng.getrandbits(32))
    box.write("model.onnx", source.SerializeToString())
    box.phase("numbers")
    runs = computed_shapes.runs_alike(source, computed_shapes.EMPTY)
    box.phase("fixpoint")
    result = irc.compile(source).model
    content = box.write("out.onnx", result.SerializeToString(deterministic=True)).read_bytes()
    if irc.compile(result).model.SerializeToString(deterministic=True) != content:
        raise Finding("compiling the result changes it")
    return "compared" if runs else "refused by the runtime"


def proof(box: Box) -> str:
    """Check a forged proof: what is accepted is right."""
    source, result, document, is_changed = forged(box.rng)
    box.write("model.onnx", source.SerializeToString())
    box.write("out.onnx", result.SerializeToString())
    box.write("proof.json", json.dumps(document).encode())
    box.phase("certify")
    try:
        irc.certify(source, result, document)
    except irc.Rejected:
        return "refused"
    return compare(box, source, result) if is_changed else "still right"


irc.tools.cli.main.parser = cache(
    irc.tools.cli.main.parser
)  # the grammar is most of the time of a small command

TARGETS: dict[str, Callable[[Box], str]] = {
    "importer": importer,
    "text": text,
    "foldmap": foldmap,
    "unfold": unfolding,
    "cli": command,
    "graph": graph,
    "shapes": shapes,
    "proof": proof,
}

__all__ = ["TARGETS", "Box", "Finding"]
