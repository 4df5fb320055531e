"""The lexer of IR text: tokens, and errors that point at one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import NoReturn, TypeVar

from ...support.errors import LONGEST_NAME, ParseError
from ..types import DTYPES
from .literals import BARE, NUMBER, WORD, parse_string

T = TypeVar("T")
Mark = tuple[int, int]
"""A position in a text: the number of the line, and the number of the token in it."""

_STRING = r'"(?:[^"\\]|\\.)*+"'
_DIM = r"(?:\d{1,18}|[A-Za-z_]\w*|\?)"
_SIMPLE_TYPE = rf"(?:{'|'.join(DTYPES)}|onnx-?\d+|\?)\[(?:\*|{_DIM}(?:,{_DIM})*)?\]"
"""Matches a tensor type whose symbols are identifiers.

It is one token, because types are most of a text.
"""

_TOKEN = re.compile(
    rf"""(?:\s+|//.*)*+ ( [%@](?:{BARE}|{_STRING}?) | :: | [,:=(){{}}\[\]<>] | {_SIMPLE_TYPE}
    | {NUMBER} | b?{_STRING}? | onnx-\d+ | {WORD} | \#\w+ | . | $ )""",
    re.ASCII | re.VERBOSE,
)
_word = re.compile(WORD, re.ASCII).fullmatch
_integer = re.compile(r"-?\d{1,4000}", re.ASCII).fullmatch
_terminated = re.compile(rf"b?{_STRING}").fullmatch


def nearest(word: str, known: Iterable[str]) -> str:
    """Return a hint at the known words that `word` may be a misspelling of, or nothing."""
    close = get_close_matches(word, known)
    return f" (perhaps {' or '.join(close)})" if close else ""


class Lexer:
    """A cursor on the tokens of a text; `token` is the current one, empty at the end of the text.

    Lines are split into tokens one at a time; no token extends beyond its line.
    """

    def __init__(self, text: str, name: str) -> None:
        self.name = name
        self.lines = text.split("\n")
        self.line = -1
        self.index = 0
        self.tokens: list[str] = []
        self.token = ""
        self._fill()

    def _fill(self) -> None:
        """Advance to the next line that holds a token."""
        while self.line + 1 < len(self.lines):
            self.line += 1
            self.tokens = _TOKEN.findall(self.lines[self.line])
            if self.tokens[0]:
                self.index, self.token = 0, self.tokens[0]
                return
        self.index, self.token = -1, ""

    def next(self) -> str:
        """Return the current token and advance. The text must not be at its end."""
        token = self.token
        self.index += 1
        self.token = self.tokens[self.index]
        if not self.token:
            self._fill()
        return token

    def skip(self, token: str) -> bool:
        """Advance if the current token is `token`; return whether it was."""
        found = self.token == token
        if found:
            self.next()
        return found

    def expect(self, token: str) -> None:
        if self.token != token:
            self.fail(f"'{token}'")
        self.next()

    def listed(self, close: str, item: Callable[[], T]) -> list[T]:
        """Read items separated by commas, and `close`. The opening bracket has been read."""
        items: list[T] = []
        if self.token != close:
            items.append(item())
            while self.token == ",":
                self.next()
                items.append(item())
        if self.token != close:
            self.fail(f"',' or '{close}'")
        self.next()
        return items

    def mark(self) -> Mark:
        return self.line, self.index

    def fail(self, expected: str, at: Mark | None = None, found: str | None = None) -> NoReturn:
        raise self.error(expected, at, found)

    def error(self, expected: str, at: Mark | None = None, found: str | None = None) -> ParseError:
        """Return an error with line and caret at a position, by default the current token's."""
        if not self.token and at in (None, self.mark()):
            number = max((i for i, line in enumerate(self.lines) if line.strip()), default=0)
            column, token = len(self.lines[number].rstrip()), ""
        else:
            number, index = self.mark() if at is None else at
            match = [*_TOKEN.finditer(self.lines[number])][index]
            column, token = match.start(1), match[1]
        line = self.lines[number].rstrip("\r")
        if found is None:
            found = _shown(token)
        start = max(column - LONGEST_NAME // 2, 0) if len(line) > LONGEST_NAME else 0
        line, before = line[start : start + LONGEST_NAME], line[start:column]
        caret = re.sub(r"[^\t]", " ", before) + "^"
        return ParseError(
            f"{self.name}:{number + 1}:{column + 1}: expected {expected}, found"
            f" {found}\n{line}\n{caret}"
        )

    def string(self, expected: str = "a string") -> str:
        if self.token[:1] != '"':
            self.fail(expected)
        return self.unquoted(self.token, expected)

    def unquoted(self, literal: str, expected: str) -> str:
        """Return the text of `literal`, the quoted part of the current token, and advance."""
        try:
            text = parse_string(literal)
        except ValueError:
            self.fail(
                expected if _is_unterminated(literal) else r"the escapes \\, \" and \u{hex} only"
            )
        self.next()
        return text

    def name_after(self, sigil: str, expected: str) -> str:
        token = self.token
        if token[:1] != sigil or len(token) == 1:
            self.fail(expected)
        if token[1] == '"':
            return self.unquoted(token[1:], expected)
        self.next()
        return token[1:]

    def word(self, expected: str) -> str:
        if self.token[:1] == '"':
            return self.string(expected)
        if _word(self.token) is None:
            self.fail(expected)
        return self.next()

    def at_integer(self) -> bool:
        return _integer(self.token) is not None

    def integer(self, expected: str = "an integer") -> int:
        if not self.at_integer():
            self.fail(expected)
        return int(self.next())


def _shown(token: str) -> str:
    """Return the words that name a token in an error."""
    if _is_unterminated(token):
        return "an unterminated string"
    if not token:
        return "end of text"
    shown = token if len(token) <= LONGEST_NAME else f"{token[:LONGEST_NAME]}..."
    return f"'{shown}'"


def _is_unterminated(token: str) -> bool:
    """Return whether a token begins like a literal of a string or of bytes and has no end."""
    return '"' in token[:2] and _terminated(token.lstrip("%@")) is None
