"""Several studies as one: runs of the same setting are put together, and differences are reported."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fedskip.config.tree import flatten
from fedskip.errors import InputError
from fedskip.methods.grammar import label_among, labels_as_added, parse_many
from fedskip.records.folder import Facts
from fedskip.report.results import Results, SettingInfo, merge_guesses

if TYPE_CHECKING:
    import pandas as pd

# keys that may differ within a setting
FREE = (
    "name", "seeds", "methods", "client_accuracy", "slot_accuracy", "target", "note", "record",
)  # fmt: skip


def combine(studies: Sequence[Results], metric: str | None = None) -> tuple[Results, list[str]]:
    """The results of several studies as one, and remarks that a reader has to know.

    Settings that agree in everything but their methods and seeds become one. Others of the same name get
    the name of their folder, too. Of a run that two studies have, the first counts.

    `metric`: one of the further metrics, in the place of the headline.
    """
    import pandas as pd

    studies = studies if metric is None else [study.by(metric) for study in studies]
    if len(studies) == 1:
        return studies[0], []
    settings: list[SettingInfo] = []
    sources: list[list[tuple[Results, SettingInfo]]] = []  # by setting: where its runs come from
    remarks: list[str] = []
    for study in studies:
        for setting in study.settings:
            same = (i for i, one in enumerate(settings) if alike(one, setting))
            at = next(same, len(settings))
            if at < len(settings):
                settings[at] = _joined(settings[at], setting)
            else:
                settings.append(_with_own_name(setting, study, settings, remarks))
                sources.append([])
            sources[at].append((study, setting))
    if all(one.reference for one in settings):
        raise InputError("OUT", "hold nothing to compare: every setting is a reference")
    tables: dict[str, list[pd.DataFrame]] = {"summary": [], "history": [], "clients": []}
    taken: set[str] = set()  # runs, by their new names
    for setting, origins in zip(settings, sources, strict=True):
        labels = relabelled([one.method_parts for _, one in origins])
        for (study, one), new_labels in zip(origins, labels, strict=True):
            runs = study.runs(one.name).set_index("run")
            methods = runs["method"].replace(dict(new_labels))
            names = setting.name + "." + methods + ".s" + runs["seed"].astype(str)
            names = pd.DataFrame({"setting": setting.name, "run": names, "method": methods})
            if twice := [name for name in names["run"] if name in taken]:
                text = f"{', '.join(twice)} left out, as another study has it."
                remarks.append(f"{study.out}: {text}")
            names = names[~names["run"].isin(taken)]
            taken |= set(names["run"])
            for table, parts in tables.items():
                rows = getattr(study, table)
                rows = rows[rows["run"].isin(names.index)]
                parts.append(rows.assign(**{name: rows["run"].map(names[name]) for name in names}))
    combined = {name: pd.concat(parts, ignore_index=True) for name, parts in tables.items()}
    results = Results(
        studies[0].out,
        " + ".join(dict.fromkeys(study.name for study in studies)),
        settings,
        combined["summary"].fillna({"ended": ""}),
        combined["history"],
        all(study.finished for study in studies),
        studies=studies,
        _clients=combined["clients"],
    )
    return results, remarks


def _joined(one: SettingInfo, other: SettingInfo) -> SettingInfo:
    """A setting with the divisions, seeds and methods of another, too."""
    both = {}
    for key in ("methods", "seeds"):
        given = [info.keys.get(key) or [] for info in (one, other)]
        lists = [[values] if isinstance(values, str) else values for values in given]
        both[key] = list(dict.fromkeys(itertools.chain(*lists)))
    return replace(
        one,
        keys=one.keys | both,
        divisions=one.divisions | other.divisions,
        methods=list(dict.fromkeys([*one.methods, *other.methods])),
        guessing=merge_guesses([one.guessing, other.guessing]),
        warnings=list(dict.fromkeys([*one.warnings, *other.warnings])),
    )


def relabelled(studies: Sequence[Sequence[Sequence[str]]]) -> list[Mapping[str, str]]:
    """For each study, whose methods came in parts, its labels and those in a table of all of them.

    >>> relabelled([[["moon", "fedavg"]], [["moon(mu=5.0)"]]])
    [{'MOON': 'MOON(mu=1.0)', 'FedAvg': 'FedAvg'}, {'MOON(mu=5.0)': 'MOON(mu=5.0)'}]
    """
    same: list[Mapping[str, str]] = [{} for _ in studies]
    if ":" in str(studies):  # a custom method, whose code is not loaded
        return same
    try:
        labels = [labels_as_added(map(parse_many, parts)) for parts in studies]
    except InputError:  # a method of another version
        return same
    methods = [method for own in labels for method, _ in own]
    return [{label: label_among(method, methods) for method, label in own} for own in labels]


def alike(one: SettingInfo, other: SettingInfo) -> bool:
    """Whether runs of two settings may stand in one table: the same keys, and the same divisions.

    Of a division only the facts count that both have noted: a later version may note more.
    """
    shared = one.divisions.keys() & other.divisions.keys()
    pairs = [(one.divisions[seed], other.divisions[seed]) for seed in shared]
    same = all(a[fact] == b[fact] for a, b in pairs for fact in a.keys() & b.keys())
    return same and not differences(one.keys, other.keys)


def differences(one: Facts, other: Facts) -> list[str]:
    """The differences between two settings, by dotted key.

    >>> differences({"name": "a", "local": {"lr": 0.1}, "rounds": 5}, {"local": {"lr": 0.2}, "rounds": 5})
    ['local.lr: 0.1 and 0.2']
    """
    a, b = (flatten({k: v for k, v in keys.items() if k not in FREE}) for keys in (one, other))
    return [
        f"{key}: {a.get(key)} and {b.get(key)}"
        for key in dict.fromkeys([*a, *b])
        if a.get(key) != b.get(key)
    ]


def _with_own_name(
    setting: SettingInfo, study: Results, settings: Sequence[SettingInfo], remarks: list[str]
) -> SettingInfo:
    """The setting, under a name that no other one has; remarks its differences from its namesake."""
    namesake = next((one for one in settings if one.name == setting.name), None)
    if namesake is None:
        return setting
    apart = differences(namesake.keys, setting.keys) or ["its data or their division"]
    which = f"{study.out}: {setting.name} differs from the one before it"
    remarks.append(f"{which} in {'; '.join(apart)}.")
    taken, name = {one.name for one in settings}, f"{setting.name} ({study.out.resolve().name})"
    names: Any = itertools.chain([name], (f"{name} {n}" for n in itertools.count(2)))
    return replace(setting, name=next(one for one in names if one not in taken))
