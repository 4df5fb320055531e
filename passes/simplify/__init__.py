"""The rules of SimplifyExpr, one module a subject; `rule_set` has the table of all of them."""
