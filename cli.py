"""The `irc` command. Exit status: 0 done, 1 the model or a check failed, 2 usage."""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .backends.onnx import Result
    from .backends.verify import VerifyNumerics
    from .ir.graph import Module
    from .passes import Instrument, Timing

EPILOG = """\
passes are written A,B{option=value},...; `default` stands for the default pipeline and `none` for no pass;
`irc passes` lists them."""


def _inputs_option(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--inputs",
        action="append",
        default=[],
        metavar="FILE",
        help="run on these: .npz by name, or .npy and TensorProto files in the order of the inputs (default: made)",
    )


def _align_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "align",
        help="compare two models tensor by tensor",
        description="Run A and B on the same inputs, and compare every tensor that both have under one name. Exit with "
        "1 where rounding does not explain a difference.",
    )
    add = command.add_argument
    add("first", metavar="A", help="an ONNX file")
    add("second", metavar="B", help="another one, as irc compile wrote it from A")
    add("--map", metavar="MAP.json", help="the fold map of B, which says what became of tensors that it does not have")
    _inputs_option(command)
    add("--json", metavar="OUT.json", help="write all rows, - is standard output")
    add("--dump", metavar="DIR", help="save every tensor of both as .npy, with an index")
    add("-q", "--quiet", action="store_true", help="print no table")


def _bisect_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "bisect",
        help="find the pass and the rule application that make a model wrong",
        description="Find the first application of a rule behind which the compiled MODEL differs from the source, or "
        "COMMAND fails. Exit with 1 where there is one.",
    )
    add = command.add_argument
    add("model", metavar="MODEL", help="an ONNX file")
    add("--passes", default="default", metavar="PASSES", help="the passes to run (default: default)")
    add("--freeze-initializers", action="store_true", help="make constants of overridable initializers")
    add(
        "--command",
        dest="judge",
        metavar="COMMAND",
        help="judge by a command, {} being the compiled model: it fails where it is wrong",
    )
    add("-o", "--output", metavar="DIR", help="save the smallest models that show it")
    _inputs_option(command)


EXPORTS = ("aimet", "aimet-encodings", "ort-calibration", "ort-overrides", "nncf")


def parser() -> argparse.ArgumentParser:
    """The command-line grammar."""
    root = argparse.ArgumentParser(
        prog="irc", description="A small, exact compiler middle end for ONNX inference graphs."
    )
    root.add_argument("--version", action="store_true", help="print the version and exit")
    commands = root.add_subparsers(dest="command", metavar="COMMAND")
    _compile_parser(commands)
    dump = commands.add_parser("dump", help="print the IR of a model", description="Print the IR text of MODEL.")
    dump.add_argument("model", metavar="MODEL", help="an ONNX file, an .irc text file, or - for ONNX on standard input")
    dump.add_argument("--passes", default="none", metavar="PASSES", help="run these first (default: none)")
    dump.add_argument("--freeze-initializers", action="store_true", help="make constants of overridable initializers")
    unfold = commands.add_parser(
        "unfold", help="get the source model back", description="Make the source of MODEL again from its fold map."
    )
    unfold.add_argument("model", metavar="MODEL", help="what irc compile wrote, or - for standard input")
    unfold.add_argument("map", metavar="MAP.json", help="its fold map, or the model itself where it holds one")
    unfold.add_argument("-o", "--output", metavar="BACK", required=True, help="where to write, - is standard output")
    _foldmap_parser(commands)
    _align_parser(commands)
    _bisect_parser(commands)
    commands.add_parser("passes", help="list the passes and their options", description="List the passes.")
    return root


def _foldmap_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser("foldmap", help="read a fold map", description="Read a fold map.")
    actions = command.add_subparsers(dest="action", metavar="ACTION", required=True)
    show = actions.add_parser("show", help="print it as tables", description="Print a fold map as tables.")
    show.add_argument("map", metavar="MAP.json", help="a fold map, or a model that holds one")
    check = actions.add_parser(
        "check",
        help="say whether it is that of a model",
        description="Exit with 1, and name what is stale, where MAP.json is not the fold map of MODEL.",
    )
    check.add_argument("model", metavar="MODEL")
    check.add_argument("map", metavar="MAP.json")
    export = actions.add_parser(
        "export",
        help="write it in the form that a quantizer takes",
        description="Write what MAP.json knows in the form that a quantizer takes.",
        epilog="aimet: gamma and beta by node name; aimet-encodings: encodings 1.0.0; ort-calibration: the cache of "
        "quantize_static; ort-overrides: TensorQuantOverrides; nncf: ranges and means by tensor.",
    )
    add = export.add_argument
    add("model", metavar="MODEL")
    add("map", metavar="MAP.json")
    add("--to", required=True, choices=EXPORTS, help="the form")
    add("-o", "--output", metavar="OUT.json", required=True, help="where to write, - is standard output")
    add("--input-range", action="append", default=[], metavar="NAME=LOW:HIGH", help="the range of a graph input")
    add("--range", action="append", default=[], metavar="NAME=LOW:HIGH", help="that of any other tensor")
    add("--sigmas", type=float, default=6.0, metavar="N", help="deviations that a range covers (default: 6)")


