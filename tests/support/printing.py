"""A job that prints, in a module that workers can import."""

from __future__ import annotations

import os


class Printing:
    """Print as C and as Python do. The text `died` ends the process."""

    def __init__(self, text: str) -> None:
        self.text = text

    def run(self) -> None:
        os.write(1, f"{self.text} of C\n".encode())
        print(f"{self.text} of Python")
        if self.text == "died":
            os._exit(3)

    def clean_up(self) -> None:
        """Nothing is left."""
