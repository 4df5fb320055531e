"""What the zoo promises.

Unique names, fixed bytes, valid where it says so, nothing of the format left out.
"""

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest
import zoo
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from onnx import AttributeProto, ModelProto, TensorProto, onnx_ml_pb2

Seen = dict[tuple[str, str], set[int]]

UNREACHABLE = {
    "SequenceProto": "onnx-data.proto, no part of a model",
    "MapProto": "onnx-data.proto, no part of a model",
    "OptionalProto": "onnx-data.proto, no part of a model",
}
"""Messages no model can hold, with the reason."""

UNSET: dict[str, str] = {}
"""Fields no model sets, as `Message.field`, with the reason."""


def digests() -> dict[str, str]:
    """The hash of each model's bytes."""
    return {
        name: hashlib.sha256(model.SerializeToString()).hexdigest() for name, model in zoo.models()
    }


@pytest.fixture(scope="module")
def internal() -> list[tuple[str, ModelProto]]:
    """All models without external data."""
    return list(zoo.models())


@pytest.fixture(scope="module")
def external(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, Path]]:
    """All models with external data, written once."""
    return list(zoo.external_models(tmp_path_factory.mktemp("external")))


@pytest.fixture(scope="module")
def seen(internal: list[tuple[str, ModelProto]], external: list[tuple[str, Path]]) -> Seen:
    """Every field set in some model, with the enum and integer values of the few that matter."""
    result: Seen = {}
    for _, model in internal:
        collect(model, result)
    for _, path in external:
        collect(onnx.load(path, load_external_data=False), result)
    return result


def collect(message: Message, result: Seen) -> None:
    """Note the fields the message sets, and those of the messages in it."""
    stack = [message]
    while stack:
        item = stack.pop()
        for field, content in item.ListFields():
            values = result.setdefault(
                (item.DESCRIPTOR.full_name.removeprefix("onnx."), field.name), set()
            )
            if field.type == FieldDescriptor.TYPE_MESSAGE:
                stack.extend(content if field.is_repeated else [content])
            elif field.name in ("type", "data_type", "elem_type"):
                values.add(content)


def fields() -> Iterator[tuple[str, str]]:
    """Every field of every message a model can hold."""
    pending = [ModelProto.DESCRIPTOR]
    known = {ModelProto.DESCRIPTOR.full_name}
    while pending:
        message = pending.pop()
        for field in message.fields:
            yield message.full_name.removeprefix("onnx."), field.name
            if field.message_type is not None and field.message_type.full_name not in known:
                known.add(field.message_type.full_name)
                pending.append(field.message_type)


def test_names_are_unique_and_there_are_many(
    internal: list[tuple[str, ModelProto]], external: list[tuple[str, Path]]
) -> None:
    names = [name for name, _ in internal] + [name for name, _ in external]
    assert len(set(names)) == len(names)
    assert len(internal) >= 850
    assert len(external) >= 30
    assert sum(not zoo.is_odd(name) for name in names) >= 650


def test_bytes_are_the_same_in_another_process(internal: list[tuple[str, ModelProto]]) -> None:
    here = digests()
    assert here == {
        name: hashlib.sha256(model.SerializeToString()).hexdigest() for name, model in internal
    }
    script = "import test_zoo; print(sorted(test_zoo.digests().items()))"
    tests = Path(__file__).parent
    path = os.pathsep.join(map(str, (tests, tests / "support")))
    environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": path}
    there = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert there.stdout.strip() == str(sorted(here.items()))


def test_external_files_are_the_same_again(
    external: list[tuple[str, Path]], tmp_path: Path
) -> None:
    for (name, path), (again, twin) in zip(external, zoo.external_models(tmp_path), strict=True):
        files, twins = (
            {
                file.relative_to(folder): file.read_bytes()
                for file in sorted(folder.rglob("*"))
                if file.is_file()
            }
            for folder in (path.parent, twin.parent)
        )
        assert (name, files) == (again, twins)


def test_models_parse_back_unchanged(internal: list[tuple[str, ModelProto]]) -> None:
    for name, model in internal:
        data = model.SerializeToString()
        parsed = onnx.load_model_from_string(data)
        assert parsed == model, name
        assert parsed.SerializeToString() == data, name


def test_models_that_are_not_odd_pass_the_checker(
    internal: list[tuple[str, ModelProto]], external: list[tuple[str, Path]]
) -> None:
    failures = {}
    cases: list[tuple[str, ModelProto | str]] = [
        *internal,
        *((name, str(path)) for name, path in external),
    ]
    for name, model in cases:
        if not zoo.is_odd(name):
            try:
                onnx.checker.check_model(model)
            except onnx.checker.ValidationError as error:
                failures[name] = str(error)
    if onnx.__version__.startswith("1.22."):  # its checker does not know that name of ONNX's domain
        assert "No opset import" in failures.pop("domain/imported_ai_onnx_used_empty")
    assert not failures


def test_external_data_loads(external: list[tuple[str, Path]]) -> None:
    for name, path in external:
        if not zoo.is_odd(name):
            onnx.load(path)


def test_every_data_type_occurs(seen: Seen) -> None:
    wanted = set(TensorProto.DataType.values()) - {TensorProto.UNDEFINED}
    assert wanted <= seen["TensorProto", "data_type"]
    assert wanted <= seen["TypeProto.Tensor", "elem_type"]


def test_every_attribute_type_occurs(seen: Seen) -> None:
    assert set(AttributeProto.AttributeType.values()) <= seen["AttributeProto", "type"]


def test_every_field_is_set_somewhere(seen: Seen) -> None:
    missing = {f"{message}.{field}" for message, field in fields()} - {
        ".".join(key) for key in seen
    }
    assert missing == set(UNSET)


def test_every_message_is_reachable() -> None:
    reached = {message.partition(".")[0] for message, _ in fields()}
    assert set(onnx_ml_pb2.DESCRIPTOR.message_types_by_name) - reached <= set(UNREACHABLE)
