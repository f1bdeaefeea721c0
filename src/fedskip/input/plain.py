"""Text and YAML of files, read within limits: plain data only, and nothing in a file is ever run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, ClassVar

import yaml

from fedskip.input.errors import InputError, option
from fedskip.input.nest import DEEPEST

LARGEST = 16 << 20  # bytes of a file
MOST = 1_000_000  # values, those that an alias repeats included
NUMBER = "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+[eE][-+]?[0-9]+$"), list("-+0123456789")
PLAIN = {f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "map", "seq")}

_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the first is ten times as fast
_METHOD = re.compile(r"\w\([^()'\"\n]*[\[{,]")  # an unquoted one that YAML would split
_ILLEGAL = yaml.reader.Reader.NON_PRINTABLE
_HINTS = {  # what YAML's words hold -> what to do
    "\\t": "indent with spaces, not with tabs",
    "escape": "write a text with backslashes in single quotes",
    "another document": "a study is one document: remove the line ---",
    "undefined alias": "name it with & above",
}


class Yaml11(_Base):  # type: ignore[misc]
    """As programs write it: a number with an exponent has a dot. Dates are text."""

    yaml_implicit_resolvers: ClassVar[dict[str, list[Any]]] = {
        first: [(tag, pattern) for tag, pattern in found if tag in PLAIN]
        for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


class Loader(Yaml11):
    """As people write it: 1e-3 is a number, too."""


class Dumper(yaml.SafeDumper):
    """Writes a text that either would take for a number in quotes."""


for _kind in (Loader, Dumper):
    _kind.add_implicit_resolver(*NUMBER)


def written(values: Any) -> str:
    """Plain values as YAML, which `load` reads back as they are."""
    return str(yaml.dump(values, Dumper=Dumper, sort_keys=False))


def read_text(path: Path) -> str:
    """The text of a file, which must be one of text."""
    name = str(path)
    try:
        if not path.is_file():
            raise InputError(name, "is a folder" if path.is_dir() else "is not a file")
        if path.stat().st_size > LARGEST:
            raise InputError(name, f"has {path.stat().st_size >> 20:,} MB; at most {LARGEST >> 20} are read")
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(name, f"cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        fix = f"save it as UTF-8; data are named by `{option('set')} data.name=FILE`"
        raise InputError(name, f"is not text in UTF-8 (byte {error.start + 1})", fix=fix) from None


def compose(
    text: str, name: str, where: str = "", reader: type[Yaml11] = Loader
) -> tuple[Yaml11, yaml.Node | None]:
    """The one node of a text, and the loader that constructs its values.

    `name` is what errors call the text. `where` is its place; without one, they count the lines of a file.
    """

    def place(line: int) -> str:
        return where or f"{Path(name).name} line {line + 1}"

    illegal = _ILLEGAL.search(text)
    if illegal:
        rule = f"holds the character #x{ord(illegal[0]):04x}, which YAML does not allow"
        raise InputError(name, rule, where=place(text.count("\n", 0, illegal.start())))
    try:
        _refuse_deep(text, name, where)
        loader = reader(text)
        node = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        mark, begun = error.problem_mark or error.context_mark, error.context_mark
        line = mark.line if mark else 0
        context = f" {error.context} from line {begun.line + 1}" if error.context and begun else ""
        lines = text.split("\n")[begun.line if begun else line : line + 1]
        rule = f"is not valid YAML:{context and context + ':'} {error.problem}"
        raise InputError(name, rule, fix=_hint(rule, lines), where=place(line)) from None
    if node is not None:
        _weigh(node, name, where, {})
    return loader, node


def _hint(rule: str, lines: list[str]) -> str:
    if any(map(_METHOD.search, lines)):
        return "put a method that holds commas or brackets in quotes"
    if any("\t" in line[: len(line) - len(line.lstrip())] for line in lines):
        return _HINTS["\\t"]
    return next((fix for words, fix in _HINTS.items() if words in rule), "")


def _refuse_deep(text: str, name: str, where: str) -> None:
    """Look at the events first: to make deep nodes takes a deep stack."""
    depth = 0
    for number, event in enumerate(yaml.parse(text, Loader=Loader)):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise _too_deep(name, where)
        if number > MOST:
            raise _too_many(name, where)


def _too_many(name: str, where: str) -> InputError:
    fix = "write fewer; an alias (*) repeats all that is below its anchor (&)"
    return InputError(name, f"has too many values: more than {MOST:,}", fix=fix, where=where)


def _too_deep(name: str, where: str) -> InputError:
    return InputError(name, f"is nested too deep: more than {DEEPEST} levels", where=where)


def _weigh(node: yaml.Node, name: str, where: str, known: dict[int, tuple[int, int]], depth: int = 1) -> None:
    """Refuse too many values and too many levels. `known`: of nodes seen, how many they are and how high."""
    children: list[yaml.Node] = []
    if isinstance(node, yaml.MappingNode):
        children = [child for pair in node.value for child in pair]
    elif isinstance(node, yaml.SequenceNode):
        children = node.value
    known[id(node)] = 0, 0  # it is open
    size, height = 1, 1
    for child in children:
        if depth >= DEEPEST:
            raise _too_deep(name, where)
        if id(child) not in known:
            _weigh(child, name, where, known, depth + 1)
        inner, high = known[id(child)]
        if not inner:
            where = where or f"{Path(name).name} line {child.start_mark.line + 1}"
            raise InputError(name, "has an alias of something that holds itself", where=where)
        size, height = size + inner, max(height, 1 + high)
    if depth + height - 1 > DEEPEST:
        raise _too_deep(name, where)
    if size > MOST:
        raise _too_many(name, where)
    known[id(node)] = size, height


def construct(loader: Yaml11, node: yaml.Node, field: str) -> Any:
    """The value of a node; `field` is what errors call it."""
    if node.tag not in PLAIN:
        tag = node.tag.replace("tag:yaml.org,2002:", "!!")
        raise InputError(field, f"has the tag {tag}, which is not plain data", fix="leave the tag out")
    try:
        return loader.construct_object(node, deep=True)
    except (ValueError, LookupError):  # what int and others say of a text
        tag = node.tag.rpartition(":")[2]
        raise InputError(field, f"cannot be read as !!{tag}", node.value) from None


def load(text: str, name: str, reader: type[Yaml11] = Loader) -> Any:
    """The values of a YAML text that a program wrote: keys are as they are, and may be numbers."""
    loader, node = compose(text, name, reader=reader)
    try:
        return None if node is None else construct(loader, node, name)
    except yaml.constructor.ConstructorError as error:
        line = f"{Path(name).name} line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise InputError(name, f"is not plain YAML: {error.problem}", where=line) from None
