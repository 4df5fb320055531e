"""Run a command; print wall time, processor time, peak bytes, exit status, 1 if it timed out.

    python -I -S benchmarks/launch.py SECONDS BYTES LOG COMMAND...

stops the command after SECONDS, limits its own memory to BYTES (0 is no limit), and writes its
output to LOG. On Linux the peak memory of a process starts at the peak of its parent, so this
program is small and runs one command only.
"""

import os
import resource
import signal
import sys
import time


def start(limit, log, command):
    """Run the command in this child as the leader of a group, so that its children end with it."""
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
    try:  # noqa: SIM105 (contextlib would raise the peak memory)
        os.setpgid(child, child)
    except OSError:
        pass  # the child runs the command already, so its group is set
    stopped = []

    def stop(*_):
        stopped.append(True)
        os.killpg(child, signal.SIGKILL)

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, float(seconds))
    try:
        os.waitid(
            os.P_PID, child, os.WEXITED | os.WNOWAIT
        )  # does not reap the child: `stop` may still signal it
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
