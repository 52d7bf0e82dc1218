"""Derives from the code of the core what each phase of a cycle reads and writes of its context.

A phase's functions are followed by the types that signatures name. A field is written if its part
is changed in place, replaced, or handed to a method that does so.
"""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from reconciler import package_data

CORE = package_data.checkout() / "reconciler" / "core"
CONTEXT, OBSERVED = "CycleContext", "Observed"
#: Any phase may use these: the moment, and what earlier cycles computed. The last two stand for
#: the parts that they change.
NOT_LISTED = frozenset({"now", "cache", "observed", "stops", "losses"})
#: What phases only add to.
SINKS = frozenset({"events", "alarm", "actions"})
#: Indexes of a part that are made when they are first needed.
INDEXES = frozenset({"_by_cause", "_on_node"})
_CHANGES = frozenset(
    {
        "append",
        "add",
        "update",
        "extend",
        "pop",
        "clear",
        "setdefault",
        "discard",
        "remove",
        "insert",
        "sort",
    }
)


class Member(NamedTuple):
    """A function, or a method of a class."""

    module: str
    owner: str
    node: ast.FunctionDef


class Access(NamedTuple):
    """Fields that code reads and writes, and the code that it uses."""

    reads: set[str]
    writes: set[str]
    uses: set[tuple[str, str, str]]


@functools.cache
def _trees() -> dict[str, ast.Module]:
    paths = [path for path in CORE.rglob("*.py") if path.stem != "__init__"]
    assert len({path.stem for path in paths}) == len(paths)
    return {path.stem: ast.parse(Path(path).read_text(encoding="utf-8")) for path in paths}


@functools.cache
def _members() -> dict[tuple[str, str, str], Member]:
    """Return every function and method by module, class and name."""
    found = {}
    for module, tree in _trees().items():
        for node in tree.body:
            if isinstance(node, ast.FunctionDef):
                found[module, "", node.name] = Member(module, "", node)
            elif isinstance(node, ast.ClassDef):
                for part in node.body:
                    if isinstance(part, ast.FunctionDef):
                        found[module, node.name, part.name] = Member(module, node.name, part)
    return found


@functools.cache
def _module_of() -> dict[str, str]:
    """Return the module of each class; names of classes are unique in the code base."""
    return {
        node.name: module
        for module, tree in _trees().items()
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    }


@functools.cache
def _aliases() -> dict[str, str]:
    """Return the types that modules give a name, such as ``PoolStates``."""
    return {
        node.targets[0].id: ast.unparse(node.value)
        for tree in _trees().values()
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Subscript)
    }


def _named(text: str) -> str:
    """Return a type as this module writes it: the class alone, or the text of a container."""
    text = text.strip("\"'").removesuffix(" | None")
    name = text.rpartition(".")[2]
    if name in _module_of() or name in {CONTEXT, OBSERVED}:
        return name
    return _aliases().get(name, text)


def _element(text: str) -> str:
    """Return the type of what a container holds; empty if it is none."""
    outer, _, inner = text.partition("[")
    inner = inner.removesuffix("]").removesuffix(", ...")
    if outer in {"dict", "Mapping"}:
        return _named(inner.partition(", ")[2])
    return _named(inner) if outer in {"list", "tuple", "Iterable", "Sequence"} else ""


@functools.cache
def _attributes(owner: str) -> dict[str, str]:
    """Return the types of a class's attributes, as its constructor sets them."""
    begin = _members().get((_module_of()[owner], owner, "__init__"))
    if begin is None:
        return {}
    types = Types(begin)
    found = {}
    for node in ast.walk(begin.node):
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        if isinstance(node, ast.AnnAssign):
            target = node.target
        if isinstance(target, ast.Attribute) and isinstance(node, ast.Assign | ast.AnnAssign):
            known = types.of(node.value) if node.value is not None else ""
            found[target.attr] = (
                _named(ast.unparse(node.annotation)) if isinstance(node, ast.AnnAssign) else known
            )
    return found


@functools.cache
def _field_of() -> dict[str, str]:
    """Return the field of the context that each type stands for."""
    found = {
        kind: field
        for field, kind in _attributes(CONTEXT).items()
        if field not in NOT_LISTED and (kind in _module_of() or "." in kind)
    }
    return {**found, "JobDraft": "jobs"}


