"""What the Python functions say of arguments that they do not take: one sentence that says what to
write instead.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import irc
import numpy as np
import onnx
import pytest
from irc.passes import Timing

EXAMPLE = harness.ROOT / "examples" / "digits_cnn.onnx"
MISTAKES: dict[str, tuple[Callable[[Any], object], str]] = {
    "one path": (lambda model: irc.compile_many("net.onnx"), "give a list of paths: ['net.onnx']"),
    "model in memory": (
        lambda model: irc.compile_many([model]),
        "ModelProto is no path of a model: irc.compile takes",
    ),
    "shape without name": (
        lambda model: irc.compile(model, input_shapes=(1, 1, 8, 8)),
        "input_shapes are given by name: write {'image': (1, 3, 224, 224)}",
    ),
    "shape as text": (
        lambda model: irc.compile(model, input_shapes={"image": "1,1,8,8"}),
        "'1,1,8,8' is no shape of input 'image': write (1, 3, 224, 224)",
    ),
    "instruments": (
        lambda model: irc.compile(model, context=[Timing()]),
        "list is no PassContext: write context=PassContext([Timing()])",
    ),
    "no pass": (lambda model: irc.compile(model, ""), "name a pass, `default`, or `none`"),
    "output": (
        lambda model: irc.compile(model, "out.onnx"),
        "to write a result: irc.compile(model).save('out.onnx')",
    ),
    "fold map": (
        lambda model: irc.compile(model).save("out.onnx", fold_map=True),
        "fold_map is the path of the fold map, not True",
    ),
    "range without name": (
        lambda model: irc.quantize(model, input_ranges=(0, 1)),
        "ranges are given by name: write {'image': (low, high)}",
    ),
    "data without name": (
        lambda model: irc.quantize(model, data=np.zeros((4, 1, 8, 8), np.float32)),
        "data are a path, or arrays by the names of the inputs: write {'image': ...}",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_one_sentence(
    mistake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    call, expected = MISTAKES[mistake]
    with pytest.raises(irc.UsageError) as error:
        call(onnx.load(EXAMPLE))
    assert expected in str(error.value) and "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())
