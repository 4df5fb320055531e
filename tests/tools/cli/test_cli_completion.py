"""`irc completion`: the scripts as the shells run them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from irc.tools.cli import COMMANDS
from irc.tools.cli.main import main


@pytest.fixture
def script(
    request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Path:
    """The script for a shell."""
    assert main(["completion", request.param]) == 0
    path = tmp_path / f"irc.{request.param}"
    path.write_text(capsys.readouterr().out)
    return path


CASES = {
    ("irc", "inspe"): ["inspect"],
    ("irc", "foldmap", ""): ["show", "check", "export", "recover"],
    ("irc", "compile", "--fold-map-"): ["--fold-map-store"],
    ("irc", "compile", "--fold-map-store", ""): ["npz", "inline"],
    ("irc", "foldmap", "check", "--he"): ["--help"],
    ("irc", "check", "-q", "--format", "s"): ["sarif"],
    ("irc", "completion", ""): ["bash", "zsh", "fish"],
    ("irc", "compile", "--passes", "Unf"): ["UnfuseBias"],
}

BASH = """
source "$0"
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _irc; printf '%s\\n' "${COMPREPLY[@]}"
"""


def found(command: list[str]) -> list[str]:
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert not done.stderr
    return [line.partition("\t")[0] for line in done.stdout.splitlines() if line]


@pytest.mark.parametrize("script", ["bash"], indirect=True)
def test_bash_completes(script: Path) -> None:
    for words, expected in CASES.items():
        assert sorted(found(["bash", "-c", BASH, str(script), *words])) == sorted(expected), words
    assert found(["bash", "-c", BASH, str(script), "irc", ""]) == list(COMMANDS)
    # bash takes the equals sign for a word, and after a comma another pass begins
    assert found(["bash", "-c", BASH, str(script), "irc", "compile", "--verify", "=", "th"]) == [
        "thorough"
    ]
    assert found(
        ["bash", "-c", BASH, str(script), "irc", "compile", "--passes", "FoldConstant,Unf"]
    ) == ["FoldConstant,UnfuseBias"]
    assert not found(
        ["bash", "-c", BASH, str(script), "irc", "compile", "-o", "irc"]
    )  # files are left to bash


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
@pytest.mark.parametrize("script", ["fish"], indirect=True)
def test_fish_completes(script: Path) -> None:
    for words, expected in CASES.items():
        command = f"source {script}; complete -C '{' '.join(words)}'"
        assert sorted(found(["fish", "-N", "-c", command])) == sorted(expected), words


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
@pytest.mark.parametrize("script", ["zsh"], indirect=True)
def test_zsh_reads_the_script(script: Path) -> None:
    assert not found(["zsh", "-n", str(script)])


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_option_of_every_command_is_in_the_script(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    import argparse

    from irc.tools.cli.main import parser

    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for action in parser()._actions:
        for command in (
            action.choices.values() if isinstance(action, argparse._SubParsersAction) else ()
        ):
            for option in command._actions:
                for name in option.option_strings:
                    assert (name if shell != "fish" else name.lstrip("-")) in script
