"""Writing the pieces of a serialized model.

They are bytes, parts of files, and payloads that are computed on the way.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO

from ...ir.payload import Block, FilePart, Payload, byte_view
from .background_writer import BackgroundWriter

Pieces = Sequence[bytes | Payload]
Tap = Callable[[Payload], Iterator[Block]]
"""Yields the blocks of a payload on their way to a file, and may observe them."""


def read_blocks(payload: Payload) -> Iterator[Block]:
    """Yield the blocks of `payload`: the tap that observes nothing."""
    return payload.blocks()


def write_pieces(stream: BinaryIO, pieces: Pieces, tap: Tap | None) -> None:
    """Write `pieces` to `stream`.

    Parts of files that need not pass through `tap` are copied by the system.
    """
    if len(pieces) == 1 and isinstance(pieces[0], bytes):
        stream.write(pieces[0])
        return
    with BackgroundWriter(stream) as background:
        for piece in pieces:
            if isinstance(piece, bytes):
                background.write(piece)
            elif tap is None and isinstance(piece, FilePart):
                background.drain()
                _copy(piece, stream)
            else:
                for block in (tap or read_blocks)(piece):
                    background.write(byte_view(block))


def _copy(part: FilePart, stream: BinaryIO) -> None:
    """Copy a part of a file, within the kernel as far as that is supported.

    The kernel may not move any byte.
    """
    stream.flush()
    done = 0
    try:
        while hasattr(os, "copy_file_range") and done < part.nbytes:
            count = os.copy_file_range(
                part.file.fileno(), stream.fileno(), part.nbytes - done, part.offset + done
            )
            if not count:
                break
            done += count
    except OSError:  # not supported by these file systems
        pass
    for block in FilePart(part.file, part.offset + done, part.nbytes - done).blocks():
        stream.write(byte_view(block))
