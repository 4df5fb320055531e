"""`irc completion`: scripts that complete commands, options and their values in a shell."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from . import COMMANDS, command
from .options import Subparsers

TYPE_CHECKING = False  # of typing, which takes longer to import than the rest
if TYPE_CHECKING:
    from typing import Any

    Option = argparse.Action

PASS_OPTIONS = ("--passes", "--print-after")
"""Options whose values are names of passes."""

OTHER_VALUES = {
    "PASSES",
    "PASS",
    "N",
    "X",
    "E",
    "NODE",
    "REASON",
    "COMMAND",
    "NAME=LOW:HIGH",
    "NAME=1,3,...",
}
"""Metavariables of values that are not files."""


def add(commands: Subparsers[argparse.ArgumentParser]) -> None:
    """Add the subcommand with its arguments."""
    parser = commands.add_parser(
        "completion",
        help="print a script that completes commands and options in a shell",
        description=(
            "Print a script that completes commands, options, and their values: files, passes and"
            " choices."
        ),
    )
    parser.add_argument(
        "shell", choices=("bash", "zsh", "fish"), help="the shell that is to run the script"
    )


def run(options: argparse.Namespace) -> int:
    """Print the script."""
    from ...passes.catalog import CATALOG

    parsers = dict(_parsers())
    write = {"bash": _bash, "zsh": _zsh, "fish": _fish}[options.shell]
    sys.stdout.writelines(
        f"{line}\n" for line in write(parsers, ["default", "none", *sorted(CATALOG)])
    )
    return 0


def _parsers() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield the parser of `irc` and of every command, by the words that lead to it."""
    root = argparse.ArgumentParser(prog="irc")
    root.add_argument("--version", action="store_true", help="print the version and exit")
    commands = root.add_subparsers(dest="command")
    for name in COMMANDS:
        command(name).add(commands)
    waiting = [("irc", root)]
    while waiting:
        path, parser = waiting.pop()
        yield path, parser
        waiting += [(f"{path} {name}", inner) for name, inner in _subcommands(parser).items()]


