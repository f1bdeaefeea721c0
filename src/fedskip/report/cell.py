"""Progress in a cell of a notebook: one output that is drawn again while the study works."""

from __future__ import annotations

import contextvars
import io
import threading
from collections.abc import Callable
from typing import Any

from rich.console import Console, RenderableType

WIDTH, HEIGHT = 100, 40


def console() -> Console:
    """What keeps the lines that stay. Without colours, they look the same on light and on dark."""
    plain: dict[str, Any] = {"color_system": None, "highlight": False, "markup": False, "emoji": False}
    plain |= {"force_interactive": True, "force_jupyter": False}  # it would print there by itself
    return Console(file=io.StringIO(), width=WIDTH, height=HEIGHT, **plain)


class Cell:
    """Does for a cell what rich's Live does for a terminal: lines that stay, and a drawing below them.

    It needs no ipywidgets. When it stops, only the lines stay.
    """

    def __init__(
        self,
        get_renderable: Callable[[], RenderableType],
        console: Console,
        refresh_per_second: float,
        **_: Any,
    ) -> None:
        self._drawing, self._console, self._pause = get_renderable, console, 1 / refresh_per_second
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._handle: Any = None

    @property
    def is_started(self) -> bool:
        return self._thread is not None

    def start(self) -> None:
        from IPython.display import display

        self._handle = display(self._shown(self._drawing()), raw=True, display_id=True)
        here = contextvars.copy_context()  # it knows to which cell output belongs
        self._thread = threading.Thread(target=here.run, args=(self._keep_drawing,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        if self._thread is not None:
            self._over.set()
            self._thread.join()
            self._thread = None
            self._handle.update(self._shown(), raw=True)

    def _keep_drawing(self) -> None:
        while not self._over.wait(self._pause):
            self._handle.update(self._shown(self._drawing()), raw=True)

    def _shown(self, drawing: RenderableType = "") -> dict[str, str]:
        below = console()
        below.print(drawing)
        lines = [self._console.file.getvalue(), below.file.getvalue()]  # type: ignore[attr-defined]
        return {"text/plain": "\n".join(line.rstrip() for line in "".join(lines).rstrip().splitlines())}
