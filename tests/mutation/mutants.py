"""Small wrong programs: one change of one expression at a time, made on the syntax tree."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeAlias

COMPARE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
NAMES = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "argmin": "argmax",
         "argmax": "argmin", "all": "any", "any": "all"}  # fmt: skip
LEFT_ALONE = (ast.Assert, ast.Raise, ast.JoinedStr)
Place: TypeAlias = tuple[ast.AST, str, int | None]
DROPPED = {"abs", "clamp", "clip", "clone", "sqrt", "square"}  # x.clamp(…) and sqrt(x) become x


@dataclass(frozen=True)
class Mutant:
    """One wrong program.

    Attributes:
        file: path below src/hope.
        where: the function or class that is changed, "" at the top of a module.
        line, end: of the changed statement.
        before, after: the changed expression.
        number: which of those that read alike.
        local: whether every test that needs it runs its line, as none does at the top of a module, and only
            the first where results are cached.
        tree, place, other: the module, what is replaced in it (a node's field, and where in it), by what.
    """

    file: str
    where: str
    line: int
    end: int
    before: str
    after: str
    number: int
    local: bool
    tree: ast.Module
    place: Place
    other: ast.AST

    @property
    def name(self) -> str:
        """What it goes by, wherever its line has moved to."""
        again = f" ({self.number + 1})" if self.number else ""
        where = f" {self.where}" if self.where else ""
        return f"{self.file}{where}: {self.before} → {self.after}{again}"

    def unchanged(self) -> Mutant:
        """The right program, as a mutant: what the tests must pass."""
        node, field, at = self.place
        value = getattr(node, field)
        return replace(self, other=value if at is None else value[at])

    def code(self) -> ast.Module:
        """The whole module, wrong in one place."""
        with _replaced(self.place, self.other):
            return ast.fix_missing_locations(copy.deepcopy(self.tree))


def changed(node: ast.AST) -> Iterator[ast.AST]:
    """All wrong readings of one node."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield ast.Compare(node.left, [COMPARE[type(node.ops[0])]()], node.comparators)
    elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        yield ast.BinOp(node.left, ARITHMETIC[type(node.op)](), node.right)
    elif isinstance(node, ast.AugAssign) and type(node.op) in ARITHMETIC:
        yield ast.AugAssign(node.target, ARITHMETIC[type(node.op)](), node.value)
    elif isinstance(node, ast.UnaryOp):
        yield node.operand
    elif isinstance(node, ast.BoolOp):
        yield ast.BoolOp(ast.And() if isinstance(node.op, ast.Or) else ast.Or(), node.values)
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield ast.Constant(node.value + 1)
        if isinstance(node.value, int) and node.value > 0:
            yield ast.Constant(node.value - 1)
    elif isinstance(node, ast.Return) and node.value is not None and not _none(node.value):
        yield ast.Return(ast.Constant(None))
    elif isinstance(node, ast.IfExp | ast.If):
        other = copy.copy(node)
        other.test = ast.UnaryOp(ast.Not(), node.test)
        yield other
    elif isinstance(node, ast.Break | ast.Continue):
        yield ast.Continue() if isinstance(node, ast.Break) else ast.Break()
    elif isinstance(node, ast.Call):
        yield from _called(node)


def _called(node: ast.Call) -> Iterator[ast.AST]:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name in NAMES:
        other = copy.copy(node)
        swapped = NAMES[name]
        other.func = (
            ast.Attribute(node.func.value, swapped, ast.Load())
            if isinstance(node.func, ast.Attribute)
            else ast.Name(swapped, ast.Load())
        )
        yield other
    elif name in DROPPED and isinstance(node.func, ast.Attribute):
        module = isinstance(node.func.value, ast.Name) and node.func.value.id in ("torch", "np", "math")
        yield node.args[0] if module and node.args else node.func.value


def _none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def mutants(source: str, file: str) -> list[Mutant]:
    """All of a module's mutants. Annotations, docstrings, assertions and errors are left alone."""
    tree = ast.parse(source)
    found: list[Mutant] = []
    seen: dict[tuple[str, str, str], int] = {}

    def visit(node: ast.AST, where: tuple[str, ...], local: bool, statement: ast.stmt | None) -> None:
        for field, value in ast.iter_fields(node):
            if field in ("annotation", "returns", "decorator_list"):
                continue
            for at, child in enumerate(value if isinstance(value, list) else [value]):
                if not isinstance(child, ast.AST) or isinstance(child, LEFT_ALONE):
                    continue
                within, inside, here = where, local, child if isinstance(child, ast.stmt) else statement
                if isinstance(child, ast.FunctionDef | ast.ClassDef):
                    within = (*where, child.name)
                if isinstance(node, ast.FunctionDef) and field == "body":
                    inside = not any("cache" in ast.unparse(one) for one in node.decorator_list)
                assert here is not None
                place: Place = (node, field, at if isinstance(value, list) else None)
                for other in changed(child):
                    before, after = _told(child, other, place)
                    key = (".".join(within), before, after)
                    seen[key] = seen.get(key, -1) + 1
                    lines = _lines(child, here)
                    found.append(
                        Mutant(file, key[0], *lines, before, after, seen[key], inside, tree, place, other)
                    )
                visit(child, within, inside, here)

    visit(tree, (), False, None)
    return found


def _lines(node: ast.AST, statement: ast.stmt) -> tuple[int, int]:
    """The lines that run if the node does: those of its statement, or of a compound statement's head."""
    if isinstance(statement, ast.If | ast.For | ast.While | ast.With | ast.FunctionDef | ast.ClassDef):
        first = getattr(node, "lineno", statement.lineno)
        return first, first if node is statement else getattr(node, "end_lineno", None) or first
    return statement.lineno, statement.end_lineno or statement.lineno


def _told(node: ast.AST, other: ast.AST, place: Place) -> tuple[str, str]:
    """Before and after in one line each: of a condition its test, of a number what it stands in."""
    if isinstance(node, ast.If | ast.IfExp) and isinstance(other, ast.If | ast.IfExp):
        return f"if {_line(node.test)}", f"if {_line(other.test)}"
    if isinstance(node, ast.Constant) and isinstance(place[0], ast.expr | ast.keyword | ast.Assign):
        before = _line(place[0])
        with _replaced(place, other):
            return before, _line(place[0])
    return _line(node), _line(other)


def _line(node: ast.AST) -> str:
    return " ".join(ast.unparse(ast.fix_missing_locations(node)).split())


@contextmanager
def _replaced(place: Place, other: ast.AST) -> Iterator[None]:
    """The tree with one node replaced, for a while."""
    node, field, at = place
    value = getattr(node, field)
    if at is None:
        setattr(node, field, other)
    else:
        old, value[at] = value[at], other
    try:
        yield
    finally:
        if at is None:
            setattr(node, field, value)
        else:
            value[at] = old
