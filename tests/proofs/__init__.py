"""Proofs of the lines that stand beside the rules: `make proofs`, docs/proofs.md.

`statement` reads a line, `tensors` and `operators` give it three meanings (terms, numbers, a
model), `domains` lists the values of its variables, `terms` and `prover` prove it with z3, and
`report` writes what was proved.
"""
