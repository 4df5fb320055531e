"""`irc check`: whether the passes leave a BatchNormalization, and why, for automatic checks."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

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
    json_text,
    module_of,
    warn,
    writing_text,
)

TYPE_CHECKING = False  # of typing, which takes longer to import than the rest
if TYPE_CHECKING:
    from typing import Any

    from ...backends.foldmap.entries import SourceEntry
    from .inspection import AffineFacts

    Findings = list[tuple[str, list[AffineFacts], str | None]]
    """For each model the affines that stay, and the error if it could not be compiled."""

SARIF = "https://json.schemastore.org/sarif-2.1.0.json"

ENDINGS = {"text": ".txt", "json": ".json", "sarif": ".sarif", "github": ".txt"}
"""The forms of findings, and the ends of their files in a folder."""


def add(commands: Subparsers[argparse.ArgumentParser]) -> None:
    """Add the subcommand with its arguments."""
    command = commands.add_parser(
        "check",
        help="exit with 1 if the passes leave a BatchNormalization, and say why",
        description=(
            "Compile each MODEL in memory. Exit with 1 if a BatchNormalization stays, and say why."
            " No model is written."
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
    if options.data is not None and len(options.models) > 1:
        raise UsageError("--data goes with one model")
    name = options.models[0] if len(options.models) == 1 else "irc"
    complete_outputs(options, name, output=ENDINGS[options.format])
    check_apart(
        [options.output],
        [*options.models, *(data_file(model, options.data) for model in options.models)],
    )
    parse_pipeline(options.passes)
    found = [_check(model, options) for model in options.models]
    text = {"text": _text, "json": _json, "sarif": _sarif, "github": _github}[options.format](found)
    with writing_text(options.output, text):
        pass
    return int(any(affines or error is not None for _, affines, error in found))


def _check(model: str, options: argparse.Namespace) -> tuple[str, list[AffineFacts], str | None]:
    """Return the name of a model, the affines that stay in it, and the error of the compile."""
    from ...compiler import compile as compile_model
    from ...support.errors import IRError, UsageError, describe_error
    from ...support.output_paths import path_to_text
    from .inspection import affine_facts

    name = path_to_text(model)
    try:
        module = module_of(model, options)
        passes = f"{options.passes},BatchNormToConv" if options.no_batchnorm else options.passes
        result = compile_model(module, passes, freeze_initializers=options.freeze_initializers)
        fold_map = result.fold_map
        affines = zip(affine_facts(fold_map), fold_map.sources, strict=True)
    except UsageError:
        raise
    except IRError as error:
        return name, [], describe_error(error).removeprefix(f"{name}: ")
    warn(f"{name}: {warning}" for warning in result.warnings)
    left = [affine for affine, source in affines if _is_reported(affine, source, options)]
    return name, left, None


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


def _text(found: Findings) -> str:
    def lines() -> Iterator[str]:
        for name, affines, error in found:
            if error is not None:
                yield f"{name}: {error}"
            elif not affines:
                yield f"{name}: nothing stays"
            for affine in affines:
                yield f"{name}: {_sentence(affine)}"

    return "".join(f"{line}\n" for line in lines())


def _json(found: Findings) -> str:
    models = [{"model": name, "error": error, "left": affines} for name, affines, error in found]
    return json_text({**document_head("check"), "models": models})


def _github(found: Findings) -> str:
    """Return workflow commands, in whose values the characters that end them are escaped."""

    def escaped(text: str, more: Sequence[str] = ()) -> str:
        for char in ("%", "\r", "\n", *more):
            text = text.replace(char, f"%{ord(char):02X}")
        return text

    def lines() -> Iterator[str]:
        for name, affines, error in found:
            file = escaped(name, (":", ","))
            if error is not None:
                yield f"::error file={file},title=irc::{escaped(error)}"
            for affine in affines:
                yield (
                    f"::warning file={file},title=irc"
                    f" {affine['reason']}::{escaped(_sentence(affine))}"
                )

    return "".join(f"{line}\n" for line in lines())


def _sarif(found: Findings) -> str:
    """Return a SARIF log: a rule for each reason code, a result for each affine that stays."""
    from ...support.version import __version__

    results: list[dict[str, Any]] = []
    for name, affines, error in found:
        rows = [
            (str(affine["reason"]), "warning", _sentence(affine), affine["node"])
            for affine in affines
        ]
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