class Types:
    """The types of names in one function, as far as annotations and constructors tell."""

    def __init__(self, member: Member) -> None:
        self._module = member.module
        self._begun = member.owner if member.node.name == "__init__" else None
        self._of: dict[str, str] = {"self": member.owner} if member.owner else {}
        self.imports = {
            alias.name: alias.name
            for node in _trees()[member.module].body
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
            if alias.name in _trees()
        }
        given = member.node.args
        for parameter in [*given.args, *given.kwonlyargs]:
            if parameter.annotation is not None:
                self._of[parameter.arg] = _named(ast.unparse(parameter.annotation))
        for _ in range(2):  # names may be used above, in loops
            for node in ast.walk(member.node):
                self._learn(node)

    def _learn(self, node: ast.AST) -> None:
        if isinstance(node, ast.Assign):
            self._bind(node.targets[0], node.value)
        elif isinstance(node, ast.NamedExpr):
            self._bind(node.target, node.value)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            self._of[node.target.id] = _named(ast.unparse(node.annotation))
        elif isinstance(node, ast.For | ast.comprehension):
            held = _element(self.of(node.iter))
            target = node.target
            if isinstance(target, ast.Tuple):
                target = target.elts[-1]
            if isinstance(target, ast.Name) and held:
                self._of[target.id] = held

    def _bind(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for part, its in zip(target.elts, value.elts, strict=True):
                self._bind(part, its)
        elif isinstance(target, ast.Name) and (known := self.of(value)):
            self._of[target.id] = known

    def of(self, node: ast.expr) -> str:
        """Return the type of an expression; empty if it is not known."""
        if isinstance(node, ast.Name):
            return self._of.get(node.id, "")
        if isinstance(node, ast.IfExp):
            return self.of(node.body) or self.of(node.orelse)
        if isinstance(node, ast.BoolOp):
            return next(filter(None, map(self.of, node.values)), "")
        if isinstance(node, ast.Subscript):
            return _element(self.of(node.value))
        if isinstance(node, ast.Attribute):
            base = self.of(node.value)
            if base == self._begun:
                return ""  # its attributes are being found out
            return _attributes(base).get(node.attr, "") if base in _module_of() else ""
        return self._result(node) if isinstance(node, ast.Call) else ""

    def _result(self, call: ast.Call) -> str:
        if isinstance(call.func, ast.Name) and call.func.id in {"list", "sorted"}:
            return f"list[{_element(self.of(call.args[0]))}]"
        if isinstance(call.func, ast.Attribute):
            held = self.of(call.func.value)
            if call.func.attr == "part":  # of the cache, named by its class
                return _named(ast.unparse(call.args[0]))
            if call.func.attr in {"get", "pop", "setdefault"} and _element(held):
                return _element(held)
            if call.func.attr in {"values", "items"} and _element(held):
                return f"list[{_element(held)}]"
        for module, owner, name in self.members(call.func):
            if name == "__init__":
                return owner
            returns = _members()[module, owner, name].node.returns
            return _named(ast.unparse(returns)) if returns is not None else ""
        name = ast.unparse(call.func).rpartition(".")[2]
        return name if name in _module_of() else ""

    def members(self, node: ast.expr) -> Iterator[tuple[str, str, str]]:
        """Yield the function, method or constructor that an expression names, if any."""
        if isinstance(node, ast.Name):
            keys = [(self._module, "", node.id), (self._module, node.id, "__init__")]
        elif isinstance(node, ast.Attribute):
            held = self.of(node.value)
            keys = [(_module_of().get(held, ""), held, node.attr)]
            if isinstance(node.value, ast.Name) and node.value.id in self.imports:
                module = self.imports[node.value.id]
                keys = [(module, "", node.attr), (module, node.attr, "__init__")]
        else:
            return
        yield from (key for key in keys if key in _members())


@functools.cache
def _of_member(key: tuple[str, str, str]) -> Access:
    """Return what one function does itself."""
    member = _members()[key]
    types, found = Types(member), Access(set(), set(), set())
    begins = member.node.name == "__init__"
    changed: set[int] = set()

    def note_change(node: ast.expr) -> None:
        """Note that the value of an expression changes in place."""
        kind = types.of(node)
        if kind in _field_of() and kind not in _module_of():
            found.writes.add(_field_of()[kind])
        if isinstance(node, ast.Attribute):
            base = types.of(node.value)
            if base == CONTEXT:
                found.writes.add(node.attr)
                changed.add(id(node))
            elif base in _field_of() and not begins and node.attr not in INDEXES:
                found.writes.add(_field_of()[base])

    nodes = [node for statement in member.node.body for node in ast.walk(statement)]
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in _CHANGES and not list(types.members(node.func)):
                note_change(node.func.value)
        elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            note_change(node.value)
        elif isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
            note_change(node)
    for node in nodes:
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
            found.uses.update(types.members(node))
        if isinstance(node, ast.Attribute) and id(node) not in changed:
            base = types.of(node.value)
            if base == CONTEXT:
                found.reads.add(node.attr)
            elif base == OBSERVED or ast.unparse(node.value).endswith("context.observed"):
                found.reads.add(f"observed.{node.attr}")
            elif base in _field_of() and base != member.owner:
                found.reads.add(_field_of()[base])
    return found


def of_phase(name: str) -> tuple[set[str], set[str]]:
    """Return the fields that a phase, ``module.function``, reads and writes."""
    module, _, function = name.partition(".")
    reads: set[str] = set()
    writes: set[str] = set()
    todo, seen = [(module, "", function)], {(module, "", function)}
    while todo:
        access = _of_member(todo.pop())
        reads |= access.reads
        writes |= access.writes
        # a phase that another one calls works on a context of its own
        new = {key for key in access.uses if key not in seen and not _begins_anew(key)}
        seen |= new
        todo += new
    return reads - NOT_LISTED - SINKS, writes - NOT_LISTED


def _begins_anew(key: tuple[str, str, str]) -> bool:
    return key[1] == CONTEXT or f"{key[0]}.{key[2]}" in phases()


@functools.cache
def phases() -> set[str]:
    """Return the functions of other modules that ``reconcile`` hands the context."""
    return {
        ast.unparse(node.func)
        for node in ast.walk(_trees()["reconcile"])
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.args
        and isinstance(node.args[0], ast.Name)
        and node.args[0].id == "context"
    }
