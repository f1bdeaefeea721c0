"""One run of a method: its server, its clients, and the loop that trains it. No device, no network."""

from fedskip.federation.clients import Clients, Memory
from fedskip.federation.run import Broke, Run, first_broken
from fedskip.federation.server import Orders, Outcome, Replies, Saved, Server, Visited, draw_cohort
from fedskip.federation.training import train

__all__ = [
    "Broke", "Clients", "Memory", "Orders", "Outcome", "Replies", "Run", "Saved", "Server", "Visited",
    "draw_cohort", "first_broken", "train",
]  # fmt: skip
