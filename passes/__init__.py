"""The passes."""
