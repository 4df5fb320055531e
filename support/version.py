"""The version of irc."""

__version__ = "0.2.0"
