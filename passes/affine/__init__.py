"""Channel affines y = scale * x + shift, one number a channel, and how they move in a graph.

- `algebra` defines affines, the operators that are affines, and the operands of layers.
- `rules` has a rule for each operator: layers absorb an affine into their weights, and others let
  it pass.
- `units` are operators in a row that an affine passes or enters as one.
- `search` puts affines in a row, plans where they go, picks the cheapest plan, and commits it.
- `records` are the source of the fold map.

| word | meaning |
| --- | --- |
| Affine | scale and shift along an axis, without a place in the graph; a row of Stages |
| AffineOp | an Affine as it stands in the graph: the nodes that turn its data into its result |
| Chain | AffineOps in a row, each the only reader of the one before |
| AffineRule | how an operator passes an Affine at its result (backward) or operand (forward) |
| Transfer | the answer of an operator that it passes: the Affines of operands or results |
| Fold | the answer of a layer that absorbs it: the numbers to write into weight and bias |
| Change | a Transfer or a Fold at one node |
| Plan | the Changes that together make an Affine disappear, and their cost |
| Choice | a Plan for a Chain, and the operators that take the place of its rest |
| Refused, Refusal | a rule of an Affine does not apply: the exception, and its recorded reason |
| Declined | the exception of any other rule that does not apply |
| SourceAffine | an affine of the source model, as it stood there |
| FoldedAffine | its share in a Layer, a node that absorbed affines; FoldRecords has all |
"""
