"""The folder of a federation: what the server needs, and for each client what goes to its site.

federation.yaml     who takes part            study.yaml      what is trained
app/                the Flower app            certificates/   the authority's and the server's
clients/NAME/       for the site NAME         keys/           the clients' public halves
run/                what comes of it          systemd/        units to start both with
"""

import dataclasses
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedskip.files import expanded, write_text
from fedskip.flower import agreement
from fedskip.flower.agreement import Agreement, address
from fedskip.flower.keys import write_certificates, write_key
from fedskip.flower.site import check_client
from fedskip.input.errors import InputError, require, unknown_key
from fedskip.input.fit import fit_all
from fedskip.input.plain import load, read_text, written
from fedskip.version import __version__

CLIENT = "client.yaml"
LOCAL = ("localhost", "127.0.0.1", "::1")  # the server calls itself so

APP = """\
# A Flower app. Both halves are in the package fedskip, which every machine has installed. Flower shows this
# file to all nodes, so nothing that clients must not know may be written here.
[project]
name = "fedskip-federation"
version = "{version}"
license = "MIT"

[tool.flwr.app]
publisher = "fedskip"

[tool.flwr.app.components]
serverapp = "fedskip.flower.serverapp:app"
clientapp = "fedskip.flower.clientapp:app"

[tool.flwr.app.config]
"""

UNIT = """\
# Copy to /etc/systemd/system/, then: systemctl enable --now fedskip-{what}
# {edit}
[Unit]
Description=fedskip federation: {what}
After=network-online.target
Wants=network-online.target

[Service]
ExecStart="{program}" federation {what} .
WorkingDirectory={folder}
# User=fedskip
Restart={restart}
# a client that comes back sooner is still known as the old one, and refused
RestartSec=60
KillMode=mixed
TimeoutStopSec=30
UMask=0077
NoNewPrivileges=yes
ProtectSystem=full

[Install]
WantedBy=multi-user.target
"""


@dataclass(frozen=True, kw_only=True)
class ClientFile:
    """What a site is started with: `client.yaml`, whose paths are relative to it."""

    name: str
    server: str
    data: str = ""
    loader: str | None = None
    share: str | None = None
    state_dir: str = "state"
    ca: str = "ca.crt"
    key: str = "client.key"
    device: str = "auto"
    port: int | None = None  # of the node itself, on this machine only; None: a free one
    epsilon: float | None = None  # the most that private visits may cost here; None: the study decides

    def __post_init__(self) -> None:
        fit_all(self, "")
        check_client(self.name)
        address(self.server)
        rule = "must be a port from 1 to 65535"
        require("port", self.port is None or 0 < self.port < 65536, rule, self.port)
        require("epsilon", self.epsilon is None or self.epsilon > 0, "must be > 0", self.epsilon)

    @classmethod
    def read(cls, folder: Path, **given: Any) -> "ClientFile":
        """The file in a folder, with what was given on the command line laid over it; paths made whole."""
        values: dict[str, Any] = {}
        file = folder / CLIENT
        if file.exists():
            values = load(read_text(file), str(file))
            require(str(file), isinstance(values, dict), "must hold keys such as name: site-a")
        known = [field.name for field in dataclasses.fields(cls)]
        for key in values:
            if key not in known:
                raise unknown_key(str(key), known).at(str(file))
        values = {key: value for key, value in values.items() if value is not None}
        for key in ("state_dir", "ca", "key", "share", "data"):
            path = values.get(key, getattr(cls, key, None))  # what is left out has a default
            inside = isinstance(path, str) and path and (key != "data" or (folder / path).exists())
            if inside:
                values[key] = str(folder / expanded(str(path), key))
        for key in ("name", "server"):
            fix = f"give --{key}, or a folder with a {CLIENT}"
            require(key, key in values or key in given, "is missing", ..., fix)
        return cls(**{**values, **given})


def write_folder(folder: Path, parties: Agreement, study: str, hosts: list[str]) -> None:
    """Make the folder of a new federation, with certificates and keys; the study is given as YAML."""
    if folder.exists() and any(folder.iterdir()):
        raise InputError("DIR", "must be empty or new", str(folder), "choose another name")
    folder.mkdir(parents=True, exist_ok=True)
    parties.write(folder / agreement.FILE)
    write_text(folder / "study.yaml", study)
    write_text(folder / "app" / "pyproject.toml", APP.format(version=__version__.split("+")[0]))
    write_certificates(folder / "certificates", [address(parties.server)[0], *hosts, *LOCAL])
    ca = (folder / "certificates" / "ca.crt").read_text()
    for name in parties.clients:
        site = folder / "clients" / name
        write_key(site / "client.key", folder / "keys" / f"{name}.pub")
        write_text(site / "ca.crt", ca)
        values = {"name": name, "server": parties.server, "data": "", "state_dir": "state"}
        write_text(site / CLIENT, CLIENT_HEAD + written(values))
    write_units(folder)
    write_text(folder / "README.md", README.format(server=parties.server, sites=", ".join(parties.clients)))


def write_units(folder: Path) -> None:
    """Units that start both sides with their machines; the server's is for this machine, as it is."""
    edit = "Better with a user of its own, who owns the folder."
    here = {"program": Path(sys.executable).with_name("fedskip"), "folder": folder.resolve()}
    plain = {name: str(path).replace("%", "%%") for name, path in here.items()}
    server = UNIT.format(what="server", restart="on-failure", edit=edit, **plain)
    edit = "Edit ExecStart and WorkingDirectory: where fedskip is, and the folder with client.yaml. " + edit
    there = {"program": "/opt/fedskip/bin/fedskip", "folder": "/srv/fedskip/site"}
    client = UNIT.format(what="client", restart="always", edit=edit, **there)
    write_text(folder / "systemd" / "fedskip-server.service", server)
    write_text(folder / "systemd" / "fedskip-client.service", client)


STUDY = """\
# What is trained. The data stay at the sites, so the model, the cohort and the rounds are written here.
# Leave `seeds` out: the server then draws a secret one, which nobody can guess from what a client sees.
name: federation
data: {{name: sites}}
model: {{name: mlp, inputs: 60, classes: 5}} # your own is MODULE:NAME, on all machines
cohort: {cohort} # clients that train in a round
methods: fedskip(period=3)
rounds: 30
local: {{lr: 0.01, batch: 32, epochs: 1}}
"""

CLIENT_HEAD = """\
# What this site is started with: fedskip federation client FOLDER. Paths are relative to this file.
# data: a file, such as /data/site.npz; loader: MODULE:FUNCTION makes a fedskip.Dataset of anything else.
"""

README = """\
# A federation

Server {server}; clients {sites}.

1. Write what is to be trained into `study.yaml`, and read `federation.yaml`.
2. Copy `clients/NAME/` to the site NAME, in a way that nobody else can read: it holds the site's private
   key. A site may make its own with `ssh-keygen -t ecdsa -b 384 -f client.key`, and send you `client.key.pub`
   for `keys/NAME.pub`. Then remove `clients/` here.
3. At each site: install fedskip with `pip install 'fedskip[flower]'`, name the data in `client.yaml`, then
   `fedskip federation check .` and `fedskip federation client .`
4. Here: `fedskip federation check .` and `fedskip federation server .`

Results come to `run/`; the same command goes on from the last round if it was stopped. `certificates/ca.key`
signs certificates: keep it away from the network. The units in `systemd/` start both sides with the machine.
"""
