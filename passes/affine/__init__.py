"""Channel affines: y = scale * x + shift with one number for each channel, and how they move through a graph.

- `algebra` says what an affine is, which operators are one, and what the operands of a layer do to it.
- `rules` has a rule for each operator: layers absorb an affine into their weights, and others let it pass.
- `units` are operators in a row that an affine passes or enters as one.
- `search` puts affines in a row, plans where they go, picks the cheapest plan, and commits it.
- `records` keep what the fold map is written from.
"""
