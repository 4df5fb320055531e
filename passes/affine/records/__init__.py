"""The records of folds and statistics that the fold map is written from."""
