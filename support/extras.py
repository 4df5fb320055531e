"""Packages that a plain installation lacks, and how to install them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .errors import UsageError


class MissingPackageError(UsageError):
    """A package is not installed. The message has the command that installs it."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed: {install(extra)}")
        self.package = package


def install(extra: str) -> str:
    """Return the command that installs an extra of irc."""
    return f'pip install "irc-compiler[{extra}]"'


@contextmanager
def needing(extra: str) -> Iterator[None]:
    """Raise MissingPackageError if a package is missing that is imported within.

    The outermost `extra` is named.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingPackageError((error.name or "").partition(".")[0], extra) from None
    except MissingPackageError as error:
        raise MissingPackageError(error.package, extra) from None
