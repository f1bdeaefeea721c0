"""Reads text and YAML files: plain data only, within limits. Nothing in a file is ever run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, ClassVar

import yaml

from fedskip.errors import InputError, option
from fedskip.parsing.dotted_keys import DEEPEST

LARGEST = 16 << 20  # bytes of a file
MOST = 1_000_000  # values; an alias counts as everything that it repeats
NUMBER = "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+[eE][-+]?[0-9]+$"), list("-+0123456789")
PLAIN = {
    f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "map", "seq")
}

_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the first is ten times as fast
_METHOD = re.compile(r"\w\([^()'\"\n]*[\[{,]")  # an unquoted one that YAML would split
_ILLEGAL = yaml.reader.Reader.NON_PRINTABLE
_HINTS = {  # what an error of PyYAML says -> what to do
    "\\t": "indent with spaces, not with tabs",
    "escape": "write a text with backslashes in single quotes",
    "another document": "a study is one document: remove the line ---",
    "undefined alias": "name it with & above",
}


class Loader(_Base):  # type: ignore[misc]
    """YAML as people write it: 1e-3 is a number, and a date is text."""

    yaml_implicit_resolvers: ClassVar[dict[str, list[Any]]] = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag in PLAIN]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


class Dumper(yaml.SafeDumper):
    """Writes text that looks like a number in quotes, and repeats values in the place of aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


for _kind in (Loader, Dumper):
    _kind.add_implicit_resolver(*NUMBER)


def written(values: Any, compact: bool = False) -> str:
    """Plain values as YAML, which `load` reads back unchanged.

    Args:
        compact: write the innermost lists and mappings on one line.
    """
    style: dict[str, Any] = {"default_flow_style": None if compact else False, "width": 110}
    return str(yaml.dump(values, Dumper=Dumper, sort_keys=False, allow_unicode=True, **style))


def read_text(path: Path) -> str:
    """The text of a file, if it is a text file that is not too large."""
    name = str(path)
    try:
        if not path.is_file():
            raise InputError(name, "is a folder" if path.is_dir() else "is not a file")
        if path.stat().st_size > LARGEST:
            raise InputError(
                name, f"has {path.stat().st_size >> 20:,} MB; at most {LARGEST >> 20} are read"
            )
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(name, f"cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        fix = f"save it as UTF-8; data are named by `{option('set')} data.name=FILE`"
        raise InputError(name, f"is not text in UTF-8 (byte {error.start + 1})", fix=fix) from None


def compose(text: str, name: str, where: str = "") -> tuple[Loader, yaml.Node | None]:
    """The one node of a text, and the loader that constructs its values.

    Args:
        name: what errors call the text.
        where: its place. Without one, errors count the lines of a file.
    """

    def place(line: int) -> str:
        return where or f"{Path(name).name} line {line + 1}"

    illegal = _ILLEGAL.search(text)
    if illegal:
        rule = f"holds the character #x{ord(illegal[0]):04x}, which YAML does not allow"
        raise InputError(name, rule, where=place(text.count("\n", 0, illegal.start())))
    try:
        _check_events(text, name, where)
        loader = Loader(text)
        node = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        mark, begin = error.problem_mark or error.context_mark, error.context_mark
        line = mark.line if mark else 0
        context = f" {error.context} from line {begin.line + 1}" if error.context and begin else ""
        lines = text.split("\n")[begin.line if begin else line : line + 1]
        rule = f"is not valid YAML:{context and context + ':'} {error.problem}"
        raise InputError(name, rule, fix=_hint(rule, lines), where=place(line)) from None
    if node is not None:
        _check_nodes(node, name, where)
    return loader, node


def _hint(rule: str, lines: list[str]) -> str:
    if any(map(_METHOD.search, lines)):
        return "put a method that holds commas or brackets in quotes"
    if any("\t" in line[: len(line) - len(line.lstrip())] for line in lines):
        return _HINTS["\\t"]
    return next((fix for words, fix in _HINTS.items() if words in rule), "")


def _check_events(text: str, name: str, where: str) -> None:
    """Refuse deep nesting and too many values before any node is made, which takes stack and memory."""
    depth = 0
    for number, event in enumerate(yaml.parse(text, Loader=Loader)):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        _check(number, depth, name, where)


def _check_nodes(root: yaml.Node, name: str, where: str) -> None:
    """The same for nodes, where an alias stands for everything that it repeats."""
    todo, number = [(root, 1)], 0
    while todo:
        node, depth = todo.pop()
        number += 1
        _check(number, depth, name, where)
        children = node.value if isinstance(node, yaml.CollectionNode) else ()
        if isinstance(node, yaml.MappingNode):
            children = (child for pair in node.value for child in pair)
        todo += ((child, depth + 1) for child in children)


def _check(number: int, depth: int, name: str, where: str) -> None:
    if depth > DEEPEST:
        rule = f"is nested too deep: more than {DEEPEST} levels"
        raise InputError(name, rule, fix="an alias (*) must not repeat itself", where=where)
    if number > MOST:
        fix = "write fewer; an alias (*) repeats all that is below its anchor (&)"
        raise InputError(name, f"has too many values: more than {MOST:,}", fix=fix, where=where)


def construct(loader: Loader, node: yaml.Node, field: str) -> Any:
    """The value of a node. `field` is what errors call it."""
    if node.tag not in PLAIN:
        tag = node.tag.replace("tag:yaml.org,2002:", "!!")
        rule = f"has the tag {tag}, which is not plain data"
        raise InputError(field, rule, fix="leave the tag out")
    try:
        return loader.construct_object(node, deep=True)
    except (ValueError, LookupError):  # from int() and the like
        tag = node.tag.rpartition(":")[2]
        raise InputError(field, f"cannot be read as !!{tag}", node.value) from None


def load(text: str, name: str) -> Any:
    """The values of a YAML text that a program wrote. Keys stay as they are, and may be numbers."""
    loader, node = compose(text, name)
    try:
        return None if node is None else construct(loader, node, name)
    except yaml.constructor.ConstructorError as error:
        line = f"{Path(name).name} line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise InputError(name, f"is not plain YAML: {error.problem}", where=line) from None
