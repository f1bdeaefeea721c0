"""What the parties of a federation have agreed on: `federation.yaml`, beside the study."""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedskip.files import write_text
from fedskip.flower.site import check_client
from fedskip.input.errors import InputError, require, unknown_key
from fedskip.input.fit import fit_all
from fedskip.input.plain import load, read_text, written

FILE = "federation.yaml"
PORT = 8000


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Who takes part, and how long one waits for whom. Names are the order in which clients are drawn."""

    clients: tuple[str, ...]
    server: str = f"127.0.0.1:{PORT}"  # HOST:PORT, as clients reach it
    fewest: int = 1  # clients, without which no round begins
    wait: float = 600.0  # seconds for clients to appear
    timeout: float = 3600.0  # seconds for the replies of a round
    norm_limit: float = 10.0  # an update of more than so many times the round's median is refused; 0: none
    test: str | None = None  # a data set of the server's own, to test on besides

    def __post_init__(self) -> None:
        fit_all(self, "")
        rule = "must be a list of names"
        ok = isinstance(self.clients, tuple | list) and all(isinstance(name, str) for name in self.clients)
        require("clients", ok and len(self.clients) > 0, rule, self.clients, "clients: [site-a, site-b]")
        object.__setattr__(self, "clients", tuple(check_client(name, "clients") for name in self.clients))
        for name, count in Counter(self.clients).items():
            require("clients", count == 1, "must have different names", name)
        require(
            "fewest", 1 <= self.fewest <= len(self.clients), f"must be 1 to {len(self.clients)}", self.fewest
        )
        for name in ("wait", "timeout"):
            value = getattr(self, name)
            require(name, 0 < value <= 30 * 86_400, "must be seconds, at most 30 days", value)
        require(
            "norm_limit",
            self.norm_limit == 0 or self.norm_limit > 1,
            "must be above 1, or 0",
            self.norm_limit,
        )
        address(self.server, "server")

    @classmethod
    def read(cls, path: Path) -> Agreement:
        """The agreement in a file."""
        values: Any = load(read_text(path), str(path))
        require(str(path), isinstance(values, dict), "must hold keys such as clients: [a, b]")
        known = [field.name for field in dataclasses.fields(cls)]
        for key in values:
            if key not in known:
                raise unknown_key(str(key), known).at(str(path))
        require("clients", "clients" in values, "is missing", ..., f"name them in {path}")
        try:
            return cls(**values)
        except InputError as error:
            raise error.at(str(path)) from None

    def write(self, path: Path) -> None:
        values = {**dataclasses.asdict(self), "clients": list(self.clients)}
        write_text(path, written({k: v for k, v in values.items() if v is not None}))


def address(text: str, field: str = "server") -> tuple[str, int]:
    """Host and port of an address."""
    host, _, port = text.rpartition(":")
    ok = bool(host) and port.isascii() and port.isdigit() and 0 < int(port[:9]) < 65536
    ok = ok and not any(c.isspace() or c in "/@" for c in host)
    require(field, ok, "must be HOST:PORT", text, "such as fl.example.org:8000")
    return host.strip("[]"), int(port)
