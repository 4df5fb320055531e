"""The rooms of the package.

Imports point down, modules do not import each other in circles, names are unique.

Every import counts: at the top of a module, inside a function, and under `TYPE_CHECKING`.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path

from harness import FOLDERS, ROOT

BELOW = {
    "support": (),
    "ir": ("support",),
    "frontends": ("ir", "support"),
    "passes": ("ir", "support"),
    "backends": ("ir", "support", "frontends.onnx.codec", "passes"),
    "result": ("ir", "support", "frontends", "passes", "backends"),
    "compiler": ("ir", "support", "frontends", "passes", "backends", "result"),
    "tools": ("ir", "support", "frontends", "passes", "backends", "result", "compiler"),
    "tools.certify.checker": (),
}
"""What each room imports beside itself: three arms on one trunk, the files that wire them, and
tools above.
"""
FROM_PASSES = (
    "passes.affine.records",
    "passes.data_free.moments",
    "passes.data_free.statistic_ranges",
    "passes.data_free.value_ranges",
    "passes.inline_functions",
)
"""What backends import of passes: the records of folds, statistics and ranges, of which fold maps
are made.
"""
FACE = ("", "__main__")
"""The face of the package, which may import all."""


def package_files() -> dict[str, Path]:
    """Return the file of every module of the package by name, without `irc.`."""
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    return {module_name(path): path for path in [*found, *ROOT.glob("*.py")]}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = package_files()


@cache
def trees() -> dict[str, ast.Module]:
    """Return the syntax tree of each module."""
    return {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}


def imports(module: str) -> Iterator[str]:
    """Yield the modules that `module` imports, wherever the import stands."""
    package = module.split(".") if MODULES[module].name == "__init__.py" else module.split(".")[:-1]
    for node in ast.walk(trees()[module]):
        if isinstance(node, ast.Import):
            yield from (
                alias.name.removeprefix("irc.")
                for alias in node.names
                if alias.name.startswith("irc.")
            )
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                parts = package[: len(package) - node.level + 1]
            elif (node.module or "").split(".")[0] == "irc":
                parts = []
            else:
                continue
            source = [*parts, *(node.module or "").removeprefix("irc").strip(".").split(".")]
            for alias in node.names:
                names = [".".join(filter(None, each)) for each in ([*source, alias.name], source)]
                yield next((name for name in names if name in MODULES), names[0])


@cache
def imported() -> dict[str, list[str]]:
    """Return the modules that each module imports, without itself."""
    return {name: sorted(set(imports(name)) - {name}) for name in MODULES}


def is_in(module: str, room: str) -> bool:
    return f"{module}.".startswith(f"{room}.")


def room_of(module: str) -> str:
    """Return the room that a module belongs to: the longest one that its name begins with."""
    return max((room for room in BELOW if is_in(module, room)), key=len, default="")


def test_every_module_belongs_to_a_room() -> None:
    assert {name for name in MODULES if not room_of(name)} == set(FACE)


def test_every_import_inside_the_package_is_of_a_module_of_it() -> None:
    assert {target for targets in imported().values() for target in targets} <= set(MODULES)


def test_a_room_imports_only_what_is_below_it() -> None:
    wrong = {
        (name, target)
        for name, targets in imported().items()
        for target in targets
        if name not in FACE
        and not any(is_in(target, room) for room in (room_of(name), *BELOW[room_of(name)]))
    }
    assert not wrong


def test_backends_import_of_passes_records_statistics_and_ranges() -> None:
    found = {
        target
        for name, targets in imported().items()
        if is_in(name, "backends")
        for target in targets
    }
    assert not [
        name
        for name in found
        if is_in(name, "passes") and not any(is_in(name, room) for room in FROM_PASSES)
    ]


def test_what_is_asked_of_rooms_above_is_what_the_face_provides() -> None:
    """`support.hooks`: the name of each service, and its one function or class."""
    calls = [
        (node.func.id, node.args[0])
        for tree in trees().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("provide", "provided")
    ]
    asked = {ast.literal_eval(argument) for function, argument in calls if function == "provided"}
    (homes,) = (ast.literal_eval(argument) for function, argument in calls if function == "provide")
    assert asked == set(homes)
    for home in homes.values():
        module, _, name = home.partition(":")
        assert hasattr(import_module(module), name)


def test_no_modules_import_each_other() -> None:
    order = TopologicalSorter(imported())
    order.prepare()  # raises CycleError, which names the modules of a circle


def test_no_two_modules_have_one_name() -> None:
    files = defaultdict(list)
    for path in MODULES.values():
        files[path.name].append(path)
    assert {name for name, paths in files.items() if len(paths) > 1} <= {"__init__.py"}


def test_no_two_classes_have_one_name() -> None:
    homes = defaultdict(list)
    for name, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(name)
    assert not {name: modules for name, modules in homes.items() if len(modules) > 1}


OPSET_READERS = {
    "passes.function_inliner": (
        "The opset imports of a function and of the model may give an operator two meanings."
    ),
    "passes.foreign": (
        "A foreign operator has no row: its schema in the opset of the graph says whether it is"
        " pure."
    ),
    "passes.simplify.late_lowering": (
        "As the importer does, it asks which operator a node is in its opset."
    ),
    "passes.float16.narrow_types": "A refusal names the opset that lacks an operator in bfloat16.",
    "passes.constant_regions": "onnxruntime computes foreign operators in the opset of the model.",
}
"""The passes that ask for an opset, each with its reason.

All others see operators in one form only.
"""


def test_rules_and_passes_ask_for_no_opset() -> None:
    readers = {
        name
        for name, tree in trees().items()
        if is_in(name, "passes")
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in ("opset", "opsets")
    }
    assert readers == set(OPSET_READERS)


def test_no_conditional_expression_stands_in_another() -> None:
    nested = [
        f"{MODULES[name].relative_to(ROOT)}:{inner.lineno}"
        for name, tree in trees().items()
        for outer in ast.walk(tree)
        if isinstance(outer, ast.IfExp)
        for inner in ast.walk(outer)
        if isinstance(inner, ast.IfExp) and inner is not outer
    ]
    assert nested == []
