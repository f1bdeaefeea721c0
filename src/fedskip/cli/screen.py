"""A study on the terminal: its progress, its table, and how to go on if it stops."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console

from fedskip.report import reach
from fedskip.report.closing import closing
from fedskip.report.live import Live
from fedskip.report.parts import verdict
from fedskip.report.results import Results
from fedskip.study import Interrupted, Study
from fedskip.study.workers import ProcessEnded

WIDTH = 120  # of tables where there is no terminal to fit


def console() -> Console:
    return Console(highlight=False, markup=False, emoji=False, width=None if sys.stdout.isatty() else WIDTH)


def live(study: Study) -> Live:
    return Live(console(), lambda: f"{study.spec.name} in {study.out}", len(study.spec.settings))


def close(results: Results) -> None:
    to = console()
    to.print(closing(results))
    wanted = any("target" in setting.keys for setting in results.compared)
    for line in [*verdict(results), *(reach.in_words(results) if wanted else ())]:
        to.print(line)
    to.print(f"\n{results.out}", soft_wrap=True)


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
