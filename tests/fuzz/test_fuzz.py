"""A few seconds of the fuzz harness, and grammars by hypothesis.

docs/testing.md has the long run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import irc
import pytest
from harness import ROOT
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from irc.backends.foldmap.fold_map import FoldMap
from irc.support.errors import FoldMapError, ModelError, ParseError

from fuzz.mutate import TOKEN, WORDS
from fuzz.targets import TARGETS

SECONDS = float(os.environ.get("IRC_FUZZ_SECONDS", "1"))
"""For each target. `make fuzz`, which `.ci/run` calls, has the same cases and many more."""
SEED = os.environ.get("IRC_SEED", "0")
SMALL = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_mutated_files_are_refused_or_right(target: str, record_property: Any) -> None:
    words = [
        sys.executable,
        str(ROOT / "tests" / "fuzz"),
        "--target",
        target,
        "--executions",
        "1000000000",
    ]
    words += ["--minutes", str(SECONDS / 60), "--seed", SEED]
    found = subprocess.run(
        words, capture_output=True, text=True, timeout=SECONDS + 120, check=False
    )
    assert not found.returncode, found.stdout[-8000:] + found.stderr[-2000:]
    record_property("compared", f"fuzz: {found.stdout.strip()}")


TEXT = """module {ir_version=9, opsets={"": 17}}

graph @g(%x: f32[N,3]) {
  %w = constant {value=f32[3] [1, 2.5, nan]}
  %y = multiply(%x, %w) {axis=1} : f32[N,3] loc("n")
  %z = "d::F"(%y, _) {a=[1, 2], b="s", c=type seq<f32[*]>} {
    graph @b() {
      return(%y)
    }
  }
  return(%z as %"odd name")
}
"""
TOKENS = sorted({*TOKEN.findall(TEXT), *WORDS})


@SMALL
@given(
    st.lists(st.sampled_from(TOKENS), max_size=40), st.integers(0, len(TEXT)), st.integers(0, 40)
)
def test_text_of_tokens_is_refused_or_printed_as_it_was(
    tokens: list[str], place: int, count: int
) -> None:
    try:
        module = irc.parse(TEXT[:place] + " ".join(tokens) + TEXT[place + count :])
    except ParseError:
        return
    assert str(irc.parse(str(module))) == str(module)


@SMALL
@given(st.binary(max_size=300))
def test_bytes_are_a_model_or_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m.onnx").write_bytes(content)
    try:
        module = irc.load(tmp_path / "m.onnx")
    except ModelError:
        return
    assert irc.emit(module).model == module.source


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["f32", "npz", "inline"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=12,
)
DOCUMENT = {
    "format": "irc.fold_map",
    "version": "1.0",
    "sources": [],
    "layers": [],
    "statistics": [],
    "history": [],
}
KEYS = (*DOCUMENT, "producer", "source_model", "folded_model", "restore", "tensor_store")


@SMALL
@given(st.dictionaries(st.sampled_from(KEYS), JSON, max_size=4), st.booleans())
def test_documents_are_fold_maps_or_refused(
    tmp_path: Path, changes: dict[str, Any], whole: bool
) -> None:
    (tmp_path / "map.json").write_text(json.dumps({**(DOCUMENT if whole else {}), **changes}))
    with pytest.raises(FoldMapError):
        FoldMap.load(tmp_path / "map.json")
