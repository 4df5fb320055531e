"""`irc check`: whether the passes leave a BatchNormalization, or float16 would overflow, and why.

It is for automatic checks.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from .options import (
    EPILOG,
    MODEL,
    Subparsers,
    add_data,
    add_inputs,
    add_limits,
    add_module_options,
    add_overflow,
    add_session_options,
    check_lone_float16,
    check_once,
    complete_outputs,
    data_file,
    document_head,
    json_text,
    module_of,
    warn,
    wishes_of,
    writing_text,
)

TYPE_CHECKING = False  # of typing, which takes longer to import than the rest
if TYPE_CHECKING:
    from typing import Any

    from ...backends.foldmap.entries import SourceEntry
    from ...ir.module import Module
    from ..float16.hazards import Hazard
    from .inspection import AffineFacts

SARIF = "https://json.schemastore.org/sarif-2.1.0.json"

ENDINGS = {"text": ".txt", "json": ".json", "sarif": ".sarif", "github": ".txt"}
"""The forms of findings, and the ends of their files in a folder."""


class Finding:
    """A finding: its reason code, the node, a sentence, and the record that it is made of."""

    def __init__(self, reason: str, node: str, sentence: str, record: AffineFacts | Hazard) -> None:
        self.reason, self.node, self.sentence, self.record = reason, node, sentence, record


if TYPE_CHECKING:
    Findings = list[tuple[str, list[Finding], str | None]]
    """What is found in each model, and the error if it could not be compiled."""


def add(commands: Subparsers[argparse.ArgumentParser]) -> None:
    """Add the subcommand with its arguments."""
    command = commands.add_parser(
        "check",
        help="exit with 1 if the passes leave a BatchNormalization, or float16 would overflow",
        description=(
            "Compile each MODEL in memory. Exit with 1 if a BatchNormalization stays, and say why."
            " With --float16, exit with 1 if a value, a constant or a sum would be lost by a plain"
            " conversion to float16, and list them. No model is written."
        ),
        epilog=f"{EPILOG} github: annotations of GitHub Actions; sarif: SARIF 2.1.0.",
    )
    command.add_argument("models", metavar="MODEL", nargs="+", help=MODEL)
    add_data(command)
    add_module_options(command)
    command.add_argument(
        "--all", action="store_true", help="also report other scales and shifts that stay"
    )
    command.add_argument(
        "--no-batchnorm",
        action="store_true",
        help="for devices without BatchNormalization, Mul and Add per channel: run BatchNormToConv"
        " last, and report every scale and shift per channel that stays",
    )
    command.add_argument(
        "--allow",
        action="append",
        default=[],
        metavar="REASON",
        help="do not report this reason code (repeatable)",
    )
    group = command.add_argument_group(
        "float16", "measures or predicts the range of every value, as irc compile --float16 does"
    )
    group.add_argument(
        "--float16",
        action="store_true",
        help="report what float16 would lose, and what irc compile --float16 does about it",
    )
    add_inputs(group)
    add_session_options(group)
    add_overflow(group)
    command.add_argument(
        "--format", default="text", choices=ENDINGS, help="form of the findings (default: text)"
    )
    command.add_argument(
        "-o", "--output", default="-", metavar="OUT", help="the findings (default: standard output)"
    )
    add_limits(command)


def run(options: argparse.Namespace) -> int:
    """Compile each model and write the findings; return 1 if there are any, or a compile fails."""
    from typing import get_args

    from ...backends.foldmap.entries import ReasonCode
    from ...passes import parse_pipeline
    from ...support.errors import UsageError, did_you_mean
    from ...support.output_paths import check_apart

    for code in options.allow:
        if code not in get_args(ReasonCode):
            raise UsageError(
                "--allow: there is no reason code"
                f" {code!r}{did_you_mean(code, get_args(ReasonCode))}"
            )
    check_once(*options.models)
    _check_float16(options)
    if options.data is not None and len(options.models) > 1:
        raise UsageError("--data goes with one model")
    name = options.models[0] if len(options.models) == 1 else "irc"
    complete_outputs(options, name, output=ENDINGS[options.format])
    check_apart(
        [options.output],
        [
            *options.models,
            *(data_file(model, options.data) for model in options.models),
            *options.inputs,
        ],
    )
    parse_pipeline(options.passes)
    found = [_check(model, options) for model in options.models]
    text = {"text": _text, "json": _json, "sarif": _sarif, "github": _github}[options.format](
        found, options
    )
    with writing_text(options.output, text):
        pass
    return int(any(findings or error is not None for _, findings, error in found))


def _check_float16(options: argparse.Namespace) -> None:
    """Raise UsageError for options that contradict --float16, or need it."""
    from ...support.errors import UsageError

    check_lone_float16(options)
    runs = {
        "--inputs": options.inputs,
        "--custom-ops": options.custom_ops,
        "--providers": options.providers,
    }
    lone = next((name for name, is_given in runs.items() if is_given), None)
    if lone is not None and not options.float16:
        raise UsageError(f"{lone} needs --float16, which runs the model")
    given = {
        "--all": options.all,
        "--no-batchnorm": options.no_batchnorm,
        "--allow": options.allow,
    }
    wrong = next((name for name, is_given in given.items() if is_given), None)
    if wrong is not None and options.float16:
        raise UsageError(f"{wrong} is about scales and shifts that stay, and --float16 is not")


def _check(model: str, options: argparse.Namespace) -> tuple[str, list[Finding], str | None]:
    """Return the name of a model, what is found in it, and the error of the compile."""
    from ...support.errors import IRError, UsageError, describe_error
    from ...support.output_paths import path_to_text

    name = path_to_text(model)
    find = _hazards if options.float16 else _affines
    try:
        found, warnings = find(module_of(model, options), options)
    except UsageError:
        raise
    except IRError as error:
        return name, [], describe_error(error).removeprefix(f"{name}: ")
    warn(f"{name}: {warning}" for warning in warnings)
    return name, found, None


def _hazards(module: Module, options: argparse.Namespace) -> tuple[list[Finding], list[str]]:
    """Return what float16 would lose, and warnings."""
    from ...compiler import compile as compile_model
    from ...support.errors import visible
    from ...support.extras import needing

    with needing("verify"):
        from ..float16.hazards import hazards
    folder = module.base_dir
    result = compile_model(module, options.passes, freeze_initializers=options.freeze_initializers)
    found = hazards(result, folder, wishes_of(options))
    return [
        Finding("float16", each.node, visible(each.sentence), each) for each in found
    ], result.warnings


def _affines(module: Module, options: argparse.Namespace) -> tuple[list[Finding], list[str]]:
    """Return the affines that stay, and warnings."""
    from ...compiler import compile as compile_model
    from .inspection import affine_facts

    passes = f"{options.passes},BatchNormToConv" if options.no_batchnorm else options.passes
    result = compile_model(module, passes, freeze_initializers=options.freeze_initializers)
    fold_map = result.fold_map
    affines = zip(affine_facts(fold_map), fold_map.sources, strict=True)
    left = [affine for affine, source in affines if _is_reported(affine, source, options)]
    return [
        Finding(str(affine["reason"]), affine["node"], _sentence(affine), affine) for affine in left
    ], result.warnings


def _is_reported(affine: AffineFacts, source: SourceEntry, options: argparse.Namespace) -> bool:
    """Return whether an affine stays, and the options ask for it."""
    if affine["status"] != "kept" or affine["reason"] in options.allow:
        return False
    if options.all or source["kind"] == "batch_norm":
        return True
    return bool(options.no_batchnorm) and source["axis"] is not None


def _sentence(affine: AffineFacts) -> str:
    from ...support.errors import visible

    return visible(
        f"{affine['op_type']} {affine['node']} stays ({affine['reason']}): {affine['detail']}"
    )


def _text(found: Findings, options: argparse.Namespace) -> str:
    nothing = "nothing would be lost in float16" if options.float16 else "nothing stays"

    def lines() -> Iterator[str]:
        for name, findings, error in found:
            if error is not None:
                yield f"{name}: {error}"
            elif not findings:
                yield f"{name}: {nothing}"
            elif options.float16:
                yield f"{name}: not safe in float16"
                yield from _table([each.record for each in findings])  # type: ignore[misc]
            else:
                yield from (f"{name}: {each.sentence}" for each in findings)

    return "".join(f"{line}\n" for line in lines())


def _table(hazards: Sequence[Hazard]) -> Iterator[str]:
    """Yield a line of headings and one for each hazard."""
    from ...support.errors import visible
    from ..float16.hazards import HEADINGS

    rows = [HEADINGS, *(tuple(map(visible, each.row())) for each in hazards)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()


def _json(found: Findings, options: argparse.Namespace) -> str:
    def entry(findings: list[Finding]) -> dict[str, object]:
        if options.float16:
            return {"left": [], "float16": [each.record.to_json() for each in findings]}  # type: ignore[union-attr]
        return {"left": [each.record for each in findings]}

    models = [{"model": name, "error": error, **entry(each)} for name, each, error in found]
    return json_text({**document_head("check"), "models": models})


def _github(found: Findings, options: argparse.Namespace) -> str:
    """Return workflow commands, in whose values the characters that end them are escaped."""

    def escaped(text: str, more: Sequence[str] = ()) -> str:
        for char in ("%", "\r", "\n", *more):
            text = text.replace(char, f"%{ord(char):02X}")
        return text

    def lines() -> Iterator[str]:
        for name, findings, error in found:
            file = escaped(name, (":", ","))
            if error is not None:
                yield f"::error file={file},title=irc::{escaped(error)}"
            for each in findings:
                yield (f"::warning file={file},title=irc {each.reason}::{escaped(each.sentence)}")

    return "".join(f"{line}\n" for line in lines())


def _sarif(found: Findings, options: argparse.Namespace) -> str:
    """Return a SARIF log: a rule for each reason code, a result for each finding."""
    from ...support.version import __version__

    results: list[dict[str, Any]] = []
    for name, findings, error in found:
        rows = [(each.reason, "warning", each.sentence, each.node) for each in findings]
        if error is not None:
            rows = [("model_error", "error", error, "")]
        for rule, level, sentence, node in rows:
            place: dict[str, Any] = {
                "physicalLocation": {
                    "artifactLocation": {"uri": _uri(name)},
                    "region": {"startLine": 1},
                }
            }
            if node:
                place["logicalLocations"] = [{"name": node, "kind": "element"}]
            results.append(
                {
                    "ruleId": rule,
                    "level": level,
                    "message": {"text": sentence},
                    "locations": [place],
                }
            )
    rules = [{"id": rule} for rule in sorted({str(result["ruleId"]) for result in results})]
    driver = {"name": "irc", "version": __version__, "rules": rules}
    return json_text(
        {
            "$schema": SARIF,
            "version": "2.1.0",
            "runs": [{"tool": {"driver": driver}, "results": results}],
        }
    )


def _uri(path: str) -> str:
    """Return a path as a relative URI: bytes other than plain characters are escaped."""
    plain = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~/")
    return "".join(
        chr(byte) if byte in plain else f"%{byte:02X}"
        for byte in path.encode("utf-8", "surrogateescape")
    )
