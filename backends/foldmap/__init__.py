"""The fold map: the fate of every affine of a source model, and the data that restores the source.

docs/fold_map.md explains the format; `schema.json` in this folder and the types in `entries` define
it.
"""
