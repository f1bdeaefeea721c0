"""What is done on a device, and what is said of it on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

Facts = Mapping[str, Any]
Serve = Callable[[Any], Iterator[Any]]  # does an errand, and tells on the way


class Device(NamedTuple):
    """A GPU, or a core, of a node; or a share of a GPU."""

    node: str  # Ray's name of it
    host: str  # that of its machine
    kind: str  # GPU or CPU
    number: int  # among those of its node

    def __str__(self) -> str:
        return f"{self.host} {self.kind} {self.number}"


@dataclass(eq=False)
class Errand:
    """Something that a device does from its start to its end."""

    name: str
    argument: Callable[[], Any]  # what a worker gets, made anew whenever it begins
    size: float = 0.0  # large ones go first
    failures: int = field(default=0, init=False)  # since it last came forward
    failed_on: set[Device] = field(default_factory=set, init=False)  # and where
    forward: bool = field(default=False, init=False)  # it has come forward at least once
    why: str = field(default="", init=False)  # it has been set aside

    def came_forward(self) -> None:
        """What it has done is kept: from here on it may fail as often again."""
        self.failures, self.failed_on, self.forward = 0, set(), True


class Began(NamedTuple):
    """A worker is there and begins."""

    facts: Facts  # of its node and its device


class Again(NamedTuple):
    """A worker lacks something: the errand is begun again, and who sent it may help before that."""

    lacks: Any


class Unfit(NamedTuple):
    """A device cannot do what it was asked to."""

    why: str


class Failed(NamedTuple):
    """An errand failed where it was done."""

    error: Exception


class NotStarted(NamedTuple):
    """A worker did not start: its device may be taken by others."""

    why: str


class Lost(NamedTuple):
    """A worker was lost, or hangs."""

    why: str


class Ended(NamedTuple):
    """An errand is done."""


class SetAside(NamedTuple):
    """An errand is given up."""

    why: str


class News(NamedTuple):
    """What is new of an errand."""

    errand: Errand
    device: Device
    what: Any


class Talk(Protocol):
    """An errand under way."""

    device: Device


class Hall(Protocol):
    """Where workers are."""

    def devices(self) -> list[Device]: ...  # that there are now

    def begin(self, device: Device, argument: Any) -> Talk: ...  # an errand on a device that is free

    def heard(self, talks: list[Any], seconds: float) -> Iterable[tuple[Any, Any]]:
        """What was said by some of those under way; after so many seconds, perhaps nothing.

        Words are fetched one after another, as they are asked for.
        """
        ...

    def end(self, device: Device) -> None: ...  # its worker, whatever it does

    def put(self, thing: Any) -> Parcel: ...  # for all nodes


class Parcel(Protocol):
    """Something that reaches a node once, however many workers open it."""

    def open(self) -> Any: ...
