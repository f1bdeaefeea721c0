"""The folder of a federation: what the server needs, and for each client what goes to its site.

federation.yaml     who takes part            study.yaml      what is trained
app/                the Flower app            certificates/   of the authority and the server
clients/NAME/       for the site NAME         keys/           the clients' public keys
run/                the results               systemd/        units that start both sides
"""

import sys
from pathlib import Path

from fedskip.config.yaml_text import written
from fedskip.errors import InputError
from fedskip.files import write_text
from fedskip.flower.config import CLIENT, FederationConfig, address
from fedskip.flower.keys import write_certificates, write_key
from fedskip.version import __version__

LOCAL = ("localhost", "127.0.0.1", "::1")  # the server's names for itself

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
serverapp = "fedskip.flower.server_app:app"
clientapp = "fedskip.flower.client_app:app"

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

Server {server}; clients {clients}.

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


def write_folder(folder: Path, config: FederationConfig, study: str, hosts: list[str]) -> None:
    """Make the folder of a new federation, with certificates and keys.

    `study`: what is trained, as YAML. `hosts`: other names of the server, for its certificate.
    """
    if folder.exists() and any(folder.iterdir()):
        raise InputError("DIR", "must be empty or new", str(folder), "choose another name")
    folder.mkdir(parents=True, exist_ok=True)
    config.write(folder)
    write_text(folder / "study.yaml", study)
    write_text(folder / "app" / "pyproject.toml", APP.format(version=__version__.split("+")[0]))
    write_certificates(folder / "certificates", [address(config.server)[0], *hosts, *LOCAL])
    ca = (folder / "certificates" / "ca.crt").read_text()
    for name in config.clients:
        own = folder / "clients" / name
        write_key(own / "client.key", folder / "keys" / f"{name}.pub")
        write_text(own / "ca.crt", ca)
        values = {"name": name, "server": config.server, "data": "", "state_dir": "state"}
        write_text(own / CLIENT, CLIENT_HEAD + written(values))
    _write_units(folder)
    names = ", ".join(config.clients)
    write_text(folder / "README.md", README.format(server=config.server, clients=names))


def _write_units(folder: Path) -> None:
    """Write systemd units. The server's fits this machine; the client's has paths to edit."""
    edit = "Better with a user of its own, who owns the folder."
    program, path = (
        str(path).replace("%", "%%")
        for path in (Path(sys.executable).with_name("fedskip"), folder.resolve())
    )
    server = UNIT.format(
        what="server", restart="on-failure", edit=edit, program=program, folder=path
    )
    first = (
        "Edit ExecStart and WorkingDirectory: where fedskip is, and the folder with client.yaml."
    )
    client = UNIT.format(
        what="client", restart="always", edit=f"{first} {edit}",
        program="/opt/fedskip/bin/fedskip", folder="/srv/fedskip/site",
    )  # fmt: skip
    write_text(folder / "systemd" / "fedskip-server.service", server)
    write_text(folder / "systemd" / "fedskip-client.service", client)
