"""Run a command and print its wall time, processor time, peak of memory in bytes, exit status, and if it was stopped.

    python -I -S benchmarks/launch.py SECONDS BYTES LOG COMMAND...

stops it after SECONDS, gives it at most BYTES of memory of its own (0 is no limit), and puts what it prints into LOG.
The kernel lets a process begin with the peak of the one that started it, so this one is small and starts nothing else.
"""

import os
import resource
import signal
import sys
import time


def start(limit, log, command):
    """The child: a process group of its own, so that what it starts ends with it."""
    os.setpgid(0, 0)
    if limit:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    try:
        os.execvp(command[0], command)
    finally:
        os._exit(127)


def main(seconds, limit, log, *command):
    begin = time.perf_counter()
    child = os.fork()
    if not child:
        start(int(limit), log, command)
    try:  # noqa: SIM105 (contextlib is not small)
        os.setpgid(child, child)
    except OSError:
        pass  # it runs the command, and so has its group
    stopped = []

    def stop(*_):
        stopped.append(True)
        os.killpg(child, signal.SIGKILL)

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, float(seconds))
    try:
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # there is something to stop until it is waited for below
    except KeyboardInterrupt:
        stop()
        raise
    wall = time.perf_counter() - begin
    signal.setitimer(signal.ITIMER_REAL, 0)
    _, status, usage = os.wait4(child, 0)
    code = os.waitstatus_to_exitcode(status)
    late = int(bool(stopped) and code == -signal.SIGKILL)
    print(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024, code, late)


main(*sys.argv[1:])
