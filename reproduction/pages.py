"""The tables on our pages: which table stands under which heading, and how it is written there.

A table of a page is the first one under its heading. Sentences are written by hand and carry no numbers, so
that `python -m reproduction tables` can renew all tables after runs were added.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pandas as pd

from reproduction import evidence_tables, tables
from reproduction.columns import Studies
from reproduction.partitions import after_single_class, single_class_table
from reproduction.runs import RUNS, list_runs

ROOT = Path(__file__).parents[1]
Table = Callable[[Studies], pd.DataFrame]
RESULTS = "docs/results"


def column(name: str) -> Table:
    return partial(tables.column_table, name)


def kept_runs(_: Studies) -> pd.DataFrame:
    """`runs.csv`, with commands to copy."""
    found = list_runs()
    found["command"] = "`" + found["command"] + "`"
    return found


def kept_evidence(_: Studies) -> pd.DataFrame:
    found = evidence_tables.evidence("evidence")
    return found.assign(command="`" + found["command"] + "`")


def gradients(_: Studies) -> pd.DataFrame:
    visits = pd.concat(
        [evidence_tables.evidence(f"visits/{name}") for name in ("p50-seed1", "p50-others")]
    )
    return after_single_class(visits, "FedSkip-3", 50)


WARM = ("schedule/synthetic", "schedule/femnist")
PAGES: dict[str, dict[str, Table]] = {
    f"{RESULTS}/README.md": {
        "FedSkip-5 against FedAvg": tables.headline,
        "Beside the best baseline": tables.strongest,
    },
    f"{RESULTS}/table1.md": {
        "Accuracy": tables.table1,
        "What travelling gains": tables.travelling,
    },
    f"{RESULTS}/table2.md": {
        "β = 0.5": column("table2/cifar10-beta0.5"),
        "β = 1": column("table2/cifar10-beta1"),
        "IID": column("table2/cifar10-iid"),
        "ResNet-50, 20 of 200 rounds": column("resnet50/cifar100-beta0.5"),
        "The CNN, 200 rounds": column("cifar100cnn/cifar100-beta0.5-cnn"),
    },
    f"{RESULTS}/table3.md": {
        "SYNTHETIC": column("table3/synthetic"),
        "SYNTHETIC without the sigmoid": column("sigmoid/synthetic-linear"),
        "FEMNIST": column("table3/femnist"),
        "SHAKESPEARE": column("table3/shakespeare"),
        "CIFAR-10, 50 clients": column("table3/cifar10-p50"),
        "50 clients, clipped gradients": column("clip/cifar10-p50-clip10"),
        "50 clients, plain Dirichlet": column("plain/cifar10-p50-plain"),
        "CIFAR-10, 100 clients": column("table3/cifar10-p100"),
        "100 clients, clipped gradients": column("clip/cifar10-p100-clip10"),
        "100 clients, plain Dirichlet": column("plain/cifar10-p100-plain"),
        "SCAFFOLD's stars": column("variates/cifar10-p50"),
        "FedNova's weights": evidence_tables.fednova_weights,
    },
    f"{RESULTS}/table4.md": {
        "To FedAvg's best accuracy": tables.table4,
        "To FedAvg's last accuracy": partial(tables.table4, score="last"),
        "One column in full": partial(tables.traffic, name="table2/cifar10-beta0.5"),
    },
    f"{RESULTS}/figures.md": {
        "Figure 1: uneven data": tables.figure1,
        "Figure 4: the way there": tables.early,
        "Figure 5: the period": tables.figure5,
    },
    f"{RESULTS}/compositions.md": {
        "CIFAR-10, β = 0.5": partial(tables.compositions, name="compose/cifar10-beta0.5"),
        "SYNTHETIC": partial(tables.compositions, name="compose/synthetic"),
    },
    f"{RESULTS}/diverged.md": {
        "Clients with one class": lambda _: single_class_table(),
        "Gradients after such a client": gradients,
        "Runs that diverged": evidence_tables.diverged,
    },
    f"{RESULTS}/our-studies.md": {
        "Warm-ups": partial(tables.early, names=WARM, rounds=(20, 50, 60, 80, 100)),
        "Warm-ups on SYNTHETIC": column("schedule/synthetic"),
        "Warm-ups on FEMNIST": column("schedule/femnist"),
        "Longer server steps on SYNTHETIC": column("longer/synthetic"),
        "Longer server steps on FEMNIST": column("longer/femnist"),
        "Tuning FedDyn on SYNTHETIC": partial(tables.tuning, name="tune/feddyn-synthetic"),
        "Tuning FedDyn on FEMNIST": partial(tables.tuning, name="tune/feddyn-femnist"),
        "Tuning FedProx on SYNTHETIC": partial(tables.tuning, name="tune/fedprox-synthetic"),
        "Tuning FedProx on FEMNIST": partial(tables.tuning, name="tune/fedprox-femnist"),
        "Single slots": tables.slots,
        "The quickstart": tables.quickstart,
    },
    f"{RESULTS}/runs.md": {
        "Studies": kept_runs,
        "Run again": lambda _: pd.read_csv(RUNS / "again.csv"),
        "Without training a study": kept_evidence,
        "Not run": tables.missing,
    },
    "docs/theory.md": {
        "Theorem 1": evidence_tables.bounds,
        "Where Lemma 3 fails": evidence_tables.lemma,
        "Unequal clients": evidence_tables.unequal,
        "The server's time": evidence_tables.server_times,
        "What skipping saves": evidence_tables.savings,
        "A client": evidence_tables.client_costs,
        "The server's memory": evidence_tables.server_memory,
    },
    "docs/privacy.md": {"What a curious client can learn": evidence_tables.membership},
    "docs/robust.md": {"What poisoners do": tables.poisoning},
}


def renewed(text: str, heading: str, table: pd.DataFrame) -> str:
    """A page with the table under a heading replaced."""
    section = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#+ |\Z)", text, re.M | re.S)
    if section is None:
        raise ValueError(f"there is no heading {heading!r}")
    found = re.search(r"^\|.*\|$(?:\n\|.*\|$)*", section[1], re.M)
    if found is None:
        raise ValueError(f"there is no table under {heading!r}")
    start = section.start(1) + found.start()
    return text[:start] + tables.markdown(table) + text[section.start(1) + found.end() :]


def page(name: str, studies: Studies) -> str:
    """A page with all of its tables renewed."""
    text = (ROOT / name).read_text(encoding="utf-8")
    for heading, table in PAGES[name].items():
        try:
            text = renewed(text, heading, table(studies))
        except ValueError as error:
            raise SystemExit(f"error: {name}: {error}") from None
    return text


def write(studies: Studies) -> list[str]:
    """Renew all pages; gives the names of those that changed."""
    changed = []
    for name in PAGES:
        text = page(name, studies)
        if text != (ROOT / name).read_text(encoding="utf-8"):
            (ROOT / name).write_text(text, encoding="utf-8")
            changed.append(name)
    return changed
