"""Reads and writes YAML: plain data only, within limits. Nothing in a file is ever run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, ClassVar

import yaml

from fedskip.errors import InputError, option
from fedskip.files import refuse_unreadable

LARGEST = 16 << 20  # bytes of a file
MOST_VALUES = 1_000_000  # values; an alias counts as everything that it repeats
DEEPEST = 50  # levels
TOO_MANY = f"has too many values: more than {MOST_VALUES:,}"
TOO_DEEP = f"is nested too deep: more than {DEEPEST} levels"
NUMBER = "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+[eE][-+]?[0-9]+$"), list("-+0123456789")
PLAIN = {
    f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "map", "seq")
}

_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the first is ten times as fast
_FIXES = {  # what is in an error of PyYAML or in its lines -> what to do
    r"\w\([^()'\"\n]*[\[{,]": "put a method that holds commas or brackets in quotes",
    r"(?m)^ *\t|'\\t'": "indent with spaces, not with tabs",
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
    refuse_unreadable(name, path)
    size = path.stat().st_size
    if size > LARGEST:
        raise InputError(name, f"has {size >> 20:,} MB; at most {LARGEST >> 20} are read")
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(name, f"cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        fix = f"save it as UTF-8; data are named by `{option('set')} data.name=FILE`"
        raise InputError(name, f"is not text in UTF-8 (byte {error.start + 1})", fix=fix) from None


def load(text: str, name: str) -> Any:
    """The values of a YAML text. `name`: what errors call it."""
    return parse(text, name)[0]


def parse(text: str, name: str, key: str = "", where: str = "") -> tuple[Any, dict[str, str]]:
    """The values of a YAML text, and the place where each was written, by dotted key.

    Args:
        name: what errors call the text.
        key: the dotted key that has the text as its value.
        where: the place of the whole text. Without one, places are the lines of a file.
    """
    places: dict[str, str] = {}
    loader, root = _compose(text, name, where)

    def value(node: yaml.Node, at: str, mark: yaml.Mark, depth: int = 1) -> Any:
        place = places[at] = _place(name, where, mark.line)
        field, prefix = at or name, f"{at}." if at else ""
        if len(places) > MOST_VALUES:
            fix = "write fewer; an alias (*) repeats all that is below its anchor (&)"
            raise InputError(name, TOO_MANY, ..., fix, place)
        if depth > DEEPEST:
            raise InputError(name, TOO_DEEP, ..., "an alias (*) must not repeat itself", place)
        if node.tag not in PLAIN:
            tag = node.tag.replace("tag:yaml.org,2002:", "!!")
            rule = f"has the tag {tag}, which is not plain data"
            raise InputError(field, rule, ..., "leave the tag out", place)
        if isinstance(node, yaml.SequenceNode):
            items = enumerate(node.value)
            return [value(v, f"{prefix}{i}", v.start_mark, depth + 1) for i, v in items]
        if isinstance(node, yaml.MappingNode):
            values: dict[str | int, Any] = {}
            for name_node, inner in node.value:
                mark = name_node.start_mark
                if not isinstance(name_node, yaml.ScalarNode) or name_node.value == "<<":
                    rule = "must have plain text as its keys, and not merge others with <<"
                    raise InputError(field, rule, where=_place(name, where, mark.line))
                path = f"{prefix}{name_node.value}"
                number = name_node.tag.endswith(":int")
                named = value(name_node, path, mark, depth + 1) if number else name_node.value
                twice = named in values
                values[named] = value(inner, path, mark, depth + 1)
                if twice:
                    rule, fix = "is written twice", "keep one of the two"
                    raise InputError(path, rule, ..., fix, places[path])
            return values
        try:
            return loader.construct_object(node)
        except (ValueError, LookupError, yaml.YAMLError):  # from int() and the like
            kind = node.tag.rpartition(":")[2]
            raise InputError(field, f"cannot be read as !!{kind}", node.value, "", place) from None

    return None if root is None else value(root, key, root.start_mark), places


def _compose(text: str, name: str, where: str) -> tuple[Loader, yaml.Node | None]:
    """The one node of a text, and the loader that constructs its values."""

    def refused(line: int, rule: str, fix: str = "") -> InputError:
        return InputError(name, rule, ..., fix, _place(name, where, line))

    if illegal := yaml.reader.Reader.NON_PRINTABLE.search(text):
        rule = f"holds the character #x{ord(illegal[0]):04x}, which YAML does not allow"
        raise refused(text.count("\n", 0, illegal.start()), rule)
    try:
        depth = 0
        # nodes take stack for every level, and memory
        event: Any
        for number, event in enumerate(yaml.parse(text, Loader=Loader)):
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > DEEPEST:
                raise refused(event.start_mark.line, TOO_DEEP)
            if number > MOST_VALUES:
                raise refused(event.start_mark.line, TOO_MANY)
        loader = Loader(text)
        return loader, loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        begin = error.context_mark
        mark = error.problem_mark or begin
        line = mark.line if mark else 0
        context = f"{error.context} from line {begin.line + 1}: " if error.context and begin else ""
        lines = "\n".join(text.split("\n")[begin.line if begin else line : line + 1])
        rule = f"is not valid YAML: {context}{error.problem}"
        fixes = (fix for words, fix in _FIXES.items() if re.search(words, f"{lines}\n{rule}"))
        raise refused(line, rule, next(fixes, "")) from None


def _place(name: str, where: str, line: int) -> str:
    return where or f"{Path(name).name} line {line + 1}"
