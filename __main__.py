"""`python -m irc`."""

from .tools.cli.main import program

if __name__ == "__main__":
    raise SystemExit(program())
