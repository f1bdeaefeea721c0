"""One run of a method: its server, its clients, and the loop that trains it. No device, no network."""

from fedskip.federation.clients import Clients, Memory
from fedskip.federation.run import Run
from fedskip.federation.run_record import (
    BrokenVisit,
    RunRecord,
    first_broken_visit,
    restore_records,
    save_records,
)
from fedskip.federation.server import Orders, Outcome, Replies, Saved, Server, Visited, draw_cohort
from fedskip.federation.training import train
from fedskip.federation.wiring import make_clients, make_plan, make_routes, make_run, make_task

__all__ = [
    "BrokenVisit", "Clients", "Memory", "Orders", "Outcome", "Replies", "Run", "RunRecord", "Saved", "Server",
    "Visited", "draw_cohort", "first_broken_visit", "make_clients", "make_plan", "make_routes", "make_run",
    "make_task", "restore_records", "save_records", "train",
]  # fmt: skip
