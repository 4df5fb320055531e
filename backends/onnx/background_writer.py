"""Writing blocks in another thread."""

from __future__ import annotations

import threading
from errno import EAGAIN
from queue import Queue
from types import TracebackType
from typing import BinaryIO

from ...ir.payload import BLOCK

QUEUED_BLOCKS = 4
"""Blocks that wait to be written: few, because they are large."""

SMALL = 64 << 10
"""Blocks of fewer bytes are joined: waking the thread takes longer than writing them."""


class BackgroundWriter:
    """A writer of blocks in a thread of its own.

    The next block is computed while one is written. Writing is half of the time of a large compile,
    and releases the interpreter lock. An error is raised by the next call, at the latest by
    `__exit__`.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._blocks: Queue[bytes | memoryview | None] = Queue(QUEUED_BLOCKS)
        self._small: list[bytes | memoryview] = []
        self._gathered = 0
        """Bytes of `_small`, which are written before the next block."""
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> BackgroundWriter:
        try:
            self._thread.start()
        except RuntimeError as error:
            raise OSError(EAGAIN, str(error)) from None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None and self._error is None:
            self._error = error  # the thread discards the rest
        self._hand_over()
        self._blocks.put(None)
        self._thread.join()
        if kind is None:
            self._check()

    def write(self, block: bytes | memoryview) -> None:
        """Queue `block`, which must not change any more.

        Raises OSError if an earlier block could not be written.
        """
        self._check()
        if len(block) < SMALL:
            self._small.append(block)
            self._gathered += len(block)
            if self._gathered < BLOCK:
                return
            self._hand_over()
        else:
            self._hand_over()
            self._blocks.put(block)

    def drain(self) -> None:
        """Wait until all blocks are written. Raises OSError as `write`."""
        self._hand_over()
        self._blocks.join()
        self._check()

    def _hand_over(self) -> None:
        if self._small:
            self._blocks.put(b"".join(self._small))
            self._small, self._gathered = [], 0

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        while (block := self._blocks.get()) is not None:
            try:
                if self._error is None:
                    self._stream.write(block)
            except BaseException as error:
                self._error = error
            self._blocks.task_done()
