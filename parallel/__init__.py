"""Compile many models at once, each in a process of its own."""
