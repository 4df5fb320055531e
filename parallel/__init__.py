"""Run jobs at once, each protected from the crashes of the others."""
