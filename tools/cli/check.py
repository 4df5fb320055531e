"""`irc check`: whether the passes leave a BatchNormalization, or float16 would overflow, and why.

It is for automatic checks.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence

from ...support.errors import IRError, UsageError, describe_error, did_you_mean, visible
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
    from ..float16.hazards import Hazard
    from .inspection import AffineFacts

SARIF = "https://json.schemastore.org/sarif-2.1.0.json"

ENDINGS = {"text": ".txt", "json": ".json", "sarif": ".sarif", "github": ".txt"}
"""The forms of findings, and the ends of their files in a folder."""


class Checked:
    """What is found in a model, by its name, or the `error` if it could not be compiled.

    It is affines that stay, or by narrow type what would be lost.
    """

    def __init__(
        self,
        name: str,
        affines: Sequence[AffineFacts] = (),
        hazards: Mapping[str, Sequence[Hazard]] | None = None,
        error: str | None = None,
    ) -> None:
        self.name, self.affines, self.hazards, self.error = name, affines, hazards or {}, error

    def findings(self) -> Iterator[tuple[str, str, str]]:
        """Yield the reason code, the node and the sentence of each."""
        for affine in self.affines:
            yield str(affine["reason"]), affine["node"], _sentence(affine)
        for hazards in self.hazards.values():
            for each in hazards:
                yield each.dtype, each.node, visible(each.sentence)


def add(commands: Subparsers[argparse.ArgumentParser]) -> None:
    """Add the subcommand with its arguments."""
    command = commands.add_parser(
        "check",
        help="exit with 1 if the passes leave a BatchNormalization, or float16 would overflow",
        description=(
            "Compile each MODEL in memory. Exit with 1 if a BatchNormalization stays, and say why."
            " With --float16 or --bfloat16, exit with 1 if a value, a constant or a sum would be"
            " lost by a plain conversion, and list them. No model is written."
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
    group.add_argument(
        "--bfloat16",
        action="store_true",
        help="report what bfloat16 would lose; with --float16, what each would",
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
    return int(any(each.error is not None or any(each.findings()) for each in found))


def _types(options: argparse.Namespace) -> list[str]:
    """Return the narrow types that are asked about."""
    return [name for name in ("float16", "bfloat16") if getattr(options, name)]


def _check_float16(options: argparse.Namespace) -> None:
    """Raise UsageError for options that contradict --float16 and --bfloat16, or need one."""
    check_lone_float16(options)
    is_narrow = bool(_types(options))
    runs = {
        "--inputs": options.inputs,
        "--custom-ops": options.custom_ops,
        "--providers": options.providers,
    }
    lone = next((name for name, is_given in runs.items() if is_given), None)
    if lone is not None and not is_narrow:
        raise UsageError(f"{lone} needs --float16, which runs the model")
    given = {
        "--all": options.all,
        "--no-batchnorm": options.no_batchnorm,
        "--allow": options.allow,
    }
    wrong = next((name for name, is_given in given.items() if is_given), None)
    if wrong is not None and is_narrow:
        raise UsageError(f"{wrong} is about scales and shifts that stay, and --float16 is not")


def _check(model: str, options: argparse.Namespace) -> Checked:
    """Return what is found in a model, or the error of the compile."""
    from ...support.output_paths import path_to_text

    name = path_to_text(model)
    warnings: list[str] = []
    try:
        if types := _types(options):
            found = {dtype: _hazards(model, options, dtype, warnings) for dtype in types}
            checked = Checked(name, hazards=found)
        else:
            checked = Checked(name, _affines(model, options, warnings))
    except UsageError:
        raise
    except IRError as error:
        return Checked(name, error=describe_error(error).removeprefix(f"{name}: "))
    warn(f"{name}: {warning}" for warning in dict.fromkeys(warnings))
    return checked


def _hazards(
    model: str, options: argparse.Namespace, dtype: str, warnings: list[str]
) -> list[Hazard]:
    """Return what a narrow type would lose, and add warnings."""
    from ...compiler import compile as compile_model
    from ...support.extras import needing

    with needing("verify"):
        from ..float16.hazards import hazards
    module = module_of(model, options)
    folder = module.base_dir
    result = compile_model(module, options.passes, freeze_initializers=options.freeze_initializers)
    warnings += result.warnings
    return hazards(result, folder, wishes_of(options, dtype))


def _affines(model: str, options: argparse.Namespace, warnings: list[str]) -> list[AffineFacts]:
    """Return the affines that stay, and add warnings."""
    from ...compiler import compile as compile_model
    from .inspection import affine_facts

    module = module_of(model, options)
    passes = f"{options.passes},BatchNormToConv" if options.no_batchnorm else options.passes
    result = compile_model(module, passes, freeze_initializers=options.freeze_initializers)
    fold_map = result.fold_map
    warnings += result.warnings
    affines = zip(affine_facts(fold_map), fold_map.sources, strict=True)
    return [affine for affine, source in affines if _is_reported(affine, source, options)]


def _is_reported(affine: AffineFacts, source: SourceEntry, options: argparse.Namespace) -> bool:
    """Return whether an affine stays, and the options ask for it."""
    if affine["status"] != "kept" or affine["reason"] in options.allow:
        return False
    if options.all or source["kind"] == "batch_norm":
        return True
    return bool(options.no_batchnorm) and source["axis"] is not None


def _sentence(affine: AffineFacts) -> str:
    return visible(
        f"{affine['op_type']} {affine['node']} stays ({affine['reason']}): {affine['detail']}"
    )


def _text(found: Sequence[Checked], options: argparse.Namespace) -> str:
    def lines() -> Iterator[str]:
        for each in found:
            if each.error is not None:
                yield f"{each.name}: {each.error}"
            elif not each.hazards and not each.affines:
                yield f"{each.name}: nothing stays"
            yield from (f"{each.name}: {_sentence(affine)}" for affine in each.affines)
            for dtype, hazards in each.hazards.items():
                if hazards:
                    yield f"{each.name}: not safe in {dtype}"
                    yield from _table(hazards, dtype)
                else:
                    yield f"{each.name}: nothing would be lost in {dtype}"

    return "".join(f"{line}\n" for line in lines())


def _table(hazards: Sequence[Hazard], dtype: str) -> Iterator[str]:
    """Yield a line of headings and one for each hazard."""
    from ..float16.hazards import HEADINGS

    headings = *HEADINGS, f"irc compile --{dtype}"
    rows = [headings, *(tuple(map(visible, each.row())) for each in hazards)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()


def _json(found: Sequence[Checked], options: argparse.Namespace) -> str:
    models = [
        {
            "model": each.name,
            "error": each.error,
            "left": each.affines,
            **{
                dtype: [hazard.to_json() for hazard in each.hazards.get(dtype, ())]
                for dtype in _types(options)
            },
        }
        for each in found
    ]
    return json_text({**document_head("check"), "models": models})


def _github(found: Sequence[Checked], options: argparse.Namespace) -> str:
    """Return workflow commands, in whose values the characters that end them are escaped."""

    def escaped(text: str, more: Sequence[str] = ()) -> str:
        for char in ("%", "\r", "\n", *more):
            text = text.replace(char, f"%{ord(char):02X}")
        return text

    def lines() -> Iterator[str]:
        for each in found:
            file = escaped(each.name, (":", ","))
            if each.error is not None:
                yield f"::error file={file},title=irc::{escaped(each.error)}"
            for reason, _, sentence in each.findings():
                yield f"::warning file={file},title=irc {reason}::{escaped(sentence)}"

    return "".join(f"{line}\n" for line in lines())


def _sarif(found: Sequence[Checked], options: argparse.Namespace) -> str:
    """Return a SARIF log: a rule for each reason code, a result for each finding."""
    from ...support.version import __version__

    results: list[dict[str, Any]] = []
    for each in found:
        rows = [(reason, "warning", text, node) for reason, node, text in each.findings()]
        if each.error is not None:
            rows = [("model_error", "error", each.error, "")]
        for rule, level, sentence, node in rows:
            place: dict[str, Any] = {
                "physicalLocation": {
                    "artifactLocation": {"uri": _uri(each.name)},
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
