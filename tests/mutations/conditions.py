"""The places of the package that are changed.

Conditions that lead to a refusal, statements that write provenance.

A condition is the test of an `if` one side of which ends by raising Refused or Declined, by
returning `decline(reason)` or a Refusal, or None where a function of the affine algebra declines
so, or of a conditional expression one side of which is a Refusal. Dropping it means that the
refusal never happens: the test keeps its effects, and its outcome is replaced. A function of no
result that ends by raising Refused is counted, too: its last statement is dropped. `raise
Refused.of(refusal)` only hands on a refusal, and is not counted: the condition that made the
refusal is.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

MODULES = (
    "passes/affine/*/*.py",
    "passes/branches/*.py",
    "passes/simplify/*.py",
    "ir/matching.py",
    "passes/data_free/layer_pair.py",
    "passes/simplify_inference.py",
    "frontends/onnx/lowering.py",
    "ir/ops/*.py",
)
"""Where conditions are looked for, as far as it exists."""
DECLINING = tuple(
    f"passes/affine/{name}"
    for name in (
        "algebra/affine",
        "algebra/operands",
        "algebra/recognise",
        "rules/reshape",
        "rules/zero_padding",
        "units/magic_rounding",
        "units/written_quotients",
    )
)
"""Modules whose functions decline by returning None."""

REFUSALS = ("Declined", "Refusal", "Refused", "decline")
"""What a condition leads to: a refusal, its exception, or a rule that declines with a reason."""


@dataclass(frozen=True)
class Stamp:
    """A statement of the Rewriter that writes provenance, and the text of its mutant."""

    text: str
    instead: str = "pass"
    module: str = "ir/rewriter.py"
    function: str = ""
    line: int = 0

    def dropped(self, source: str) -> str:
        """Return the module with the other text."""
        assert source.count(self.text) == 1, self.text
        return source.replace(self.text, self.instead)


STAMPS = (
    Stamp("node.origins, node.inherited = self.root.origins, self.root.inherited"),
    Stamp("module.provenance.consume(node, heir, self.rule, note)"),
    Stamp("module.provenance.dropped.extend([rope for rope in (origins, inherited) if rope])"),
    Stamp("heir.inherited = (heir.inherited, rope) if heir.inherited else rope"),
    Stamp("self._erase(node, heir, note)", 'self._erase(node, heir, "")'),
    Stamp("self._erase_unread(inputs, heir, note)", 'self._erase_unread(inputs, heir, "")'),
    Stamp('self._bequeath(inner, None, "")'),
)


@dataclass(frozen=True)
class Condition:
    """The expression at a place of a module whose outcome, `refused`, leads to a refusal.

    Or a statement that does.
    """

    module: str
    function: str
    text: str
    start: int
    end: int
    line: int
    refused: bool
    is_statement: bool = False

    def dropped(self, source: str) -> str:
        """The module without the refusal."""
        if self.is_statement:
            return f"{source[: self.start]}pass{source[self.end :]}"
        tail = ") and False)" if self.refused else ") or True)"
        return f"{source[: self.start]}(({source[self.start : self.end]}{tail}{source[self.end :]}"


def probed(source: str, conditions: Sequence[tuple[int, Condition]]) -> str:
    """The module with a report of each time that one of its conditions leads to the refusal."""
    insertions = []
    for index, condition in conditions:
        length = condition.end - condition.start
        if condition.is_statement:
            insertions.append((condition.start, 1, 0, f"_irc_probe_({index}, True, True); "))
            continue
        insertions.append(
            (condition.start, 1, -length, f"_irc_probe_({index}, {condition.refused}, (")
        )
        insertions.append((condition.end, 0, length, "))"))
    for position, _, _, text in sorted(insertions, reverse=True):
        source = source[:position] + text + source[position:]
    return source


# finding conditions


def functions_that_refuse(trees: Sequence[ast.Module]) -> set[str]:
    """Names of functions whose annotated result is a Refusal or its exception alone."""
    functions = (
        node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)
    )
    refusals = ("Refusal", "Refused")
    return {
        node.name
        for node in functions
        if node.returns is not None and ast.unparse(node.returns) in refusals
    }


def is_refusal(expression: ast.expr | None, refusers: set[str]) -> bool:
    """Whether an expression is, or holds, a Refusal or the exception that carries one."""
    match expression:
        case ast.Call(func=ast.Name(id=name)) | ast.Call(func=ast.Attribute(attr=name)):
            return name in REFUSALS or name in refusers
        case ast.Name(id=name):
            return "refusal" in name
        case ast.Tuple(elts=items) | ast.BoolOp(values=items):
            return any(is_refusal(item, refusers) for item in items)
    return False


@dataclass
class _Finder(ast.NodeVisitor):
    module: str
    source: str
    refusers: set[str]
    found: list[Condition] = field(default_factory=list)
    stack: list[ast.FunctionDef | ast.ClassDef] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.offsets = [0]
        for line in self.source.encode().splitlines(keepends=True):
            self.offsets.append(self.offsets[-1] + len(line))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self.stack.append(node)
        last = node.body[-1]
        nothing = node.returns is not None and ast.unparse(node.returns) == "None"
        if nothing and isinstance(last, ast.Raise) and is_refusal(last.exc, self.refusers):
            self.add(last, refused=True)
        self.generic_visit(node)
        self.stack.pop()

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.stack.append(node)
        self.generic_visit(node)
        self.stack.pop()

    def visit_If(self, node: ast.If) -> None:
        if self.refuses(node.body[-1]):
            self.add(node.test, refused=True)
        elif node.orelse and self.refuses(node.orelse[-1]):
            self.add(node.test, refused=False)
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        for side, refused in ((node.body, True), (node.orelse, False)):
            if is_refusal(side, self.refusers):
                self.add(node.test, refused=refused)
        self.generic_visit(node)

    def refuses(self, last: ast.stmt) -> bool:
        """Whether the last statement of a branch refuses."""
        result = last.value if isinstance(last, ast.Return) else None
        if isinstance(last, ast.Assign) and isinstance(last.targets[0], ast.Name):
            result = last.value
        if isinstance(last, ast.Raise):
            result = last.exc
        return is_refusal(result, self.refusers) or self.declines(last)

    def declines(self, last: ast.stmt) -> bool:
        """Whether the statement returns None, for nothing, from a function of the algebra."""
        if not (self.module.startswith(DECLINING) and isinstance(last, ast.Return) and self.stack):
            return False
        function = self.stack[-1]
        returns = (
            ast.unparse(function.returns)
            if isinstance(function, ast.FunctionDef) and function.returns
            else ""
        )
        nothing = last.value is None or (
            isinstance(last.value, ast.Constant) and last.value.value is None
        )
        return nothing and "None" in returns and returns != "None"

    def add(self, test: ast.expr | ast.Raise, *, refused: bool) -> None:
        start, end = (
            len(self.source.encode()[: self.offsets[line - 1] + column].decode())
            for line, column in (
                (test.lineno, test.col_offset),
                (test.end_lineno or 0, test.end_col_offset or 0),
            )
        )
        function = ".".join(node.name for node in self.stack)
        is_statement = isinstance(test, ast.Raise)
        self.found.append(
            Condition(
                self.module,
                function,
                ast.unparse(test),
                start,
                end,
                test.lineno,
                refused,
                is_statement,
            )
        )


def conditions(package: Path) -> list[Condition]:
    """Every condition of the modules, in the order of the text."""
    paths = sorted(path for pattern in MODULES for path in package.glob(pattern))
    sources = {path: path.read_text() for path in paths}
    trees = {path: ast.parse(source) for path, source in sources.items()}
    refusers = functions_that_refuse(list(trees.values()))
    found: list[Condition] = []
    for path in paths:
        finder = _Finder(str(path.relative_to(package)), sources[path], refusers)
        finder.visit(trees[path])
        found.extend(sorted(finder.found, key=lambda condition: condition.start))
    return found


Mutant = Condition | Stamp


def place(mutant: Mutant) -> str:
    """Return the module, the function and the text of a mutant."""
    return " ".join(filter(None, (mutant.module, mutant.function, mutant.text)))
