"""How an affine passes each operator: rules derived from rows, and rules of layers."""
