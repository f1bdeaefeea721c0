"""A study on the terminal: its progress, its table, and how to go on if it stops."""

import os.path
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import typer
from rich.console import Console

from fedskip.cli.trouble import in_words, trouble
from fedskip.input.errors import InputError
from fedskip.report import reach, sweep
from fedskip.report.closing import closing
from fedskip.report.live import Live
from fedskip.report.parts import verdict
from fedskip.report.results import Results
from fedskip.study import Interrupted, Study
from fedskip.study.workers import ProcessEnded

WIDTH = 120  # of tables where there is no terminal to fit
LESS = "a new study needs less with --set rows=N (models side by side), processes=1 or a smaller local.batch"


def console() -> Console:
    return Console(highlight=False, markup=False, emoji=False, width=None if sys.stdout.isatty() else WIDTH)


def live(study: Study) -> Live:
    return Live(console(), lambda: f"{study.spec.name} in {study.out}", len(study.spec.settings))


def close(results: Results) -> None:
    to = console()
    to.print(closing(results))
    wanted = any("target" in setting.keys for setting in results.compared)
    for line in [*sweep.in_words(results), *verdict(results), *(reach.in_words(results) if wanted else ())]:
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
        killed = (
            (f"{error}; perhaps the memory ran out", "free some") if isinstance(error, ProcessEnded) else None
        )
        known = killed or trouble(error)
        if known is None:
            raise
        (what, fix), (safe, command) = known, kept(study)
        words = [what, safe, *([LESS] if "memory" in what else ()), f"{fix}, then {command}"]
        typer.secho(f"error: {in_words(*words)}", fg="red", err=True)
        raise typer.Exit(1) from None


def kept(study: Study) -> tuple[str, str]:
    """What of a study that failed is safe, and how to go on."""
    if not os.path.exists(study.out / "study.yaml"):
        return f"nothing of the study is in {study.out}", "run it again"
    rounds: list[str] = []
    with suppress(OSError, InputError):
        rounds = [f"{part} up to round {at}" for part, at in study.folder.last_rounds().items() if at]
    safe = f"kept: {', '.join(rounds)}" if rounds else "there is no checkpoint yet"
    return safe, f"go on with: fedskip resume {study.out}"
