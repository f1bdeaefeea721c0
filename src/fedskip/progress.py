"""What a study tells while it works. The command line draws it; by default nothing is said."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from fedskip.history import Row

if TYPE_CHECKING:
    from fedskip.batch import Batch


class Progress(Protocol):
    def setting(self, batch: Batch, rows: Iterable[Row]) -> None:
        """A setting begins, or goes on from a checkpoint; `rows` are what its history holds."""

    def recorded(self, rows: list[Row]) -> None:
        """Rows of the history have been found, and are written now or at the next checkpoint."""

    def checkpoint(self, batch: Batch) -> None:
        """A checkpoint has been written."""

    def finished(self) -> None:
        """All settings are done."""


class Silent:
    """Says nothing."""

    def setting(self, batch: Batch, rows: Iterable[Row]) -> None: ...

    def recorded(self, rows: list[Row]) -> None: ...

    def checkpoint(self, batch: Batch) -> None: ...

    def finished(self) -> None: ...
