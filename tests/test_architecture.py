"""The layers of the package: imports point down, modules do not import each other in circles, names are unique.

Every import counts: at the top of a module, inside a function, and under `TYPE_CHECKING`.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

from harness import FOLDERS, ROOT

LAYERS = (
    "tools.certify.checker",
    "support",
    "ir",
    "frontends",
    "backends.onnx",
    "backends.runtime",
    "backends.text_output",
    "passes",
    "backends.foldmap",
    "tools.recovery",
    "tools.certify",
    "result",
    "compiler",
    "backends.quantizers",
    "backends.torch",
    "tools.verify",
    "tools.int8",
    "tools.report",
    "tools.cli",
)
"""From the ground up. A module belongs to the longest entry that its name begins with."""
TOP = "the face of the package"


def package_files() -> dict[str, Path]:
    """Return the file of every module of the package by the module's name, without the leading `irc.`."""
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    return {module_name(path): path for path in [*found, *ROOT.glob("*.py")]}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = package_files()
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}


def imports(module: str) -> Iterator[str]:
    """Yield the modules that `module` imports, wherever the import stands."""
    package = module.split(".") if MODULES[module].name == "__init__.py" else module.split(".")[:-1]
    for node in ast.walk(TREES[module]):
        if isinstance(node, ast.Import):
            yield from (alias.name.removeprefix("irc.") for alias in node.names if alias.name.startswith("irc."))
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


IMPORTS = {name: sorted(set(imports(name)) - {name}) for name in MODULES}


def layer(module: str) -> str:
    """Return the layer that a module belongs to."""
    inside = [each for each in LAYERS if f"{module}.".startswith(f"{each}.")]
    return max(inside, key=len, default=TOP)


def test_every_module_belongs_to_a_layer() -> None:
    outside = {name for name in MODULES if layer(name) == TOP}
    assert outside == {"", "__main__", "backends", "tools"}


def test_every_import_inside_the_package_is_of_a_module_of_it() -> None:
    assert {target for targets in IMPORTS.values() for target in targets} <= set(MODULES)


def test_no_import_goes_up() -> None:
    order = [*LAYERS, TOP]
    upward = {
        (name, target)
        for name, targets in IMPORTS.items()
        for target in targets
        if order.index(layer(target)) > order.index(layer(name))
    }
    assert not upward


def test_no_modules_import_each_other() -> None:
    TopologicalSorter(IMPORTS).prepare()  # raises CycleError, which names the modules of a circle


def test_no_two_modules_have_one_name() -> None:
    files = defaultdict(list)
    for path in MODULES.values():
        files[path.name].append(path)
    assert {name for name, paths in files.items() if len(paths) > 1} <= {"__init__.py"}


def test_no_two_classes_have_one_name() -> None:
    homes = defaultdict(list)
    for name, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(name)
    assert not {name: modules for name, modules in homes.items() if len(modules) > 1}


OPSET_READERS = {
    "passes.function_inliner": "The opset imports of a function and of the model may give an operator two meanings.",
    "passes.foreign": "A foreign operator has no row: its schema in the opset of the graph says whether it is pure.",
    "passes.simplify.late_lowering": "As the importer does, it asks which operator a node is in its opset.",
    "passes.constant_regions": "onnxruntime computes foreign operators in the opset of the model.",
}
"""The passes that ask for an opset, each with its reason. All others see operators in one form only."""


def test_rules_and_passes_ask_for_no_opset() -> None:
    readers = {
        name
        for name, tree in TREES.items()
        if layer(name) == "passes"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in ("opset", "opsets")
    }
    assert readers == set(OPSET_READERS)
