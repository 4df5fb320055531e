"""The IR: an SSA graph with use lists. See `graph` for its structure, `ops` for the operators, `text` for its text."""
