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
    from .backends.report import Recorder
    from .ir.graph import Module
    from .passes import Instrument, Timing

EPILOG = """\
passes are written A,B{option=value},...; `default` stands for the default pipeline and `none` for no pass;
`irc passes` lists them."""
NO_DURATIONS = "leave durations out of the report, so that equal compiles give equal pages"


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
    _report_parser(commands)
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


def _report_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    report = commands.add_parser(
        "report",
        help="show what passes do to a model",
        description="Run passes on MODEL and write a page that shows what they did, without writing the result.",
        epilog=EPILOG,
    )
    report.add_argument(
        "model", metavar="MODEL", help="an ONNX file, an .irc text file, or - for ONNX on standard input"
    )
    report.add_argument("-o", "--output", metavar="REPORT.html", required=True, help="where to write the page")
    report.add_argument("--passes", default="default", metavar="PASSES", help="the passes to run (default: default)")
    report.add_argument("--freeze-initializers", action="store_true", help="make constants of overridable initializers")
    report.add_argument("--no-durations", action="store_true", help=NO_DURATIONS)
    report.add_argument("-q", "--quiet", action="store_true", help="print no summary")
    report.set_defaults(explain=False)


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
    add("--explain", action="store_true", help="print for every affine where it went or why it stays")
    add("--report", metavar="REPORT.html", help="write a page that shows what the passes did")
    add("--no-durations", action="store_true", help=NO_DURATIONS)
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
    _check_report(options.report, options.model, output, options.fold_map)
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
    recorder = _recorder(module) if options.report is not None else None
    if recorder is not None:
        instruments.insert(0 if timing is None else 1, recorder)
    before = count_nodes(module)
    context = PassContext(instruments)
    result = compile_model(module, pipeline, freeze_initializers=options.freeze_initializers, context=context)
    with _reporting(options.report, options, recorder, result, perf_counter() - start):
        result.save(
            output,
            fold_map=options.fold_map,
            fold_map_store=options.fold_map_store,
            embed_fold_map=options.embed_fold_map,
        )
    _summarize(options, result, before, timing, perf_counter() - start)
    return 0


def _recorder(module: Module) -> Recorder:
    """The instrument that keeps for a report what the passes do."""
    from .backends.report import Recorder

    return Recorder(module)


@contextmanager
def _reporting(
    path: str, options: argparse.Namespace, recorder: Recorder | None, result: Result, seconds: float
) -> Iterator[None]:
    """The report, if there is a recorder, is written when the block ends well."""
    if recorder is None:
        yield
        return
    from .backends.report import collect, writing_report

    name = "standard input" if options.model == "-" else Path(options.model).name
    data = collect(name, recorder, result, seconds=seconds, durations=not options.no_durations)
    with writing_report(path, data):
        yield


def _check_outputs(output: str, fold_map: str | None) -> None:
    """Raises UsageError where model and fold map would go to one place."""
    from .ir.errors import UsageError

    if fold_map == "-":
        raise UsageError("--fold-map takes a file, not standard output")
    if fold_map is not None and Path(output).resolve() in (place.resolve() for place in map_files(Path(fold_map))):
        raise UsageError(f"{fold_map}: the model and its fold map cannot be one file")
    if fold_map is not None and Path(fold_map).suffix == ".npz":
        raise UsageError(f"{fold_map}: the arrays of the fold map go to the npz file of that name")


def _check_report(report: str | None, *others: str | None) -> None:
    """Raises UsageError where a report would go to standard output, or take the place of one of the `others`."""
    from .ir.errors import UsageError

    if report == "-":
        raise UsageError("a report goes to a file, not to standard output")
    taken = [place for other in others if other not in (None, "-") for place in map_files(Path(str(other)))]
    if report is not None and Path(report).resolve() in [place.resolve() for place in taken]:
        raise UsageError(f"{report}: the report would take the place of another file")


def map_files(path: Path) -> tuple[Path, Path]:
    """Where a fold map and its arrays go."""
    return path, path.with_suffix(".npz")


def default_output(model: str) -> str:
    """`model.irc.onnx` beside `model.onnx`; standard output for standard input."""
    return "-" if model == "-" else str(Path(model).with_suffix(".irc.onnx"))


def count_nodes(module: Module) -> int:
    """Operators of a module, its constants and returns not counted."""
    return sum(node.op not in ("constant", "variable", "return") for node in module.walk())


def _summarize(options: argparse.Namespace, result: Result, before: int, timing: Timing | None, seconds: float) -> None:
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


def _report(options: argparse.Namespace) -> int:
    from time import perf_counter

    from .backends.driver import compile as compile_model
    from .backends.driver import read
    from .passes import PassContext, parse_pipeline

    start = perf_counter()
    pipeline = parse_pipeline(options.passes)
    _check_report(options.output, options.model)
    module = read(options.model)
    recorder = _recorder(module)
    context = PassContext([recorder])
    result = compile_model(module, pipeline, freeze_initializers=options.freeze_initializers, context=context)
    seconds = perf_counter() - start
    with _reporting(options.output, options, recorder, result, seconds):
        pass
    _summarize(options, result, recorder.operators, None, seconds)
    return 0


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
    return {"show": _show, "check": _check}[options.action](options)


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


@contextmanager
def naming(path: str) -> Iterator[None]:
    """What is wrong with a fold map is said of the model at `path`."""
    from .ir.errors import FoldMapError

    try:
        yield
    except FoldMapError as error:
        raise FoldMapError(f"{path}: {error}") from None


COMMANDS = {
    "compile": _compile,
    "dump": _dump,
    "passes": _passes,
    "unfold": _unfold,
    "foldmap": _foldmap,
    "report": _report,
}
