"""The search for folds: chains of affines, plans, their choice and their commit."""
