"""Parts of the onnx package, imported without the rest of it.

The whole package adds 18 % to the smallest compile (40 ms), 5 % to DenseNet-121. The parts are
its own modules, whichever is imported first.
"""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onnx.defs import OpSchema


def onnx_part(name: str) -> Any:
    """Return the module `onnx.name`, if possible without importing the package."""
    full = f"onnx.{name}"
    if full in sys.modules:
        return sys.modules[full]
    package = PathFinder.find_spec("onnx") if "onnx" not in sys.modules else None
    spec = (
        None if package is None else PathFinder.find_spec(full, package.submodule_search_locations)
    )
    if spec is None or spec.loader is None:
        return import_module(full)
    module = module_from_spec(spec)
    sys.modules[full] = module
    spec.loader.exec_module(module)
    return module


@cache
def _compiled() -> Any:
    return onnx_part("onnx_cpp2py_export")


def load_schemas() -> None:
    """Load the compiled part of onnx and its schemas, so that forked processes have them.

    This takes 10 ms.
    """
    has_schema("Identity", 1)


def infer_shapes(model: bytes) -> bytes:
    """Return a serialized model with the types that onnx infers.

    Raises an error of onnx if it is invalid.
    """
    inferred: bytes = _compiled().shape_inference.infer_shapes(model, False, False, False)
    return inferred


def newest_opset(domain: str = "") -> int:
    """Return the last opset of a domain that the installed onnx package knows, else 0."""
    versions: dict[str, tuple[int, int]] = _compiled().defs.schema_version_map()
    return versions.get(domain, (0, 0))[1]


def has_schema(op_type: str, opset: int, domain: str = "") -> bool:
    """Return whether the installed onnx package has the operator in the opset of its domain."""
    try:
        return bool(_compiled().defs.has_schema(op_type, opset, domain))
    except TypeError:  # an opset beyond 32 bits, or a name that is not valid Unicode
        return False


def get_schema(op_type: str, opset: int, domain: str = "") -> OpSchema:
    """Return the schema of an operator that the installed onnx package has."""
    schema: OpSchema = _compiled().defs.get_schema(op_type, opset, domain)
    return schema


@cache
def domain_schemas(domain: str) -> dict[str, int]:
    """Return the names of the operators of a domain, each with the first opset that has it."""
    first: dict[str, int] = {}
    for schema in _compiled().defs.get_all_schemas_with_history():
        if schema.domain == domain:
            first[schema.name] = min(
                schema.since_version, first.get(schema.name, schema.since_version)
            )
    return first
