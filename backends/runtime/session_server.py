"""The process that runs models for irc: its sessions may crash.

It imports neither onnx nor the rest of irc.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import onnxruntime

from ...support.isolation import answer_stream, limited_time
from .messages import Array
from .sessions import new_session
from .wire import decode, encode, enlarge_pipe, read_message, write_message

Sessions = dict[int, onnxruntime.InferenceSession]


def main() -> None:
    """Answer requests until irc closes the pipe."""
    answers, sessions = answer_stream(), Sessions()
    enlarge_pipe(answers)
    while (message := read_message(sys.stdin.buffer)) is not None:
        request, arrays, model = message
        found: list[Array] = []
        try:
            for number in request["closed"]:
                sessions.pop(number, None)
            if "feeds" in request:
                session = sessions[request["number"]]
                head = _run(session, request["feeds"], arrays, found, shrink=request["shrink"])
            else:
                head = _open(sessions, request, model)
        except Exception as error:  # onnxruntime raises types of its own, and RuntimeError
            head, found = {"error": str(error)}, []
        del message, arrays, model  # the memory is for the answer
        write_message(answers, head, found)


def _open(sessions: Sessions, request: dict[str, Any], model: bytes) -> dict[str, Any]:
    folder = None if request["folder"] is None else Path(request["folder"])
    with limited_time(request["seconds"]):
        options = {key: request[key] for key in ("threads", "reuse", "optimize")}
        session = new_session(model, folder, **options, **request["options"])
    sessions[request["number"]] = session
    return {
        "inputs": [entry.name for entry in session.get_inputs()],
        "overridable": [entry.name for entry in session.get_overridable_initializers()],
        "outputs": [entry.type for entry in session.get_outputs()],
    }


def _run(
    session: onnxruntime.InferenceSession,
    feeds: dict[str, Any],
    arrays: Sequence[Array],
    found: list[Array],
    *,
    shrink: bool,
) -> dict[str, Any]:
    """Run a session, and append the arrays of its results to `found`."""
    given = {}
    for name, (text, elem_type) in feeds.items():
        value = decode(text, arrays)
        if elem_type:  # a type that numpy does not have
            value = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(value, elem_type)
        given[name] = value
    # several sessions wait for their next run: each frees its memory after one
    options = onnxruntime.RunOptions()
    if shrink:
        options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    start = perf_counter()
    results = session.run(None, given, options)
    seconds = perf_counter() - start
    return {"values": [encode(value, found) for value in results], "seconds": seconds}
