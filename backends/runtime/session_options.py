"""How models run: libraries of operators, and the providers that onnxruntime computes with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from onnx import TensorProto, helper

from ...support.errors import UsageError
from ...support.isolation import WorkerDiedError
from .remote_session import RemoteSession, RuntimeFailedError, chosen


@contextmanager
def session_options(
    *, custom_ops: Sequence[str | Path] = (), providers: Sequence[str] = ()
) -> Iterator[None]:
    """Run the models of the block with libraries of own operators, and on other processors.

        with irc.session_options(custom_ops=["libacme.so"]):
            irc.compile(model, verify=True)

    The options hold for the thread.

    Args:
        custom_ops: Shared libraries for onnxruntime's `register_custom_ops_library`. Their code
            runs in the process that runs models.
        providers: Names such as CUDAExecutionProvider, in the order of preference. The processor
            computes what they cannot, and without any it computes all. They compute float32 in
            float32, not in TF32.

    Raises:
        UsageError: A library does not load, or onnxruntime does not have a provider or cannot start
            it.
    """
    for name, given in (("custom_ops", custom_ops), ("providers", providers)):
        if isinstance(given, str | Path):
            raise UsageError(f"{name} is a list of names, not {str(given)!r} alone")
    libraries = [Path(library).absolute() for library in custom_ops]
    for library in libraries:
        if not library.is_file():
            raise UsageError(f"{library}: there is no such library")
    options = {"custom_ops": list(map(str, libraries)), "providers": list(providers)}
    token = chosen.set(options)
    try:
        if libraries or providers:
            _try_out()
        yield
    finally:
        chosen.reset(token)


def _try_out() -> None:
    """Raise UsageError unless a model of one operator loads with the chosen options."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "trial", [x], [y])
    opset = helper.make_opsetid("", 13)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=8)
    try:
        RemoteSession(model.SerializeToString())
    except RuntimeFailedError as error:
        raise UsageError(str(error)) from None
    except WorkerDiedError as error:
        raise UsageError(f"onnxruntime does not start with these options: {error}") from None
