"""A study on the terminal: its progress, its table, and how to go on if it stops."""

import os.path
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import typer
from rich.console import Console

from fedskip.cli.trouble import trouble
from fedskip.records.checkpoint import found
from fedskip.report import reach
from fedskip.report.closing import closing
from fedskip.report.live import Live
from fedskip.report.parts import verdict
from fedskip.report.results import Results
from fedskip.study import Interrupted, Study
from fedskip.study.workers import ProcessEnded

WIDTH = 120  # of tables where there is no terminal to fit
LESS = " Where more cannot be had, begin anew with less at a time: --set rows=N, processes=1 or local.batch=N"


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
    """Tells a user whose study stops what was kept, and how to go on."""
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
    except BrokenPipeError:
        raise
    except (OSError, MemoryError, RuntimeError) as error:
        ended = f"{error}; was there enough memory?" if isinstance(error, ProcessEnded) else trouble(error)
        if ended is None:
            raise
        fix = LESS if "memory" in ended else ""
        typer.secho(f"error: {ended} {kept(study)}{fix}", fg="red", err=True)
        raise typer.Exit(1) from None


def kept(study: Study) -> str:
    """What of a study that failed is safe, and the command that goes on."""
    if not os.path.exists(study.out / "study.yaml"):
        return f"Nothing of the study is in {study.out}: run it again."
    rounds = []
    for setting in study.spec.settings:
        with suppress(OSError):
            rounds += [
                f"{setting.name} up to round {round}"
                for round, _ in found(study.out / "checkpoints", setting.name)[-1:]
            ]
    safe = f"Kept: {', '.join(rounds)}" if rounds else "There is no checkpoint yet"
    return f"{safe}. Then go on with: fedskip resume {study.out}"
