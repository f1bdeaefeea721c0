"""`fedskip run` and `fedskip resume`."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedskip.input.errors import InputError
from fedskip.report.closing import closing
from fedskip.report.live import Live
from fedskip.report.page import verdict
from fedskip.report.results import Results
from fedskip.report.trackers.audience import TRACKERS, tracker
from fedskip.spec import Tree, assigned, build, bundled, load_yaml
from fedskip.spec.setting import KEYS
from fedskip.study import Interrupted, Study
from fedskip.study.workers import ProcessEnded

WIDTH = 120  # of tables where there is no terminal to fit
QUICKSTART = "quickstart"
Track = Annotated[
    list[str] | None,
    typer.Option("--track", metavar="NAME", help=f"{', '.join(TRACKERS)}, or MODULE:CLASS; may be repeated."),
]


def run(
    study: Annotated[str | None, typer.Argument(help="A bundled study or a YAML file.")] = None,
    methods: Annotated[str | None, typer.Option(help="Such as 'fedavg, fedskip(period=5)'.")] = None,
    rounds: Annotated[int | None, typer.Option(metavar="N")] = None,
    seeds: Annotated[int | None, typer.Option(metavar="N", help="How many: 0, 1, ... N-1.")] = None,
    engine: Annotated[str | None, typer.Option(metavar="auto|loop|stacked")] = None,
    device: Annotated[str | None, typer.Option(metavar="auto|cpu|cuda|cuda:N")] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any key of a study: local.lr=0.1, cohort=5, ..."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="By default runs/STUDY-N.", show_default=False)] = None,
    track: Track = None,
) -> None:
    """Run a study: quickstart, or another one, or the defaults of a data set (--set data.name=...)."""
    keys = {"methods": methods, "rounds": rounds, "seeds": seeds, "engine": engine, "device": device}
    given = {key: value for key, value in keys.items() if value is not None}
    for assignment in assignments or []:
        if (key := assignment.split("=")[0].strip()) in given:
            fix = f"leave out --set {assignment}"
            raise InputError(f"--{key}", "must not be given twice", given[key], fix)
    over = assigned(assignments or []).over(Tree(given, {key: f"--{key}" for key in given}))
    trackers = [tracker(name, "--track") for name in track or ()]
    new = Study(out, spec=build(chosen(study, over)))
    with resumable(new), _live(new) as progress:
        results = new.run(progress, trackers=trackers)
    _close(results)


def resume(
    out: Annotated[Path, typer.Argument(help="The folder of a study.", show_default=False)],
    rounds: Annotated[
        int | None, typer.Option(metavar="N", help="Go on to more rounds than planned.")
    ] = None,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Also where a library or the machine has changed.")
    ] = False,
    track: Track = None,
) -> None:
    """Go on with a study from its last checkpoint."""
    trackers = [tracker(name, "--track") for name in track or ()]
    study = Study.load(out)
    if rounds is None and not trackers and study.is_finished():
        typer.echo(f"{out} is finished; extend it with --rounds N")
        results = study.results()
    else:
        with resumable(study), _live(study) as progress:
            results = study.resume(progress, rounds=rounds, anyway=anyway, trackers=trackers)
    _close(results)


def chosen(study: str | None, over: Tree) -> Tree:
    """The study that a user means.

    The quickstart is made for its data set: with another one, and no study named, what the data set has by
    default is the study.
    """
    tree = load_yaml(bundled.find(study or QUICKSTART))
    data = over.values.get("data")
    name = data.get("name") if isinstance(data, Mapping) else None
    if study is None and name not in (None, tree.values["data"]["name"]):
        return over.over(Tree({"name": Path(str(name)).stem}))
    return overridden(tree, over)


def overridden(tree: Tree, over: Tree) -> Tree:
    """A study with the command line laid over it.

    It beats what single settings say, too: otherwise a key that they all set for themselves would be lost
    without a word. Only references keep what is theirs.
    """
    own = Tree({key: value for key, value in over.values.items() if key in KEYS and key != "name"})
    entries, places = tree.values.get("settings"), dict(tree.places)
    if isinstance(entries, list):
        entries = list(entries)
        for index, entry in enumerate(entries):
            if isinstance(entry, Mapping) and not entry.get("reference"):
                entries[index] = own.over(Tree(entry)).values
                places |= {f"settings.{index}.{path}": place for path, place in over.places.items()}
    return over.over(Tree({**tree.values, "settings": entries}, places))


@contextmanager
def resumable(study: Study) -> Iterator[None]:
    """Tells a user who stops the study how to go on."""
    try:
        yield
    except (Interrupted, KeyboardInterrupt) as stop:
        message = "Stopped before the study began; nothing was written."
        if (study.out / "study.yaml").exists():
            message = "Stopped before the first checkpoint. Begin again"
            if isinstance(stop, Interrupted):
                message = "Stopped at a checkpoint. Go on"
            elif any((study.out / "checkpoints").glob("*")):
                message = "Stopped at once; the last checkpoint is kept. Go on"
            message += f" with: fedskip resume {study.out}"
        typer.secho(message, fg="yellow", err=True)
        raise typer.Exit(130) from None
    except ProcessEnded as error:
        message = f"error: {error}; was there enough memory? Go on with: fedskip resume {study.out}"
        typer.secho(message, fg="red", err=True)
        raise typer.Exit(1) from None


def _console() -> Console:
    return Console(highlight=False, markup=False, emoji=False, width=None if sys.stdout.isatty() else WIDTH)


def _live(study: Study) -> Live:
    return Live(_console(), lambda: f"{study.spec.name} in {study.out}", len(study.spec.settings))


def _close(results: Results) -> None:
    console = _console()
    console.print(closing(results))
    console.print(*verdict(results), sep="\n")
    console.print(f"\n{results.out}", soft_wrap=True)
