"""Adapters: the statistics of a fold map in the forms that quantizers take."""
