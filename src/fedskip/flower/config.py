"""What the parties of a federation configure: `federation.yaml` at the server, `client.yaml` at a client."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from fedskip.config.yaml_text import load, read_text, written
from fedskip.errors import InputError, require, unknown, unknown_key
from fedskip.files import expand_home, write_text
from fedskip.parsing import fit_all

FEDERATION, CLIENT = "federation.yaml", "client.yaml"
RUN = "run"  # the folder for results, inside that of the federation
PORT = 8000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, kw_only=True)
class FederationConfig:
    """Who takes part, and how long the server waits."""

    clients: tuple[str, ...]  # their names, in the order in which cohorts are drawn
    server: str = f"127.0.0.1:{PORT}"  # HOST:PORT, as clients reach it
    fewest: int = 1  # no round begins with fewer clients
    wait: float = 600.0  # seconds to wait for clients to appear
    timeout: float = 3600.0  # seconds to wait for the replies of a round
    norm_limit: float = 10.0  # refuse updates above this multiple of the round's median; 0: none
    test: str | None = None  # a data set at the server, as an additional test

    def __post_init__(self) -> None:
        fit_all(self, "")
        rule, names = "must be a list of names", self.clients
        ok = isinstance(names, tuple | list) and all(isinstance(name, str) for name in names)
        require("clients", ok and len(names) > 0, rule, names, "clients: [site-a, site-b]")
        object.__setattr__(self, "clients", tuple(check_name(name, "clients") for name in names))
        for name, count in Counter(self.clients).items():
            require("clients", count == 1, "must have different names", name)
        most = len(self.clients)
        require("fewest", 1 <= self.fewest <= most, f"must be 1 to {most}", self.fewest)
        for name in ("wait", "timeout"):
            value = getattr(self, name)
            require(name, 0 < value <= 30 * 86_400, "must be seconds, at most 30 days", value)
        limit = self.norm_limit
        require("norm_limit", limit == 0 or limit > 1, "must be above 1, or 0", limit)
        address(self.server)

    @classmethod
    def read(cls, folder: Path) -> FederationConfig:
        """The `federation.yaml` in a folder."""
        path = folder / FEDERATION
        values = _read(path, cls, "clients: [a, b]")
        require("clients", "clients" in values, "is missing", ..., f"name them in {path}")
        try:
            return cls(**values)
        except InputError as error:
            raise error.at(str(path)) from None

    def write(self, folder: Path) -> None:
        values = {**dataclasses.asdict(self), "clients": list(self.clients)}
        text = written({key: value for key, value in values.items() if value is not None})
        write_text(folder / FEDERATION, text)


@dataclass(frozen=True, kw_only=True)
class NodeConfig:
    """What a client knows of itself while it trains. Flower hands it over as the "node config"."""

    name: str
    data: str  # a file, or the name of a data set
    state_dir: str = "state"  # for its memory and logs
    loader: str | None = None  # MODULE:FUNCTION, makes a Dataset of `data`
    share: str | None = None  # an .npz file: which samples of a common data set are this client's
    device: str = "auto"
    epsilon: float | None = None  # the most that private visits may cost; None: the study decides

    def __post_init__(self) -> None:
        fit_all(self, "")
        check_name(self.name)
        require("epsilon", self.epsilon is None or self.epsilon > 0, "must be > 0", self.epsilon)

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> NodeConfig:
        """From Flower's node config, in which Flower has keys, too."""
        known = _fields(NodeConfig)
        own = {k: v for k, v in values.items() if k not in ("partition-id", "num-partitions")}
        for key in own:
            if key not in known:
                raise unknown("node config", key, known)
        for key in ("name", "data", "state_dir"):
            require(f"node config {key}", key in own, "is missing")
        return NodeConfig(**own)

    def text(self) -> str:
        """The node config, as the option of Flower's command takes it."""
        values = {key: getattr(self, key) for key in _fields(NodeConfig)}
        values["state_dir"] = str(Path(self.state_dir).resolve())
        parts = []
        for key, value in values.items():
            if isinstance(value, str) and value:
                plain = not any(c in value for c in "'\"\\\n")
                require(key, plain, "must hold no quotes, backslashes or line breaks", value)
                parts.append(f"{key}='{value}'")
        limit = [] if self.epsilon is None else [f"epsilon={self.epsilon!r}"]
        return " ".join(parts + limit)


@dataclass(frozen=True, kw_only=True)
class ClientConfig(NodeConfig):
    """What the command of a client needs besides: how to reach the server."""

    data: str = ""
    server: str  # HOST:PORT
    ca: str = "ca.crt"  # the authority that signed the server's certificate
    key: str = "client.key"
    port: int | None = None  # of the client's own node, on this machine only; None: a free one

    def __post_init__(self) -> None:
        super().__post_init__()
        address(self.server)
        rule = "must be a port from 1 to 65535"
        require("port", self.port is None or 0 < self.port < 65536, rule, self.port)

    @classmethod
    def read(cls, folder: Path, **options: Any) -> Self:
        """The `client.yaml` in a folder; options of the command line win over it.

        Paths in the file are relative to the folder.
        """
        file = folder / CLIENT
        values = _read(file, cls, "name: site-a") if file.exists() else {}
        values = {key: value for key, value in values.items() if value is not None}
        for key in ("state_dir", "ca", "key", "share", "data"):
            path: Any = values.get(key, getattr(cls, key, None))
            if path and isinstance(path, str) and (key != "data" or (folder / path).exists()):
                values[key] = str(folder / expand_home(path, key))
        for key in ("name", "server"):
            fix = f"give --{key}, or a folder with a {CLIENT}"
            require(key, key in values or key in options, "is missing", ..., fix)
        return cls(**{**values, **options})


def address(text: str) -> tuple[str, int]:
    """The host and the port of a server's address."""
    host, _, port = text.rpartition(":")
    ok = bool(host) and port.isascii() and port.isdigit() and 0 < int(port[:9]) < 65536
    ok = ok and not any(c.isspace() or c in "/@" for c in host)
    require("server", ok, "must be HOST:PORT", text, "such as fl.example.org:8000")
    return host.strip("[]"), int(port)


def check_name(name: str, field: str = "name") -> str:
    """Client names become names of files."""
    rule = "must be letters, digits, dots, dashes and underscores, 64 at most"
    require(field, bool(_NAME.fullmatch(name)), rule, name)
    return name


def _read(path: Path, cls: type, example: str) -> dict[str, Any]:
    """The values in a YAML file, whose keys are the fields of a class."""
    values: Any = load(read_text(path), str(path))
    require(str(path), isinstance(values, dict), f"must hold keys such as {example}")
    known = _fields(cls)
    for key in values:
        if key not in known:
            raise unknown_key(str(key), known).at(str(path))
    return dict(values)


def _fields(cls: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(cls)]