def _subcommands(parser: argparse.ArgumentParser) -> dict[str, Any]:
    found = (
        action.choices
        for action in parser._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    return dict(next(found, {}))


def _summaries(parser: argparse.ArgumentParser) -> dict[str, str]:
    """Return the help of each subcommand."""
    actions = (
        action for action in parser._actions if isinstance(action, argparse._SubParsersAction)
    )
    return {
        choice.dest: choice.help or "" for action in actions for choice in action._choices_actions
    }


def _options(parser: argparse.ArgumentParser) -> list[Option]:
    return [action for action in parser._actions if action.option_strings]


def _takes_value(option: Option) -> bool:
    return option.nargs != 0


def _values(option: Option, passes: list[str]) -> list[str] | None:
    """Return the values that an option takes: None for files, an empty list if unknown."""
    if option.choices is not None:
        return [str(choice) for choice in option.choices]
    if any(name in PASS_OPTIONS for name in option.option_strings):
        return passes
    return [] if option.metavar in OTHER_VALUES or option.type is not None else None


def _bash(parsers: dict[str, argparse.ArgumentParser], passes: list[str]) -> Iterator[str]:
    yield (
        "# completion of irc for bash: irc completion bash >"
        " ~/.local/share/bash-completion/completions/irc"
    )
    yield "_irc() {"
    yield '    local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}" at=irc i'
    yield '    if [[ $cur == "=" ]]; then cur=""'
    yield '    elif [[ $prev == "=" ]]; then prev="${COMP_WORDS[COMP_CWORD-2]}"; fi'
    yield "    for ((i = 1; i < COMP_CWORD; i++)); do"
    yield '        case "$at ${COMP_WORDS[i]}" in'
    yield (
        f'            {"|".join(_quoted(path) for path in parsers if path != "irc")}) at+="'
        ' ${COMP_WORDS[i]}" ;;'
    )
    yield "        esac"
    yield "    done"
    yield "    COMPREPLY=()"
    yield '    case "$at $prev" in'
    for path, parser in parsers.items():
        for option in filter(_takes_value, _options(parser)):
            values = _values(option, passes)
            words = "|".join(_quoted(f"{path} {name}") for name in option.option_strings)
            if values is passes:
                # after a comma or a parenthesis another pass begins
                begun = '"${cur%"${cur##*[,(]}"}"'
                yield (
                    f'        {words}) COMPREPLY=($(compgen -P {begun} -W "{" ".join(passes)}" --'
                    ' "${cur##*[,(]}"))'
                )
                yield "            return ;;"
            elif values:
                yield (
                    f'        {words}) COMPREPLY=($(compgen -W "{" ".join(values)}" -- "$cur"));'
                    " return ;;"
                )
            elif option.nargs != "?":
                yield f"        {words}) return ;;"  # the shell completes files
    yield "    esac"
    yield '    case "$at" in'
    for path, parser in parsers.items():
        names = " ".join(name for option in _options(parser) for name in option.option_strings)
        inner = " ".join(_subcommands(parser))
        yield f"        {_quoted(path)})"
        yield f'            if [[ $cur == -* ]]; then COMPREPLY=($(compgen -W "{names}" -- "$cur"))'
        if words := inner or " ".join(_positional_choices(parser)):
            yield f'            else COMPREPLY=($(compgen -W "{words}" -- "$cur"))'
        yield "            fi ;;"
    yield "    esac"
    yield "}"
    yield "complete -o default -F _irc irc"


def _positional_choices(parser: argparse.ArgumentParser) -> list[str]:
    """Return the words that the arguments without a name may be, nothing for files."""
    actions = [
        action
        for action in parser._actions
        if not action.option_strings and action.choices is not None
    ]
    return [str(choice) for action in actions for choice in action.choices or ()]


def _zsh(parsers: dict[str, argparse.ArgumentParser], passes: list[str]) -> Iterator[str]:
    yield "#compdef irc"
    yield (
        "# completion of irc for zsh: irc completion zsh > ~/.zfunc/_irc, with fpath+=~/.zfunc"
        " before compinit"
    )
    for path, parser in parsers.items():
        yield f"{_function(path)}() {{"
        inner = _summaries(parser)
        lines = [line for option in _options(parser) for line in _zsh_option(option, passes)]
        if inner:
            yield "    local -a commands=("
            yield from (
                f"        {_quoted(f'{name}:{_specification(text)}')}"
                for name, text in inner.items()
            )
            yield "    )"
            lines += ["'1: :->command'", "'*:: :->arguments'"]
        else:
            words = " ".join(_positional_choices(parser))
            lines.append(f"'*:argument:({words})'" if words else "'*:file:_files'")
        yield "    local line state"
        yield f"    _arguments {'-C ' if inner else ''}\\"
        yield from (f"        {line} \\" for line in lines[:-1])
        yield f"        {lines[-1]}"
        if inner:
            yield "    case $state in"
            yield "        command) _describe command commands ;;"
            yield "        arguments)"
            yield "            case $line[1] in"
            yield from (
                f"                {name}) {_function(f'{path} {name}')} ;;" for name in inner
            )
            yield "            esac ;;"
            yield "    esac"
        yield "}"
    yield '_irc "$@"'


def _zsh_option(option: Option, passes: list[str]) -> Iterator[str]:
    values = _values(option, passes) if _takes_value(option) else None
    action = "_files"
    if values is not None:
        action = f"({' '.join(values)})" if values else " "
    for name in option.option_strings:
        text = f"*{name}" if isinstance(option, argparse._AppendAction) else name
        if _takes_value(option):
            is_optional = option.nargs == "?"
            joint = "=-" if is_optional else "=" * name.startswith("--")
            text += f"{joint}[{_specification(option.help)}]{'::' if is_optional else ':'}"
            text += f"{_specification(option.metavar or option.dest)}:{action}"
        else:
            text += f"[{_specification(option.help)}]"
        yield _quoted(text)


def _function(path: str) -> str:
    return f"_{path.replace(' ', '_').replace('-', '_')}"


def _fish(parsers: dict[str, argparse.ArgumentParser], passes: list[str]) -> Iterator[str]:
    yield "# completion of irc for fish: irc completion fish > ~/.config/fish/completions/irc.fish"
    yield "function __irc_at"
    yield "    set -l at irc"
    yield "    for token in (commandline -opc)[2..-1]"
    yield (
        '        if contains -- "$at $token"'
        f" {' '.join(_quoted(path) for path in parsers if path != 'irc')}"
    )
    yield '            set at "$at $token"'
    yield "        end"
    yield "    end"
    yield '    test "$at" = "$argv"'
    yield "end"
    for path, parser in parsers.items():
        head = f"complete -c irc -n {_quoted(f'__irc_at {path}')}"
        for name, text in _summaries(parser).items():
            yield f"{head} -f -a {name} -d {_quoted_for_fish(_text(text))}"
        for word in _positional_choices(parser) if not _subcommands(parser) else ():
            yield f"{head} -f -a {word}"
        for option in _options(parser):
            names = " ".join(
                f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}"
                for name in option.option_strings
            )
            takes = ""
            if _takes_value(option):
                values = _values(option, passes)
                takes = " -f" if option.nargs == "?" else " -x"
                if values is None:
                    takes = " -r"
                elif values:
                    takes += f" -a {_quoted(' '.join(values))}"
            yield f"{head} {names}{takes} -d {_quoted_for_fish(_text(option.help))}"


def _text(option: object) -> str:
    """Return a help text or a metavariable on one line."""
    return " ".join(str(option or "").replace("%%", "%").split())


def _specification(text: object) -> str:
    """Return a text as a part of a specification for zsh's _arguments, with escapes."""
    return "".join(f"\\{char}" if char in "\\:[]" else char for char in _text(text))


def _quoted(text: str) -> str:
    """Return a word in quotes for bash and zsh."""
    return "'" + text.replace("'", "'\\''") + "'"


def _quoted_for_fish(text: str) -> str:
    """Return a word in quotes, in which fish knows two escapes."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