def _compile_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "compile",
        help="run passes on a model and write it",
        description="Run passes on MODEL and write it.",
        epilog=EPILOG,
    )
    add = command.add_argument
    add("model", metavar="MODEL", help="an ONNX file, an .irc text file, or - for ONNX on standard input")
    add("-o", "--output", metavar="OUT", help="where to write, - is standard output (default: MODEL with .irc.onnx)")
    add("--passes", default="default", metavar="PASSES", help="the passes to run (default: default)")
    add("--fold-map", metavar="MAP.json", help="write what was folded where, with the parameters")
    add("--fold-map-store", default="npz", choices=("npz", "inline"), help="its arrays: MAP.npz (default), or in it")
    add("--embed-fold-map", action="store_true", help="put the fold map into the model's metadata")
    add("--freeze-initializers", action="store_true", help="make constants of initializers that are overridable inputs")
    add("--print-after", action="append", default=[], metavar="PASS", help="print the IR after PASS, or all, to stderr")
    add("--dump-ir", metavar="DIR", help="write the IR after every pass to numbered files in DIR")
    add("--time-passes", action="store_true", help="print how long every pass took")
    add("--verify-ir", action="store_true", help="check the IR's invariants after every pass")
    add(
        "--verify",
        nargs="?",
        const="each",
        choices=("each", "end"),
        help="run the model beside its source after each pass (default), or at the end: 1 and no output if it differs",
    )
    _inputs_option(command)
    add("--explain", action="store_true", help="print for every affine where it went or why it stays")
    add("-q", "--quiet", action="store_true", help="print no summary")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    grammar = parser()
    options = grammar.parse_args(argv)
    if options.version:
        from . import __version__

        sys.stdout.write(f"irc {__version__}\n")
        return 0
    for name in ("stdin", "stdout", "stderr"):  # closed streams, as in some build farms
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115
    command = COMMANDS.get(options.command)
    if command is None:
        grammar.print_help(sys.stderr)
        return 2
    from .ir.errors import IRError, UsageError

    gc.set_threshold(100_000, 50, 50)  # the IR is one large live structure: collecting often is most of the cost
    try:
        return command(options)
    except IRError as error:
        sys.stderr.write(f"irc: {error}\n")
        return 2 if isinstance(error, UsageError) else 1
    except BrokenPipeError:
        sys.stderr.close()
        return 1


def _compile(options: argparse.Namespace) -> int:
    from time import perf_counter

    from .backends.driver import compile as compile_model
    from .backends.driver import read
    from .passes import DumpIR, PassContext, PrintIR, Timing, Verify, parse_pipeline

    start = perf_counter()
    pipeline = parse_pipeline(options.passes)
    output = options.output or default_output(options.model)
    _check_outputs(output, options.fold_map)
    instruments: list[Instrument] = []
    timing = Timing() if options.time_passes else None
    if timing is not None:
        instruments.append(timing)
    instruments.extend(PrintIR(name) for name in options.print_after)
    module = read(options.model)
    if options.dump_ir:
        instruments.append(DumpIR(options.dump_ir))
    if options.verify_ir:
        instruments.append(Verify())
    verify = _verification(options, module, output)
    if verify is not None:
        instruments.append(verify)
    before = count_nodes(module)
    context = PassContext(instruments)
    result = compile_model(module, pipeline, freeze_initializers=options.freeze_initializers, context=context)
    if verify is not None:
        verify.finish(result.module, result.model)
    result.save(
        output,
        fold_map=options.fold_map,
        fold_map_store=options.fold_map_store,
        embed_fold_map=options.embed_fold_map,
    )
    _report(options, result, before, timing, perf_counter() - start)
    if verify is not None and not options.quiet:
        sys.stderr.writelines(f"{line}\n" for line in verify.lines())
    return 0


