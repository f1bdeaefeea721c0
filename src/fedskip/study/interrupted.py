"""A study that is stopped: one line says what was kept, and how to go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import SIGINT

from fedskip.input.errors import either, told
from fedskip.spec import StudySpec, dump
from fedskip.spec.setting import PYTHON


class Interrupted(KeyboardInterrupt):
    """The study was stopped; its message says how to go on.

    As a KeyboardInterrupt it also ends loops over studies that go on after an Exception. `number` is that
    of the signal.
    """

    def __init__(self, said: str = "", number: int = SIGINT) -> None:
        super().__init__(said)
        self.number = int(number)

    def message(self, *, flags: bool = False) -> str:
        """What is said; with `flags`, on the command line."""
        return told(super().__str__(), flags=flags)

    def __str__(self) -> str:
        return self.message()

    def _render_traceback_(self) -> list[str]:
        """What IPython shows: nobody looks for a mistake here."""
        return [str(self)]


@contextmanager
def explained(study: Callable[[], tuple[Path, StudySpec]]) -> Iterator[None]:
    """Inside, what stops a study becomes an `Interrupted` that tells what was kept in its folder."""
    try:
        yield
    except KeyboardInterrupt as stop:
        if isinstance(stop, Interrupted) and stop.args[0]:
            raise  # it was told already
        number = stop.number if isinstance(stop, Interrupted) else _number(stop)
        said = how_to_go_on(*study(), at_checkpoint=isinstance(stop, Interrupted))
        raise Interrupted(said, number) from None


def _number(stop: KeyboardInterrupt) -> int:
    """Of the signal, if it was noted."""
    return next((given for given in stop.args if isinstance(given, int)), SIGINT)


def how_to_go_on(out: Path, spec: StudySpec, at_checkpoint: bool = False) -> str:
    """What a study that was stopped has kept, and how to go on, in a line."""
    if not (out / "study.yaml").exists():
        return "Stopped before the study began; nothing was written."
    said = "Stopped before the first checkpoint. Begin again"
    if at_checkpoint:
        said = "Stopped at a checkpoint. Go on"
    elif any((out / "checkpoints").glob("*")):
        said = "Stopped at once; the last checkpoint is kept. Go on"
    return f"{said} with: {either(f'fedskip resume {out}', f'study.resume(), or later {_later(out, spec)}')}"


def _later(out: Path, spec: StudySpec) -> str:
    """How to go on in another process; what only Python has must be given again."""
    if any(mark in dump(spec) for mark in (PYTHON, "__main__:")):
        return f"Study({str(out)!r}, ...).resume() with the same arguments"
    return f"fedskip.resume({str(out)!r})"
