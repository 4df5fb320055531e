"""The rewrites of SimplifyExpr, grouped by what they are about; `table` has them all."""
