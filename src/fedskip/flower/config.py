"""What the parties of a federation configure: `federation.yaml` at the server, `client.yaml` at a client."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from fedskip.config.yaml_text import load, read_text, written
from fedskip.errors import InputError, require, unknown_key
from fedskip.files import expand_home, write_text
from fedskip.parsing import Above, AtMost, fit_all

FEDERATION, CLIENT = "federation.yaml", "client.yaml"
RUN = "run"  # the folder for results, inside that of the federation
STATUS, ROUNDS = "status.json", "rounds.jsonl"  # in it, for the command that watches the run
FOLDER = (
    "FEDSKIP_FEDERATION"  # the environment variable that names a federation's folder to its server
)
TRUST = "FEDSKIP_TRUST"  # and one that says that its study may name code
IN_NODE = "client"  # the key of Flower's node config that holds a client's configuration
PORT = 8000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

Seconds = Annotated[float, Above(0), AtMost(30 * 86_400, "that is 30 days")]
Port = Annotated[int, Above(0), AtMost(65_535)]


@dataclass(frozen=True, kw_only=True)
class FederationConfig:
    """Who takes part, and how long the server waits."""

    clients: tuple[str, ...] = ()  # their names, in the order in which cohorts are drawn
    server: str = f"127.0.0.1:{PORT}"  # HOST:PORT, as clients reach it
    fewest: int = 1  # no round begins with fewer clients
    wait: Seconds = 600.0  # for clients to appear
    timeout: Seconds = 3600.0  # for the replies of a round
    norm_limit: float = 10.0  # refuse updates above this multiple of the round's median; 0: none
    test: str | None = None  # a data set at the server, as an additional test

    def __post_init__(self) -> None:
        fit_all(self)
        rule, names = "must be a list of names", self.clients
        ok = isinstance(names, tuple | list) and all(isinstance(name, str) for name in names)
        require("clients", ok and len(names) > 0, rule, names, "clients: [site-a, site-b]")
        object.__setattr__(self, "clients", tuple(check_name(name, "clients") for name in names))
        most, limit = len(names), self.norm_limit
        require("clients", len(set(names)) == most, "must have different names", names)
        require("fewest", 1 <= self.fewest <= most, f"must be 1 to {most}", self.fewest)
        require("norm_limit", limit == 0 or limit > 1, "must be above 1, or 0", limit)
        address(self.server)

    @classmethod
    def read(cls, folder: Path) -> FederationConfig:
        """The `federation.yaml` in a folder."""
        path = folder / FEDERATION
        try:
            return cls(**_read(path, cls))
        except InputError as error:
            raise error.at(str(path)) from None

    def write(self, folder: Path) -> None:
        values = {**vars(self), "clients": list(self.clients)}
        text = written({key: value for key, value in values.items() if value is not None})
        write_text(folder / FEDERATION, text)


@dataclass(frozen=True, kw_only=True)
class ClientConfig:
    """Who a client is, what its data are, and how it reaches the server."""

    name: str
    server: str = f"127.0.0.1:{PORT}"  # HOST:PORT
    data: str = ""  # a file, or the name of a data set
    loader: str | None = None  # MODULE:FUNCTION, makes a Dataset of `data`
    share: str | None = None  # an .npz file: which samples of a common data set are this client's
    state_dir: str = "state"  # for its memory and logs
    ca: str = "ca.crt"  # the authority that signed the server's certificate
    key: str = "client.key"
    device: str = "auto"
    port: Port | None = None  # of the client's own node, on this machine only; None: a free one
    epsilon: Annotated[float, Above(0)] | None = None  # the most that private visits may cost
    allow: tuple[str, ...] = ()  # code that the server may name, as MODULE:NAME

    def __post_init__(self) -> None:
        fit_all(self)
        ok = isinstance(self.allow, tuple | list) and all(isinstance(n, str) for n in self.allow)
        require("allow", ok, "must be a list of names", self.allow, "allow: ['my_nets:Net']")
        object.__setattr__(self, "allow", tuple(self.allow))
        check_name(self.name)
        address(self.server)

    @classmethod
    def read(cls, folder: Path, **options: Any) -> ClientConfig:
        """The `client.yaml` in a folder; options of the command line win over it.

        Paths in the file are relative to the folder.
        """
        file = folder / CLIENT
        values = _read(file, cls) if file.exists() else {}
        for key in ("state_dir", "ca", "key", "share", "data"):
            path = values.get(key, getattr(cls, key))
            if path and isinstance(path, str) and (key != "data" or (folder / path).exists()):
                values[key] = str(folder / expand_home(path, key))
        values |= options
        for key in ("name", "server"):
            fix = f"give --{key}, or a folder with a {CLIENT}"
            require(key, key in values, "is missing", ..., fix)
        return cls(**values)

    def for_node(self) -> str:
        """The option of Flower's command by which the client's apps get it all."""
        here = dataclasses.replace(self, state_dir=str(Path(self.state_dir).resolve()))
        text = json.dumps(vars(here)).replace("'", "\\u0027")
        return f"{IN_NODE}='{text}'"

    @classmethod
    def of_node(cls, node_config: Mapping[str, Any]) -> ClientConfig:
        """The inverse of `for_node`, from what Flower has made of it."""
        return cls(**json.loads(node_config[IN_NODE]))


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


def _read(path: Path, cls: Any) -> dict[str, Any]:
    """The values in a YAML file, whose keys must be fields of a class."""
    values, known = (
        load(read_text(path), str(path)),
        [field.name for field in dataclasses.fields(cls)],
    )
    require(str(path), isinstance(values, dict), f"must hold keys such as {known[0]}")
    for key in values:
        if key not in known:
            raise unknown_key(str(key), known).at(str(path))
    return {key: value for key, value in values.items() if value is not None}
