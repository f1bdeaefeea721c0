"""Several studies as one: runs of the same setting are put together, and what differs is said."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fedskip.input.errors import InputError
from fedskip.records.history import HISTORY, SUMMARY
from fedskip.records.provenance import Facts
from fedskip.records.table import Row, Table
from fedskip.report.recorded import About
from fedskip.report.results import Results

FREE = ("name", "seeds", "methods", "client_accuracy", "slot_accuracy")  # may differ within a setting


def together(studies: Sequence[Results]) -> tuple[Results, list[str]]:
    """The results of several studies in one, and what has to be known to read them.

    Settings that agree in everything but their methods and seeds become one. Others of the same name are
    called by their folder, too. Of a run that two studies have, the first counts.
    """
    first, *others = studies
    if not others:
        return first, []
    settings: list[About] = []
    history: list[Row] = []
    summary: list[Row] = []
    notes: list[str] = []
    for study in studies:
        for setting in study.settings:
            at = next((i for i, one in enumerate(settings) if alike(one, setting)), None)
            if at is None:
                settings.append(_named(setting, study, settings, notes))
                at = len(settings) - 1
            known = replace(settings[at], divisions=settings[at].divisions | setting.divisions)
            settings[at] = known
            notes += _taken(study, setting.name, known.name, history, summary)
    if all(one.reference for one in settings):
        raise InputError("OUT", "hold nothing to compare: every setting is a reference")
    names = " + ".join(dict.fromkeys(study.name for study in studies))
    finished = all(study.finished for study in studies)
    rows, runs = Table(HISTORY, history), Table(SUMMARY, summary)
    return Results(first.out, rows, runs, names, tuple(settings), finished), notes


def alike(one: About, other: About) -> bool:
    """Whether runs of two settings may stand in one table: the same keys, and the same divisions."""
    same = all(one.divisions[s] == d for s, d in other.divisions.items() if s in one.divisions)
    return same and _core(one.keys) == _core(other.keys)


def _core(keys: Facts) -> Facts:
    return {key: value for key, value in keys.items() if key not in FREE}


def _named(setting: About, study: Results, settings: Sequence[About], notes: list[str]) -> About:
    """The setting, under a name that no other one has; says what it differs in from its namesake."""
    namesake = next((one for one in settings if one.name == setting.name), None)
    if namesake is None:
        return setting
    apart = differences(namesake.keys, setting.keys) or ["its data or their division"]
    notes.append(f"{study.out}: {setting.name} differs from the one before it in {'; '.join(apart)}.")
    taken, called = {one.name for one in settings}, f"{setting.name} ({study.out.resolve().name})"
    names = itertools.chain([called], (f"{called} {n}" for n in itertools.count(2)))
    return replace(setting, called=next(name for name in names if name not in taken))


def differences(one: Facts, other: Facts, at: str = "") -> list[str]:
    """What two settings differ in, by dotted key.

    >>> differences({"local": {"lr": 0.1}, "rounds": 5}, {"local": {"lr": 0.2}, "rounds": 5})
    ['local.lr: 0.1 and 0.2']
    """
    found: list[str] = []
    for key in [*one, *(key for key in other if key not in one)]:
        a: Any = one.get(key)
        b: Any = other.get(key)
        if (key in FREE and not at) or a == b:
            continue
        inner = isinstance(a, dict) and isinstance(b, dict)
        found += differences(a, b, f"{at}{key}.") if inner else [f"{at}{key}: {a} and {b}"]
    return found


def _taken(study: Results, name: str, new: str, history: list[Row], summary: list[Row]) -> list[str]:
    """Take the runs of a setting over under a new name; says which of them were there already."""
    there, twice = {row["run"] for row in summary}, []
    for run in study.summary.where(setting=name):
        called = {"setting": new, "run": f"{new}.{run['method']}.s{run['seed']}"}
        if called["run"] in there:
            twice.append(called["run"])
            continue
        summary.append(run | called)
        history += [row | called for row in study.history.where(run=run["run"])]
    return [f"{study.out}: {', '.join(twice)} left out, as another study has it."] if twice else []
