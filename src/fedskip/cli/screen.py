"""A study on the terminal: its progress, its table, and how to go on if it stops."""

import os.path
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import typer

from fedskip.cli.stops import stoppable
from fedskip.cli.trouble import in_words, trouble
from fedskip.input.errors import InputError
from fedskip.report import reach, sweep
from fedskip.report.closing import closing
from fedskip.report.live import console as console
from fedskip.report.parts import verdict
from fedskip.report.results import Results
from fedskip.study import Interrupted, Study
from fedskip.study.interrupted import explained, how_to_go_on
from fedskip.study.spread import GroupsFailed
from fedskip.study.workers import ProcessEnded

LESS = "a new study needs less with --set rows=N (models side by side), processes=1 or a smaller local.batch"


def close(results: Results, *more: Callable[[], None]) -> None:
    """The last words on a study; `more`: what is shown before its folder."""
    to = console()
    to.print(closing(results))
    wanted = any("target" in setting.keys for setting in results.compared)
    for line in [*sweep.in_words(results), *verdict(results), *(reach.in_words(results) if wanted else ())]:
        to.print(line)
    for show in more:
        show()
    to.print(f"\n{results.out}", soft_wrap=True)


@contextmanager
def resumable(study: Study, grace: float | None = None) -> Iterator[None]:
    """Tells a user whose study stops what was kept, and how to go on.

    `grace`: seconds after a signal in which it has stopped, at a checkpoint or not.
    """

    def last_words() -> str:
        return in_words(f"Stopped {grace:g} s after the signal, between checkpoints", *kept(study))

    with stoppable(grace, last_words) as asked:
        try:
            with explained(lambda: (study.out, study.spec)):
                yield
        except Interrupted as stop:
            asked.give_way()
            raise _stopped(stop) from None
        except BrokenPipeError:
            raise
        except (OSError, MemoryError, RuntimeError) as error:
            asked.give_way()
            known = _lost(error) or trouble(error)
            if known is None and asked.number is not None:  # a compiler, say, got the signal, too
                told = how_to_go_on(study.out, study.spec)
                raise _stopped(Interrupted(told, asked.number)) from None
            if known is None:
                raise
            (what, fix), (safe, command) = known, kept(study)
            words = [what, safe, *([LESS] if "memory" in what else ()), f"{fix}, then {command}"]
            typer.secho(f"error: {in_words(*words)}", fg="red", err=True)
            raise typer.Exit(1) from None


def _lost(error: BaseException) -> tuple[str, str] | None:
    """What is the matter, and what helps, where a training process was lost."""
    if isinstance(error, GroupsFailed):
        return str(error), "see to that"
    return (f"{error}; perhaps the memory ran out", "free some") if isinstance(error, ProcessEnded) else None


def _stopped(stop: Interrupted) -> typer.Exit:
    """Say where a signal has stopped a study, and how to go on; gives the exit."""
    typer.secho(stop.message(flags=True), fg="yellow", err=True)
    return typer.Exit(128 + stop.number)


def kept(study: Study) -> tuple[str, str]:
    """What of a study that failed is safe, and how to go on."""
    if not os.path.exists(study.out / "study.yaml"):
        return f"nothing of the study is in {study.out}", "run it again"
    rounds: list[str] = []
    with suppress(OSError, InputError):
        rounds = [f"{part} up to round {at}" for part, at in study.folder.last_rounds().items() if at]
    safe = f"kept: {', '.join(rounds)}" if rounds else "there is no checkpoint yet"
    return safe, f"go on with: fedskip resume {study.out}"
