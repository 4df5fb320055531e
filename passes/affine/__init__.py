"""Channel affines: y = scale * x + shift with one number for each channel, and how they move through a graph.

- `algebra` defines an affine, `recognise` finds operators that are one, and `chains` puts them in a row.
- `table` has a rule for each operator: `layers` absorb an affine into their weights, and `derived_rules`, `broadcast`,
  `clipping` and `concatenation` let it pass.
- `planner` searches, `choice` picks the cheapest way, `commit` writes it, and `folding` drives all three.
- `source_affines`, `fold_records` and `statistics` keep the records that the fold map is written from.
"""
