"""`irc inspect`: the facts of a model, and the affines that passes would fold or leave."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from .options import (
    EPILOG,
    MODEL,
    Subparsers,
    add_data,
    add_limits,
    add_module_options,
    check_once,
    complete_outputs,
    data_file,
    document_head,
    module_of,
    name_of,
    warn,
    write_json,
)

TYPE_CHECKING = False  # of typing, which takes longer to import than the rest
if TYPE_CHECKING:
    from .inspection import AffineFacts, ModelInspection, OutputFacts


def add(commands: Subparsers[argparse.ArgumentParser]) -> None:
    """Add the subcommand with its arguments."""
    command = commands.add_parser(
        "inspect",
        help="show operators, parameters and multiplications, and obstacles to folds",
        description=(
            "Show the facts of MODEL, and which scales and shifts the passes would fold or leave."
            " Nothing is written."
        ),
        epilog=EPILOG,
    )
    command.add_argument("model", metavar="MODEL", help=MODEL)
    command.add_argument(
        "other", metavar="OTHER", nargs="?", help="a second model, to compare the sizes of both"
    )
    add_data(command)
    add_module_options(command)
    command.add_argument(
        "--json", metavar="OUT.json", help="write the facts as JSON; - is standard output"
    )
    add_limits(command)


def run(options: argparse.Namespace) -> int:
    """Print the facts, or write them as JSON."""
    from ...backends.onnx.kept_files import check_kept
    from ...compiler import compile as compile_model
    from ...passes import parse_pipeline
    from ...support.errors import visible
    from ...support.output_paths import check_apart
    from .inspection import affine_facts, inspect_module

    if options.other is not None:
        return _compare(options)
    pipeline = parse_pipeline(options.passes)
    complete_outputs(options, options.model, json=".json")
    check_apart([options.json], [options.model, data_file(options.model, options.data)])
    module = module_of(options.model, options)
    check_kept(module, "-", options.json)
    facts = inspect_module(module)
    result = compile_model(module, pipeline, freeze_initializers=options.freeze_initializers)
    warn(warning for warning in result.warnings if warning != facts["folded_before"])
    affines = affine_facts(result.fold_map)
    if options.json is not None:
        document = {
            **document_head("inspect"),
            "model": name_of(options.model),
            **facts,
            "compiled_operators": result.operators,
            "affines": affines,
        }
        write_json(options.json, document)
    if options.json != "-":
        lines = _lines(name_of(options.model), facts, affines, result.operators)
        sys.stdout.writelines(f"{visible(line)}\n" for line in lines)
    return 0


def _compare(options: argparse.Namespace) -> int:
    """Print the sizes of two models side by side."""
    from ...support.errors import UsageError, visible
    from .inspection import source_size
    from .size_table import size_rows, table_lines

    check_once(options.model, options.other)
    if options.json is not None or options.data is not None:
        raise UsageError("--json and --data go with one model")
    models = (options.model, options.other)
    sizes = [source_size(module_of(model, options)) for model in models]
    rows = size_rows(sizes, [name_of(model) for model in models])
    sys.stdout.writelines(f"{visible(line)}\n" for line in table_lines(rows))
    return 0


def _lines(
    name: str, facts: ModelInspection, affines: list[AffineFacts], compiled: int
) -> Iterator[str]:
    opsets = (
        ", ".join(f"{domain} {version}" for domain, version in facts["opsets"].items()) or "none"
    )
    makers = (
        f"{facts['producer'] or 'no producer'}{'; compiled by irc' if facts['compiled'] else ''}"
    )
    yield f"{name}: {makers}; IR version {facts['ir_version']}; opsets: {opsets}"
    yield from (f"input {value['name']}: {value['type']}" for value in facts["inputs"])
    yield from map(_output_line, facts["outputs"])
    counts = ", ".join(f"{op} {count}" for op, count in facts["operators"].items())
    yield f"operators: {sum(facts['operators'].values())} ({counts}); {compiled} after the passes"
    yield f"parameters: {facts['parameters']:,} ({facts['parameter_bytes']:,} bytes)"
    macs = facts["macs"]
    left = ", ".join(f"{count} {op}" for op, count in macs["uncounted"].items())
    yield (
        "multiplications of a sample:"
        f" {macs['counted']:,}{f' (not counted: {left})' if left else ''}"
    )
    if facts["folded_before"] is not None:
        yield facts["folded_before"]
    stays = [affine for affine in affines if affine["status"] == "kept"]
    yield f"scales and shifts: {len(affines)}, of which {len(stays)} stay"
    for affine in stays:
        yield f"  {affine['op_type']} {affine['node']}: {affine['reason']}: {affine['detail']}"


def _output_line(output: OutputFacts) -> str:
    """Return the line of an output: the declared type, and the inferred one if it differs."""
    declared, found = output["declared"] or output["type"], output["type"]
    notes = {
        "unconfirmed": f" (declared; inference does not confirm it: {found})",
        "contradicted": f" (declared; inference contradicts it: {found})",
    }
    note = notes.get(output["status"], "" if declared == found else f" (inferred: {found})")
    return f"output {output['name']}: {declared}{note}"
