"""Processes for work that may crash, run forever or take all memory."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from multiprocessing import Process

import pytest
from irc.support.isolation import Worker, WorkerDiedError, run_in_fork


@pytest.fixture
def worker() -> Worker:
    return Worker("obedient")


def is_alive(pid: int) -> bool:
    return subprocess.run(["ps", "-p", str(pid)], capture_output=True, check=False).returncode == 0


def test_one_process_answers_all_requests_and_ends(worker: Worker) -> None:
    pids = {worker.ask(b"who", 5) for _ in range(3)}
    assert len(pids) == 1
    assert worker.ask(b"interrupt", 5) == b"tpurretni"
    large = os.urandom(1 << 24)
    assert worker.ask(large, 5) == large[::-1]
    (pid,) = map(int, pids)
    assert is_alive(pid)
    worker.close()
    assert not is_alive(pid)
    assert worker.crashes == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("order", "reason"),
    [
        (b"crash", "ended by SIGSEGV"),
        (b"loop", "took more than 1 s"),
        (b"memory", "its process ended with exit status 1"),
        (b"exit", "its process ended with exit status 3"),
    ],
)
def test_a_process_that_ends_is_replaced(worker: Worker, order: bytes, reason: str) -> None:
    before = worker.ask(b"who", 5)
    with pytest.raises(WorkerDiedError, match=reason):
        worker.ask(order, 1)
    assert worker.crashes == 1
    assert worker.ask(b"who", 5) != before
    worker.close()


@pytest.mark.slow
def test_time_counts_for_each_request(worker: Worker) -> None:
    """The limit on processor time is one on a whole process: each request raises it."""
    for _ in range(2):
        with pytest.raises(WorkerDiedError, match="took more than 1 s"):
            worker.ask(b"loop", 1)
    assert worker.ask(b"abc", 1) == b"cba"
    worker.close()


def test_a_daemonic_process_may_have_a_worker() -> None:
    process = Process(target=_use, daemon=True)
    process.start()
    process.join(60)
    assert process.exitcode == 0


def _use() -> None:
    worker = Worker("obedient")
    assert worker.ask(b"abc", 5) == b"cba"
    worker.close()


@pytest.mark.skipif(os.name != "posix", reason="there is no fork")
@pytest.mark.parametrize(
    ("work", "result"),
    [
        (lambda content: content[::-1], b"cba"),
        (lambda content: os.kill(os.getpid(), signal.SIGSEGV) or content, None),
        (lambda content: bytes(1 << 36), None),
        (lambda content: content[10], None),
    ],
)
def test_a_fork_gives_a_result_or_none(
    work: Callable[[bytes], bytes], result: bytes | None
) -> None:
    assert run_in_fork(work, b"abc", 5) == result
