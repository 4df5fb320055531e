"""The result of a compile: the ONNX model and its fold map."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .backends.foldmap.arrays import ArrayStore
from .backends.foldmap.build import MapBuilder, affine_statuses, number_layers
from .backends.foldmap.inserted import inserted_notes, inserted_warnings
from .backends.foldmap.npz import NpzWriter
from .backends.foldmap.observer import PayloadObserver
from .backends.foldmap.serialize import check_store
from .backends.foldmap.status_counts import count_statuses, statuses
from .backends.onnx.emitter import emit_model
from .backends.onnx.kept_files import check_kept
from .backends.onnx.output_stream import Tap
from .backends.onnx.saving import Check, save_model
from .backends.text_output import save_text
from .frontends.onnx.codec.external_data import external_location
from .frontends.onnx.codec.protos import ModelProto, NodeProto
from .frontends.onnx.codec.streaming import materialize
from .frontends.onnx.codec.traversal import external_tensors, operators
from .ir.evaluate import ConstantEvaluator
from .ir.graph import Value
from .ir.module import Module, check_module
from .ir.payload import FilePart
from .ir.tensor import Array, ScaledTensor
from .passes.affine.algebra.stored import UnroundedConstants
from .passes.affine.records.fold_records import fold_records
from .support.errors import EmitError, UsageError
from .support.files import FileTransaction, replacing, writing
from .support.hooks import provided
from .support.output_paths import arrays_path, is_text

if TYPE_CHECKING:
    from .backends.foldmap.fold_map import FoldMap


class Result:
    """The ONNX model and the fold map of a compile, both made when first asked for.

    `warnings` are the warnings of the passes, `held_back` is the number of folds that overridable
    initializers prevent: so many affines more are folded with `freeze_initializers`. The model may
    share messages with the source: do not change it in place.
    """

    def __init__(
        self, module: Module, warnings: list[str] | None = None, held_back: int = 0
    ) -> None:
        self.module = module
        self.warnings = warnings if warnings is not None else []
        self.held_back = held_back
        self.verdicts: Sequence[Any] = ()
        """The outcomes of the comparisons of `irc.compile(verify=True)`, one for each pass."""
        self._model, self._layers, self._names = emit_model(module)
        self._folded = list(_folded(module))  # kept alive: the model has placeholders for them

    @cached_property
    def model(self) -> ModelProto:
        """The model with all elements; raises ModelError if a file of the source was changed or
        removed.
        """
        model = materialize(self._model)
        self._check_source()
        return model

    @cached_property
    def fold_map(self) -> FoldMap:
        """The fold map; raises ModelError as `model` does."""
        observer = PayloadObserver()
        for tensor in self._folded:
            observer.measure(tensor)
        fold_map = MapBuilder(
            self.module, self._model, self._layers, self._names.of, observer
        ).build()
        self._check_source()
        return fold_map

    def certificate(
        self, written: ModelProto | None = None, base_dir: Path | None = None
    ) -> dict[str, Any]:
        """Return the certificate of the compile as a JSON document, which `irc.certify` checks.

        It has the digests of both models, the rewrites, and the numbers from which a proof follows,
        if the model was compiled with `certificate=True`. `written` is the model as it was written,
        with its external data below `base_dir`. Raises EmitError for a module that came from no
        ONNX model, or whose initializers were frozen, and for external data that cannot be read.
        """
        module = self.module
        if not isinstance(module.source, ModelProto):
            raise EmitError("a certificate compares two ONNX models, and the source is not one")
        source = with_external_data(materialize(module.source), module.base_dir)
        result = with_external_data(
            self.model if written is None else written, base_dir or module.base_dir
        )
        records = fold_records(module).layers
        layers = {
            proto.output[0]: records[node]
            for node, proto in self._layers.items()
            if node in records and proto.output
        }
        made: dict[str, Any] = provided("certificate_of")(
            source, result, module, layers, self._exact_numbers()
        )
        return made

    def _exact_numbers(self) -> Callable[[str], Array | None]:
        """Return a function that gives what a constant of the model was rounded from, by name."""
        constants = {
            self._names.of(node.output): node.output
            for node in self.module.walked()
            if node.op == "constant"
        }
        evaluator = ConstantEvaluator(beside=self.module.constants)

        unrounded = self.module.provenance.table(UnroundedConstants).numbers

        def exact(name: str) -> Array | None:
            value = constants.get(name)
            return unrounded[value] if value in unrounded else evaluator.exact(value)

        return exact

    def count(self) -> Counter[str]:
        """Count affines of the source by status like `FoldMap.count`, without building the fold
        map.
        """
        found = affine_statuses(self.module, number_layers(self.module, self._layers))
        return count_statuses((status.status, status.reason) for status in found.values())

    @property
    def preprocessing(self) -> list[str]:
        """Where the operators went that `preprocess` inserted, a sentence for each layer."""
        return inserted_notes(self.module, number_layers(self.module, self._layers))

    def warn_of_inserted(self) -> None:
        """Add a warning for each operator that `preprocess` inserted and no layer took."""
        layers = number_layers(self.module, self._layers) if self.module.inserted else {}
        self.warnings.extend(inserted_warnings(self.module, layers))

    def __repr__(self) -> str:
        return f"<Result: {self.operators} operators, scales and shifts: {statuses(self.count())}>"

    def _repr_html_(self) -> str:
        """Return where each affine went, and the graphs before and after, for a notebook."""
        return str(provided("result_html")(self))

    def drawing(self) -> str:
        """Return the main graph of the source and of the result as SVG, with the place that each
        affine went to.

        A module that came from no ONNX model has no source, and the result is drawn alone.
        """
        source = self.module.source
        if not isinstance(source, ModelProto):
            return str(provided("model_drawing")(self._model))
        return str(provided("fold_drawing")(source, self._model, self.fold_map))

    @property
    def operators(self) -> int:
        """Number of nodes in all graphs and functions of the model, without Constant nodes."""
        return sum(1 for _ in self.nodes())

    def nodes(self) -> Iterator[NodeProto]:
        """Yield the operators that `operators` counts; their constants may be placeholders."""
        return operators(self._model)

    def name_of(self, value: Value) -> str:
        """Return the name that a value of the module has in the model."""
        return self._names.of(value)

    def save(
        self,
        path: str | Path,
        *,
        fold_map: str | Path | None = None,
        fold_map_store: str = "npz",
        embed_fold_map: bool = False,
        external_data: bool = False,
        in_place: bool = False,
        check: Check | None = None,
        files: FileTransaction | None = None,
    ) -> None:
        """Write the model and, if a path is given, its fold map.

        All files are replaced together, or none is, also if several processes write to the same
        paths. Large tensors are read once and not kept in memory.

        Args:
            path: The model's file; `-` is standard output. A path that ends with `.irc` gets IR
                text, and the .npz file beside it its constants; a fold map and external data are
                for ONNX files.
            fold_map: The file of the fold map.
            fold_map_store: The place of the map's arrays, as for `FoldMap.save`.
            embed_fold_map: Put the map into the model's metadata, too.
            external_data: Put tensors of 1 KiB and more into a file beside the model.
            in_place: Let the model replace the file that it was read from.
            check: Called with the written model and the folder of its external data before any file
                is in place.
            files: An open transaction that includes both paths; the files are in place when it is
                closed.

        Raises:
            EmitError: A file cannot be written, or the model does not fit into one.
            UsageError: The model would replace a file that the source was read from.
            FoldMapError: As `FoldMap.save`.
            ModelError: A file of the source was changed or cannot be read.
            Exception: The errors of `check`.
        """
        if isinstance(fold_map, bool):
            raise UsageError(f"fold_map is the path of the fold map, not {fold_map}")
        if str(path) != "-" and Path(path).is_dir():
            raise EmitError(f"{path}: cannot be written: this is a folder")
        if is_text(path):
            if fold_map is not None or embed_fold_map or external_data:
                raise EmitError(
                    f"{path}: a fold map and external data belong to an ONNX file, and this is IR"
                    " text"
                )
            self._save_text(Path(path), files, check, in_place=in_place)
            return
        check_kept(
            self.module,
            path,
            *(() if fold_map is None else (fold_map, arrays_path(Path(fold_map)))),
            in_place=in_place,
        )
        model = self._model
        if embed_fold_map:
            model = copied(model)
            self.fold_map.embed(model)
        own = FileTransaction(path, fold_map)
        with own if files is None else nullcontext(files) as together:
            save = partial(
                save_model, model, path, self.module.base_dir, together, external_data=external_data
            )
            if fold_map is None:
                save(check=check)
            else:
                self._save_both(save, Path(fold_map), fold_map_store, together, check)
            self._check_source()

    def _save_text(
        self, path: Path, files: FileTransaction | None, check: Check | None, *, in_place: bool
    ) -> None:
        if check is not None:
            check(self.model, self.module.base_dir)
        own = FileTransaction(path, arrays_path(path))
        with own if files is None else nullcontext(files) as together:
            save_text(self.module, path, together, in_place=in_place)

    def _check_source(self) -> None:
        """Raise ModelError if a file of the source was changed, or its external data replaced,
        since it was read.
        """
        files = {part.file for part in self.module.payloads if isinstance(part, FilePart)}
        locations = set(map(external_location, external_tensors(self._model) if files else ()))
        named = {self.module.base_dir / location for location in locations}
        for file in files:
            file.check_unchanged()
            if file.path in named:
                file.check_in_place()

    def _save_both(
        self,
        save: Callable[[Tap, Check | None], None],
        fold_map: Path,
        store: str,
        files: FileTransaction,
        check: Check | None,
    ) -> None:
        """Write the model, then the fold map with the digests observed on the way.

        Files that are entered last are put in place first: the map is never in place without its
        arrays.
        """
        check_store(store)
        target = files.enter_context(replacing(fold_map))
        npz = NpzWriter(fold_map, files) if store == "npz" else None
        observer = PayloadObserver(ArrayStore(spill=npz))
        save(observer.observe, check)
        with writing(fold_map):
            MapBuilder(self.module, self._model, self._layers, self._names.of, observer).write(
                target, npz
            )


def _folded(module: Module) -> Iterator[ScaledTensor]:
    """Yield the weights that are computed when they are written."""
    for node in module.walked():
        payload = node.attrs.get("value") if node.op == "constant" else None
        if isinstance(payload, ScaledTensor):
            yield payload


def with_external_data(model: ModelProto, folder: Path) -> ModelProto:
    """Return `model`, or a copy of it with the elements of its external data. Raises EmitError."""
    if not any(True for _ in external_tensors(model)):
        return model
    # Not `embed_external_data`: the files may still have the names of temporary ones. The Python of
    # onnx takes 40 ms to import, a fifth of a small compile.
    from onnx.external_data_helper import load_external_data_for_model

    copy = copied(model)
    try:
        load_external_data_for_model(copy, str(folder))
    except Exception as error:  # onnx has errors of its own
        raise EmitError(f"the external data cannot be read for the certificate: {error}") from None
    return copy


def copied(model: ModelProto) -> ModelProto:
    """Return a copy of `model` whose fields can be changed."""
    copy = ModelProto()
    copy.CopyFrom(model)
    return copy


def emit(module: Module) -> Result:
    """Express `module` in ONNX without changing it.

    Raises EmitError if it has no ONNX form, and UsageError for anything else than a module.
    """
    check_module(module)
    return Result(module)


__all__ = ["Result", "emit"]
