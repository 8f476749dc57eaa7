"""The mutants of a module: what one small change each makes of its source.

A mutant differs from its source in one node of the syntax tree; all other bytes stay where they
are.  Left alone is what no test can or should tell: annotations, documentation, assertions (they
narrow types), decorators, imports, the texts inside of f-strings, and floats (they are seconds, and
no test asserts a timing).
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_COMPARISONS: Final[dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}

_ARITHMETIC: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}

_OF_TYPES_ONLY: Final = {"NewType", "ParamSpec", "TypeVar", "cast", "isinstance", "issubclass"}
_NAMES_ONLY: Final = {"__all__", "__slots__", "__match_args__"}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One changed place of one source.

    ``place`` is the class and function, ``line`` counts from 1, ``before`` and ``after`` are the
    node's source in Python's own spelling; ``source`` is the whole changed module.
    """

    place: str
    line: int
    before: str
    after: str
    source: bytes

    @property
    def change(self) -> str:
        """The key under which an equivalent mutant is listed; it has no path and no line."""
        return f"{self.place}: {self.before} -> {self.after}"


def mutants_of(source: bytes) -> list[Mutant]:
    """All mutants of a module, in the order of its syntax tree; raises ``SyntaxError``."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found: list[Mutant] = []
    for place, node, changed in _walk(ast.parse(source), "module"):
        assert node.end_lineno is not None  # noqa: S101 - ast.parse gives every node its end
        assert node.end_col_offset is not None  # noqa: S101 - the same
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        text = ast.unparse(changed)
        # What follows stays on its line.
        lines = "\n" * (node.end_lineno - node.lineno - text.count("\n"))
        text_there = f"({text}{lines})" if isinstance(changed, ast.expr) else text + lines
        mutated = source[:start] + text_there.encode() + source[end:]
        found.append(Mutant(place, node.lineno, _short(node), _short(changed), mutated))
    return found


def _short(node: ast.AST) -> str:
    return " ".join(ast.unparse(node).split())


def _walk(node: ast.AST, place: str) -> Iterator[tuple[str, ast.expr | ast.stmt, ast.AST]]:
    """Each place that can change, with what it becomes."""
    if isinstance(node, ast.expr | ast.stmt):
        for changed in _changes(node):
            yield place, node, changed
    for test in _conditions(node):
        yield place, test, ast.UnaryOp(ast.Not(), test)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        place = node.name if place == "module" else f"{place}.{node.name}"
    for child in _inside(node):
        yield from _walk(child, place)


def _inside(node: ast.AST) -> Iterator[ast.AST]:
    """The parts of a node that may be changed in their turn."""
    match node:
        case ast.Assert() | ast.JoinedStr() | ast.Import() | ast.ImportFrom():
            return
        case ast.Expr(value=ast.Constant()):
            return
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            yield from node.orelse
        case ast.Assign(targets=[ast.Name(id=name)]) if name in _NAMES_ONLY:
            return
        case ast.Call(func=ast.Name(id=name)) if name in _OF_TYPES_ONLY:
            yield from (arg for arg in node.args if isinstance(arg, ast.Call))
        case ast.AnnAssign(value=value):
            yield from [value] if value else []
        case ast.arg():
            return
        case ast.ClassDef(body=body):
            yield from body
        case ast.FunctionDef(args=args, body=body) | ast.AsyncFunctionDef(args=args, body=body):
            yield args
            yield from body
        case _:
            yield from ast.iter_child_nodes(node)


def _changes(node: ast.expr | ast.stmt) -> Iterator[ast.AST]:
    """What one node becomes, one change at a time."""
    match node:
        case ast.Compare(ops=operators):
            for index, operator in enumerate(operators):
                for other in _COMPARISONS[type(operator)]:
                    changed = copy.deepcopy(node)
                    changed.ops[index] = other()
                    yield changed
        case ast.BoolOp(op=operator, values=values):
            yield ast.BoolOp(ast.Or() if isinstance(operator, ast.And) else ast.And(), values)
            for index in range(len(values)):
                rest = values[:index] + values[index + 1 :]
                yield rest[0] if len(rest) == 1 else ast.BoolOp(operator, rest)
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert(), operand=operand):
            yield operand
        case ast.BinOp(left=left, op=operator, right=right):
            if type(operator) in _ARITHMETIC and not _is_text_or_type(left, right):
                yield ast.BinOp(left, _ARITHMETIC[type(operator)](), right)
        case ast.Constant(value=value):
            yield from (ast.Constant(other) for other in _constants(value))
        case ast.AugAssign(target=target, op=operator, value=value):
            yield ast.Pass()
            if type(operator) in _ARITHMETIC:
                yield ast.AugAssign(target, _ARITHMETIC[type(operator)](), value)
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield ast.Pass()
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.Raise() | ast.Delete():
            yield ast.Pass()
        case ast.Return(value=ast.Constant(value=None | False)):
            return  # None is as false
        case ast.Return(value=ast.expr()):
            yield ast.Return(ast.Constant(None))
        case ast.Return(value=None):
            yield ast.Pass()
        case ast.Break():
            yield ast.Continue()
        case ast.Continue():
            yield ast.Break()


def _constants(value: object) -> Iterator[bool | int | str | bytes]:
    match value:
        case bool():
            yield not value
        case int():
            yield value + 1
        case str():
            yield "" if value else "~"
        case bytes():
            yield b"" if value else b"~"


def _conditions(node: ast.AST) -> Iterator[ast.expr]:
    """The conditions in a node that none of the other changes turns around."""
    match node:
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            tests = [test]
        case ast.comprehension(ifs=ifs):
            tests = ifs
        case _:
            return
    for test in tests:
        if not isinstance(test, ast.Compare | ast.UnaryOp | ast.Constant):
            yield test


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_text_or_type(left: ast.expr, right: ast.expr) -> bool:
    """Whether an operator cannot be the arithmetic one: ``"%d" % x``, ``str | None``."""
    return any(
        _is_none(side)
        or isinstance(side, ast.JoinedStr)
        or (isinstance(side, ast.Constant) and isinstance(side.value, str | bytes))
        for side in (left, right)
    )
