"""Several studies as one: runs of the same setting are put together, and what differs is said."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fedskip.input.errors import InputError
from fedskip.methods.grammar import label_among, labels_as_added, parse_many
from fedskip.records.history import HISTORY, SUMMARY
from fedskip.records.provenance import Facts
from fedskip.records.table import Row, Table
from fedskip.report.recorded import About, guesses
from fedskip.report.results import Results

# may differ within a setting
FREE = (
    "name", "seeds", "methods", "client_accuracy", "slot_accuracy", "target", "of_rounds", "of_seeds", "note",
    "swept",
)  # fmt: skip


def together(studies: Sequence[Results], metric: str | None = None) -> tuple[Results, list[str]]:
    """The results of several studies in one, and what has to be known to read them.

    `metric`: the one to look at them by, unless it is their headline.

    Settings that agree in everything but their methods and seeds become one. Others of the same name are
    called by their folder, too. Of a run that two studies have, the first counts.
    """
    studies = studies if metric is None else [study.by(metric) for study in studies]
    first, *others = studies
    if not others:
        return first, []
    settings: list[About] = []
    sources: list[list[tuple[Results, About]]] = []  # of each setting: where its runs come from
    notes: list[str] = []
    for study in studies:
        for setting in study.settings:
            at = next((i for i, one in enumerate(settings) if alike(one, setting)), len(settings))
            if at == len(settings):
                settings.append(_named(setting, study, settings, notes))
                sources.append([])
            settings[at] = _joined(settings[at], setting)
            sources[at].append((study, setting))
    if all(one.reference for one in settings):
        raise InputError("OUT", "hold nothing to compare: every setting is a reference")
    history: list[Row] = []
    summary: list[Row] = []
    for setting, found in zip(settings, sources, strict=True):
        called = relabelled([one.parts or [one.keys.get("methods", ())] for _, one in found])
        for (study, one), labels in zip(found, called, strict=True):
            notes += _taken(study, one.name, setting.name, labels, history, summary)
    names = " + ".join(dict.fromkeys(study.name for study in studies))
    finished = all(study.finished for study in studies)
    more = dict.fromkeys(name for study in studies for name in study.history.columns if name not in HISTORY)
    rows, runs = Table((*HISTORY, *more), history), Table((*SUMMARY, *more), summary)
    return Results(first.out, rows, runs, names, tuple(settings), finished, tuple(studies)), notes


def _joined(one: About, other: About) -> About:
    """A setting with the divisions, seeds and methods of another, too."""
    pairs = {
        key: [*_listed(one.keys.get(key)), *_listed(other.keys.get(key))] for key in ("methods", "seeds")
    }
    both = {key: list(dict.fromkeys(values)) for key, values in pairs.items()}
    divisions, short = one.divisions | other.divisions, one.short | other.short
    guessing, warned = guesses([one.guessing, other.guessing]), dict.fromkeys([*one.warned, *other.warned])
    return replace(
        one, keys=one.keys | both, divisions=divisions, short=short, guessing=guessing, warned=tuple(warned)
    )


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value] if value is not None else []


def relabelled(studies: Sequence[Sequence[Sequence[str]]]) -> list[dict[str, str]]:
    """For each study, whose methods came in parts, its labels and how a table of all of them calls these.

    >>> relabelled([[["moon", "fedavg"]], [["moon(mu=5.0)"]]])
    [{'MOON': 'MOON(mu=1.0)', 'FedAvg': 'FedAvg'}, {'MOON(mu=5.0)': 'MOON(mu=5.0)'}]
    """
    try:
        labels = [labels_as_added(map(parse_many, parts)) for parts in studies]
    except InputError:  # one's own that is not on this machine: every study keeps its labels
        return [{} for _ in studies]
    known = [method for own in labels for method, _ in own]
    return [{label: label_among(method, known) for method, label in own} for own in labels]


def alike(one: About, other: About) -> bool:
    """Whether runs of two settings may stand in one table: the same keys, and the same divisions.

    Of a division that counts which both have noted: a later version may note more.
    """
    seeds = one.divisions.keys() & other.divisions.keys()
    same = all(_agree(one.divisions[seed], other.divisions[seed]) for seed in seeds)
    return same and _core(one.keys) == _core(other.keys)


def _agree(one: Facts, other: Facts) -> bool:
    return all(one[fact] == other[fact] for fact in one.keys() & other.keys())


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


def _taken(
    study: Results, name: str, new: str, labels: Facts, history: list[Row], summary: list[Row]
) -> list[str]:
    """Take the runs of a setting over under new names; says which of them were there already."""
    there, twice = {row["run"] for row in summary}, []
    rows: dict[str, list[Row]] = {}  # by run
    for row in study.history:
        rows.setdefault(row["run"], []).append(row)
    for run in study.summary.where(setting=name):
        label = labels.get(run["method"], run["method"])
        name_of_run = f"{new}.{label}.s{run['seed']}"
        called = {"setting": new, "run": name_of_run, "method": label}
        if name_of_run in there:
            twice.append(name_of_run)
            continue
        summary.append(run | called)
        history += [row | called for row in rows.get(run["run"], ())]
    return [f"{study.out}: {', '.join(twice)} left out, as another study has it."] if twice else []