def _verification(options: argparse.Namespace, module: Module, output: str) -> VerifyNumerics | None:
    """The instrument that --verify asks for; what shows a deviation goes beside the output."""
    from onnx import ModelProto

    from .ir.errors import UsageError

    if options.verify is None:
        if options.inputs:
            raise UsageError("--inputs are run by --verify")
        return None
    from .backends.verify import VerifyNumerics
    from .backends.verify.inputs import read_inputs

    source = module.source if isinstance(module.source, ModelProto) else None
    if options.inputs and source is None:
        raise UsageError("--inputs go with an ONNX model")
    inputs = () if source is None else read_inputs(options.inputs, source)
    where = None if output == "-" else Path(f"{output}.deviation")
    return VerifyNumerics(inputs, when=options.verify, reproducer=where)


def _check_outputs(output: str, fold_map: str | None) -> None:
    """Raises UsageError where model and fold map would go to one place."""
    from .ir.errors import UsageError

    if fold_map == "-":
        raise UsageError("--fold-map takes a file, not standard output")
    if fold_map is not None and Path(output).resolve() in (place.resolve() for place in map_files(Path(fold_map))):
        raise UsageError(f"{fold_map}: the model and its fold map cannot be one file")
    if fold_map is not None and Path(fold_map).suffix == ".npz":
        raise UsageError(f"{fold_map}: the arrays of the fold map go to the npz file of that name")


def map_files(path: Path) -> tuple[Path, Path]:
    """Where a fold map and its arrays go."""
    return path, path.with_suffix(".npz")


def default_output(model: str) -> str:
    """`model.irc.onnx` beside `model.onnx`; standard output for standard input."""
    return "-" if model == "-" else str(Path(model).with_suffix(".irc.onnx"))


def count_nodes(module: Module) -> int:
    """Operators of a module, its constants and returns not counted."""
    return sum(node.op not in ("constant", "variable", "return") for node in module.walk())


def _report(options: argparse.Namespace, result: Result, before: int, timing: Timing | None, seconds: float) -> None:
    lines = [f"warning: {warning}" for warning in result.warnings]
    if timing is not None:
        lines.append(timing.render())
    if options.explain:
        from .backends.foldmap.show import explain

        lines.extend(explain(result.fold_map))
    if not options.quiet:
        counts = ", ".join(f"{count} {status}" for status, count in sorted(result.count().items()))
        lines.append(f"{before} -> {result.operators} operators; affines: {counts or 'none'}; {seconds:.2f} s")
    sys.stderr.writelines(f"{line}\n" for line in lines)


def _dump(options: argparse.Namespace) -> int:
    from .backends.driver import read
    from .ir.text import to_text
    from .passes import FreezeInitializers, parse_pipeline

    pipeline = parse_pipeline(options.passes)
    module = read(options.model)
    if options.freeze_initializers:
        FreezeInitializers()(module)
    sys.stdout.write(to_text(pipeline(module)))
    return 0


def _passes(options: argparse.Namespace) -> int:
    from .passes import DEFAULT_PIPELINE, PASSES
    from .passes.infra import fields_of, format_option

    sys.stdout.write(f"default pipeline: {','.join(pass_.name for pass_ in DEFAULT_PIPELINE)}\n")
    for name, pass_ in sorted(PASSES.items()):
        text = (pass_.__doc__ or "").strip().split("\n")[0]
        sys.stdout.write(f"\n{name}\n    {text}\n")
        for option in fields_of(pass_):
            sys.stdout.write(f"    {option.name}={format_option(option.default)}\n")
    return 0


def _unfold(options: argparse.Namespace) -> int:
    from .backends.foldmap import FoldMap, unfold
    from .backends.onnx import save_model
    from .frontends.onnx import read_model

    fold_map = FoldMap.load(options.map)
    model, base_dir = read_model(options.model)
    with naming(options.model):
        source = unfold(model, fold_map, base_dir)
    save_model(source, options.output, base_dir)
    return 0


def _foldmap(options: argparse.Namespace) -> int:
    return {"show": _show, "check": _check, "export": _export}[options.action](options)


def _show(options: argparse.Namespace) -> int:
    from rich.console import Console

    from .backends.foldmap import FoldMap
    from .backends.foldmap.show import show

    console = Console() if sys.stdout.isatty() else Console(width=200)
    show(FoldMap.load(options.map), console)
    return 0


