"""The runs of a setting in parts: those that it began with, and every addition by itself.

A row's bits depend on how many rows are computed with it. So what is added trains apart from what is there,
whose numbers stay as they are; each part has checkpoints and a record of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fedskip.input.errors import InputError, option
from fedskip.methods.base import Method
from fedskip.methods.grammar import labels_as_added, text
from fedskip.spec.keys import Added
from fedskip.spec.setting import KEYS, Setting


@dataclass(frozen=True, kw_only=True)
class Part(Setting):
    """A setting with some of its runs only."""

    number: int  # 0: what it began with
    labels: tuple[str, ...]  # of its methods

    @property
    def key(self) -> str:
        return part_key(self.name, self.number)

    def label(self, method: Method) -> str:
        return self.labels[self.methods.index(method)]

    def _check_target(self) -> None:
        pass  # it may be a method of another part


def part_key(setting: str, number: int) -> str:
    """How checkpoints and the record call a part; no setting can have a name with a tilde."""
    return f"{setting}~{number}" if number else setting


def parts(setting: Setting) -> list[Part]:
    """All runs of a setting, part by part."""
    runs = [(setting.methods, setting.seeds), *((one.methods, one.seeds) for one in setting.added or ())]
    known = labels_as_added(methods for methods, _ in runs)
    keys = {key: getattr(setting, key) for key in KEYS} | {"added": None}
    return [
        Part(
            **(keys | {"methods": methods, "seeds": seeds}), number=number,
            labels=tuple(next(label for other, label in known if other == method) for method in methods),
        )
        for number, (methods, seeds) in enumerate(runs)
    ]  # fmt: skip


def grown(setting: Setting, methods: Sequence[Method], seeds: Sequence[int]) -> Setting:
    """The setting with more methods, more seeds or both; what it has of them already is left as it is.

    New methods are run at the seeds that are there, then new seeds with all methods.
    """
    found = list(setting.added or ())
    new = [method for method in methods if method not in setting.all_methods]
    if new:
        found.append(Added(tuple(new), tuple(setting.all_seeds)))
    later = [seed for seed in seeds if seed not in setting.all_seeds]
    if later:
        found.append(Added((*setting.all_methods, *new), tuple(later)))
    _refuse_namesakes(setting, new)
    return replace(setting, added=tuple(found) or None)


def _refuse_namesakes(setting: Setting, new: Sequence[Method]) -> None:
    """Refuse a method that tables and files could not tell from one that is there."""
    known = {method.label: method for method in setting.all_methods}
    for method in new:
        if method.label in known:
            fix = "give your class its own `title`"
            rule = f"would be called {method.label}, as {text(known[method.label])} is"
            raise InputError(option("methods"), rule, text(method), fix)
