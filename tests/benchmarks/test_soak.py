"""What compiles leave in their process: nothing.

`make soak` is the long run, and looks at memory, too.
"""

from __future__ import annotations

import subprocess
import sys

import harness
import pytest

SCRIPT = harness.ROOT / "benchmarks" / "soak.py"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_hundreds_of_compiles_leave_no_object_and_no_file() -> None:
    command = [sys.executable, SCRIPT, "--compiles", "480", "--models", "60", "--bytes", "inf"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split() for line in done.stdout.splitlines()[1:-2]]
    assert int(rows[-1][0]) >= 480
    assert len({tuple(row[3:]) for row in rows[4:]}) == 1