def _check(options: argparse.Namespace) -> int:
    from .backends.foldmap import FoldMap, check
    from .backends.foldmap.show import stale_lines
    from .frontends.onnx import read_model
    from .ir.errors import FoldMapError

    fold_map = FoldMap.load(options.map)
    model, base_dir = read_model(options.model)
    found = check(model, fold_map, base_dir)
    if found.same:
        sys.stdout.write(f"{options.map} is the fold map of {options.model}\n")
        return 0
    sys.stdout.writelines(f"{line}\n" for line in stale_lines(found))
    raise FoldMapError(f"{options.model}: the fold map {options.map} belongs to another model, or it was changed since")


def _export(options: argparse.Namespace) -> int:
    import json

    from onnx.external_data_helper import load_external_data_for_model

    from .backends.files import replacing
    from .backends.foldmap import FoldMap
    from .backends.quantizers.export import EXPORTERS
    from .frontends.onnx import read_model

    inputs, ranges = (dict(map(read_range, texts)) for texts in (options.input_range, options.range))
    fold_map = FoldMap.load(options.map)
    model, base_dir = read_model(options.model)
    load_external_data_for_model(model, str(base_dir))
    with naming(options.model):
        document, missing = EXPORTERS[options.to](model, fold_map, inputs, ranges, options.sigmas)
    text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
    if options.output == "-":
        sys.stdout.write(text)
    else:
        with replacing(Path(options.output)) as target:
            target.write_text(text, encoding="utf-8")
    if missing:
        sys.stderr.write(f"warning: nothing is written for {', '.join(missing)}\n")
    return 0


def read_range(text: str) -> tuple[str, tuple[float, float]]:
    """NAME=LOW:HIGH. Raises UsageError for anything else."""
    from .ir.errors import UsageError

    name, _, numbers = text.rpartition("=")
    low, _, high = numbers.partition(":")
    try:
        return name, (float(low), float(high))
    except ValueError:
        raise UsageError(f"{text!r} is no range: NAME=LOW:HIGH") from None


@contextmanager
def naming(path: str) -> Iterator[None]:
    """What is wrong with a fold map is said of the model at `path`."""
    from .ir.errors import FoldMapError

    try:
        yield
    except FoldMapError as error:
        raise FoldMapError(f"{path}: {error}") from None


def _align(options: argparse.Namespace) -> int:
    import json

    from rich.console import Console

    from .backends.files import replacing
    from .backends.foldmap import FoldMap
    from .backends.verify.align import align, dump, print_alignment
    from .backends.verify.compare import Comparison
    from .backends.verify.inputs import read_inputs
    from .backends.verify.runner import Runner
    from .frontends.onnx import read_model

    first, base_dir = read_model(options.first)
    second, other_dir = read_model(options.second)
    fold_map = None if options.map is None else FoldMap.load(options.map)
    comparison = Comparison(first, base_dir, inputs=read_inputs(options.inputs, first))
    found = align(comparison, second, other_dir, fold_map)
    if options.dump:
        dump(Path(options.dump), (("a", comparison.runner), ("b", Runner(second, other_dir))), comparison)
    if options.json:
        text = json.dumps(found.to_json(), indent=1, ensure_ascii=False) + "\n"
        if options.json == "-":
            sys.stdout.write(text)
        else:
            with replacing(Path(options.json)) as target:
                target.write_text(text, encoding="utf-8")
    if not options.quiet and options.json != "-":
        print_alignment(found, Console() if sys.stdout.isatty() else Console(width=200))
    return 1 if found.first_divergence is not None else 0


def _bisect(options: argparse.Namespace) -> int:
    from .backends.driver import read
    from .backends.verify import VerifyNumerics
    from .backends.verify.bisect import bisect, judge_command, judge_numbers
    from .backends.verify.inputs import read_inputs
    from .frontends.onnx import read_model
    from .passes import FreezeInitializers, parse_pipeline
    from .passes.infra import Sequential

    pipeline = parse_pipeline(options.passes)
    if options.freeze_initializers:
        pipeline = Sequential([FreezeInitializers(), *pipeline.passes])
    model, _ = read_model(options.model)
    reproducer = None if options.output is None else Path(options.output)
    if options.judge is None:
        verify = VerifyNumerics(read_inputs(options.inputs, model), reproducer=reproducer)
        judge = judge_numbers(verify, read(options.model))
    else:
        judge = judge_command(options.judge)
    found = bisect(lambda: read(options.model), pipeline, judge)
    if found is None:
        sys.stdout.write(f"{options.model}: nothing is wrong behind {pipeline}\n")
        return 0
    sys.stdout.write(f"{found}\n")
    return 1


COMMANDS = {
    "align": _align,
    "bisect": _bisect,
    "compile": _compile,
    "dump": _dump,
    "foldmap": _foldmap,
    "passes": _passes,
    "unfold": _unfold,
}
