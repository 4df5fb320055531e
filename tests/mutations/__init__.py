"""Conditions of legality, dropped one at a time: `make test-mutations`, docs/mutations.md.

`conditions` finds the places, `runs` runs tests in processes of their own against a changed copy of
the package, `trials` tries the tests of each mutant, `known` keeps the outcomes of a run that was
stopped, and `page` writes them.
"""
