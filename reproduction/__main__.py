"""`python -m reproduction`: what can be made of the paper, and of our runs of it."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pandas as pd

from fedskip.errors import InputError
from reproduction import (
    complexity,
    fednova_weights,
    figures,
    membership,
    pages,
    partitions,
    runs,
    sigmoid,
    tables,
    theorem,
    visits,
    weighting,
)  # fmt: skip
from reproduction.columns import columns
from reproduction.statistics import UNTESTED

Parser = argparse.ArgumentParser
OUTS = "folders of studies, or folders that hold such; by default our own runs"


def show(title: str, table: pd.DataFrame) -> None:
    """Print a table, if there is anything in it."""
    if len(table):
        print(f"\n{title}\n{table.to_string(index=False)}")


def save(found: Mapping[str, pd.DataFrame], out: Path | None) -> None:
    """Print tables, and write each to OUT/NAME.csv."""
    for name, table in found.items():
        show(name, table)
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            table.to_csv(out / f"{name}.csv", index=False)
            print(f"wrote {out / f'{name}.csv'}", file=sys.stderr)


def status(chosen: argparse.Namespace) -> None:
    """The paper's tables filled with what was run, beside its numbers, and what was not run."""
    studies = runs.read_studies(chosen.out)
    known: set[tuple[runs.StudyFolder, str]] = set()
    for name, column in columns().items():
        found = column.runs(studies)
        here = set(zip(found["study"], found["run"], strict=True))
        if not here <= known:  # else it repeats what another column has shown
            show(name, tables.column_table(name, studies))
        known |= here
    summary = tables.headline(studies)
    made = summary[summary["verdict"] != UNTESTED]
    if len(made):
        show("FedSkip-5 against FedAvg", made if chosen.out else summary)
        show("merges / rounds to FedAvg's best accuracy", tables.table4(studies))
    if not chosen.out:
        show("not run", tables.missing(studies))
    shown = {study for study, _ in known}
    for study in (study for study in studies if study not in shown):
        print(f"{study.path} holds no run of the paper's settings that the tables need.")


def write_tables(_: argparse.Namespace) -> None:
    """Renew the tables on all pages, after runs were added."""
    changed = pages.write(runs.read_studies())
    print(f"renewed: {', '.join(changed)}" if changed else "all tables are up to date")


def draw_figures(chosen: argparse.Namespace) -> None:
    """Draw the figures that pages show: gains, Figures 1 to 5, gradients, Theorem 1."""
    for file in figures.draw(runs.read_studies(), chosen.to):
        print(file)


def check_theorem1(chosen: argparse.Namespace) -> None:
    """Theorem 1 and its Lemma 3 along training, with counterexamples; a minute."""
    save(theorem.check(), chosen.to)


def check_weighting(chosen: argparse.Namespace) -> None:
    """Where FedSkip settles when clients differ in size, trained and in closed form; half a minute."""
    save({"weighting": weighting.check()}, chosen.to)


def check_complexity(chosen: argparse.Namespace) -> None:
    """Costs of the server and of clients, measured; half an hour, five minutes without resnet50."""
    save(complexity.check(chosen.models.split(",") if chosen.models else ()), chosen.to)


def class_counts(chosen: argparse.Namespace) -> None:
    """Figure 3: how many samples of each class clients have; needs CIFAR-10."""
    save(partitions.figure3(), chosen.to)


def which_diverged(chosen: argparse.Namespace) -> None:
    """The runs that diverged, when, and on which client; needs their data sets."""
    save({"diverged": partitions.diverged(runs.read_studies(chosen.out))}, chosen.to)


def list_again(chosen: argparse.Namespace) -> None:
    """Run the command of a folder of our runs again, and compare its tables to the last digit."""
    show(chosen.name, runs.run_again(chosen.name))


def add_runs(chosen: argparse.Namespace) -> None:
    """Keep a finished study among our runs: a folder, and a row in runs.csv to complete."""
    for out in chosen.out:
        kept = runs.add(out, chosen.name or out.name, chosen.command, chosen.note)
        print(f"{kept}: now complete its row in {runs.RUNS / 'runs.csv'}, and run: "
              "python -m reproduction tables")  # fmt: skip


def experiment(
    make: Callable[[argparse.Namespace], pd.DataFrame], name: str
) -> Callable[..., None]:
    return lambda chosen: save({name: make(chosen)}, chosen.to)


def parser() -> Parser:
    found = Parser("python -m reproduction", description="The FedSkip paper, reproduced.")
    commands = found.add_subparsers(metavar="COMMAND")

    def add(name: str, act: Callable[[argparse.Namespace], None], words: str = "") -> Parser:
        own = commands.add_parser(name, help=(words or act.__doc__ or "").partition("\n")[0])
        own.set_defaults(act=act)
        return own

    def files(own: Parser, default: Path | None = None) -> Parser:
        own.add_argument(
            "--to", type=Path, default=default, metavar="DIR", help="where to write files"
        )
        return own

    outs = {"type": Path, "nargs": "*", "metavar": "OUT", "help": OUTS}
    add("status", status).add_argument("out", **outs)  # type: ignore[arg-type]
    add("tables", write_tables)
    files(add("figures", draw_figures), pages.ROOT)
    files(add("theorem1", check_theorem1))
    files(add("weighting", check_weighting))
    names = ",".join(case.name for case in complexity.CASES)
    files(add("complexity", check_complexity)).add_argument("--models", metavar=names)
    files(add("fig3", class_counts))
    files(add("diverged", which_diverged)).add_argument("out", **outs)  # type: ignore[arg-type]
    for name, module in {
        "visits": visits, "fednova-weights": fednova_weights, "sigmoid": sigmoid, "membership": membership,
    }.items():  # fmt: skip
        module.add_arguments(files(add(name, experiment(module.main, name), module.__doc__ or "")))
    add("again", list_again).add_argument("name", metavar="FOLDER")
    own = add("add", add_runs)
    own.add_argument("out", type=Path, nargs="+", metavar="OUT")
    own.add_argument("--name", help="of the folder in runs/; by default that of OUT")
    own.add_argument(
        "--command", default="not noted", help="that made it, such as 'fedskip run table2'"
    )
    own.add_argument("--note", default="")
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    commands = parser()
    chosen = commands.parse_args(arguments)
    if not hasattr(chosen, "act"):
        commands.print_help()
        return
    pd.set_option("display.max_colwidth", None)
    try:
        chosen.act(chosen)
    except InputError as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # the reader of a pipe may stop early
    main()
