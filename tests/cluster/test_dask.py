"""Many compiles on a cluster of Dask, by joblib's own back end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import harness
import irc
import joblib
import pytest
from harness import EXAMPLE
from irc.support import jobs

distributed = pytest.importorskip(
    "distributed", reason="distributed is not installed: make test-cluster"
)

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """A client of two workers, in whose compiles accidents happen.

    In this process none can be started.
    """
    monkeypatch.setenv("PYTHONPATH", str(harness.ROOT / "tests" / "support" / "accidents"))
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client:

        def refuse(*arguments: object, **options: object) -> None:
            raise OSError(1, "this is not a worker")

        monkeypatch.setattr(jobs._Worker, "__init__", refuse)
        yield client


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_cluster_compiles_the_same_bytes_and_isolates_the_same_failures(
    client: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["a", "segv", "b", "broken", "kill", "c"]
    paths = [tmp_path / f"{name}.onnx" for name in names]
    for path in paths:
        path.write_bytes(b"hello" if path.stem == "broken" else EXAMPLE.read_bytes())
    out, alone = tmp_path / "out", tmp_path / "alone"
    monkeypatch.chdir(tmp_path)
    with joblib.parallel_config("dask"):
        outcomes = irc.compile_many([path.name for path in paths], "out", fold_maps="out", jobs=-1)
    assert [outcome.error for outcome in outcomes] == [
        None,
        "ended by SIGSEGV",
        None,
        "this is not an ONNX model, or it is truncated",
        "ended by SIGKILL, as if memory runs out",
        None,
    ]
    alone.mkdir()
    for name in "abc":
        result = irc.compile(tmp_path / f"{name}.onnx")
        result.save(alone / f"{name}.irc.onnx", fold_map=alone / f"{name}.foldmap.json")
    assert files(out) == files(alone)
    assert len(client.scheduler_info()["workers"]) == 2  # type: ignore[attr-defined]
