"""Readers of model formats: each lowers a model to an `irc.ir.Module`."""
