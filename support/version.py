"""The version of irc."""

__version__ = "0.1.0"
