"""A study that is stopped: one line says what was kept, and how to go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fedskip.input.errors import either, told
from fedskip.spec import StudySpec, dump
from fedskip.spec.setting import PYTHON


class Interrupted(KeyboardInterrupt):
    """The study was stopped; its message says how to go on.

    As a KeyboardInterrupt it also ends loops over studies that go on after an Exception.
    """

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
        raise Interrupted(_said(*study(), at_checkpoint=isinstance(stop, Interrupted))) from None


def _said(out: Path, spec: StudySpec, at_checkpoint: bool) -> str:
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
