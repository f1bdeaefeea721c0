"""The folder of a federation: what the server needs, and for each client what goes to its site.

federation.yaml     who takes part            study.yaml      what is trained
app/                the Flower app            certificates/   of the authority and the server
clients/NAME/       for the site NAME         keys/           the clients' public keys
run/                the results               systemd/        units that start both sides
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from fedskip import rng
from fedskip.config import StudySpec, dump, plain
from fedskip.config.tree import named_code
from fedskip.config.yaml_text import written
from fedskip.data.catalogue import LoadedDatasets
from fedskip.data.division import Division, divide
from fedskip.errors import InputError, require
from fedskip.files import write_text
from fedskip.flower.config import CLIENT, FederationConfig, address
from fedskip.flower.keys import write_certificates, write_key
from fedskip.flower.plan import FederationPlan
from fedskip.flower.processes import free_port
from fedskip.version import __version__

LOOPBACK = ("localhost", "127.0.0.1", "::1")  # the server's names for itself
TEMPLATES = Path(__file__).parent / "templates"

# --- a federation on many machines ---------------------------------------------------------------


def write_folder(folder: Path, config: FederationConfig, study: str, hosts: list[str]) -> None:
    """Make the folder of a new federation, with certificates and keys.

    `study`: what is trained, as YAML. `hosts`: other names of the server, for its certificate.
    """
    if folder.exists() and any(folder.iterdir()):
        raise InputError("DIR", "must be empty or new", str(folder), "choose another name")
    folder.mkdir(parents=True, exist_ok=True)
    config.write(folder)
    write_text(folder / "study.yaml", study)
    app = template("app.toml", version=__version__.split("+")[0])
    write_text(folder / "app" / "pyproject.toml", app)
    write_certificates(folder / "certificates", [address(config.server)[0], *hosts, *LOOPBACK])
    ca = (folder / "certificates" / "ca.crt").read_text()
    for name in config.clients:
        own = folder / "clients" / name
        write_key(own / "client.key", folder / "keys" / f"{name}.pub")
        write_text(own / "ca.crt", ca)
        _write_client(own, name=name, server=config.server, data="", state_dir="state")
    _write_unit(folder, "server", "on-failure", Path(sys.executable).parent, folder.resolve(), "")
    edit = (
        "Edit ExecStart and WorkingDirectory: where fedskip is, and the folder with client.yaml. "
    )
    site = Path("/opt/fedskip/bin"), Path("/srv/fedskip/site")
    _write_unit(folder, "client", "always", *site, edit)
    readme = template("README.md", server=config.server, clients=", ".join(config.clients))
    write_text(folder / "README.md", readme)


def template(name: str, **values: object) -> str:
    """A file of a new folder, with these values in the place of `$name`."""
    return Template((TEMPLATES / name).read_text(encoding="utf-8")).substitute(values)


def _write_client(folder: Path, **values: Any) -> None:
    write_text(folder / CLIENT, template(CLIENT) + written(values))


def _write_unit(
    folder: Path, what: str, restart: str, programs: Path, where: Path, edit: str
) -> None:
    """Write a systemd unit. The server's fits this machine; the client's has paths to edit."""
    program, path = (str(each).replace("%", "%%") for each in (programs / "fedskip", where))
    text = template(
        "unit.service", what=what, restart=restart, edit=edit, program=program, folder=path
    )
    write_text(folder / "systemd" / f"fedskip-{what}.service", text)


# --- a federation on this machine ----------------------------------------------------------------


def write_local(folder: Path, clients: int, spec: StudySpec, **options: Any) -> None:
    """Write the folder of a federation whose clients share out the study's data set.

    `options`: keys of `federation.yaml`.
    """
    names = tuple(f"client-{i}" for i in range(clients))
    config = FederationConfig(clients=names, server=f"127.0.0.1:{free_port()}", **options)
    plan = FederationPlan.make(_with_absolute_paths(spec), config)
    shares = split_data(plan)  # refuses what cannot be divided, before anything is written
    write_folder(folder, config, dump(plan.spec, [plan.setting]), [])
    data: Any = plan.setting.data
    names_of_code = [name for _, name in named_code(plain(plan.spec, [plan.setting]))]
    code = {"allow": names_of_code} if names_of_code else {}
    for name, (train, test) in shares.items():
        own = folder / "clients" / name
        np.savez(own / "share.npz", train=train, test=test)
        where = {"name": name, "server": config.server, "data": data["name"]}
        _write_client(own, **where, share="share.npz", device="cpu", **code)


def _with_absolute_paths(spec: StudySpec) -> StudySpec:
    """The study, with data that clients find from wherever they are started."""
    drafts = []
    for draft in spec.settings:
        data: Any = draft.keys["data"]
        options = {key: value for key, value in data.items() if key != "name"}
        fix = "use their defaults, or an .npz of your own"
        require("data", not options, "must have no options in a local federation", options, fix)
        file = Path(data["name"])
        name = str(file.resolve()) if file.is_file() else data["name"]
        drafts.append(draft.with_keys(data={"name": name}))
    return replace(spec, settings=tuple(drafts))


def split_data(plan: FederationPlan) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The samples that each client trains on and tests on, by its name; together they test on all.

    Where all samples of an owner are at one client, so are its test samples; else those are shared evenly.
    """
    setting, names = plan.setting, plan.config.clients
    dataset = LoadedDatasets().get(setting.data)
    division = divide(
        dataset, setting.division_seed(plan.seed), partition=setting.partition, clients=setting.clients,
        cohort=setting.cohort, batch=setting.local.fewest, validation=0.0, eval_samples=setting.eval_samples,
        drop_small=setting.local.small_clients == "drop",
    )  # fmt: skip
    made = len(division.clients)
    rule = f"must make {len(names)} clients, one for each node"
    fix = "use partition.kind=dirichlet or iid, which make as many clients as are asked for"
    require("partition", made == len(names), rule, made, fix)
    tests = _split_tests(dataset.owner, division)
    return {name: (division.clients[i], tests[i]) for i, name in enumerate(names)}


def _split_tests(owner: np.ndarray | None, division: Division) -> list[np.ndarray]:
    """The test samples of each client."""
    test, clients = division.evaluated, len(division.clients)
    if owner is not None and (owner[test] >= 0).all():
        owners = [np.unique(owner[division.clients[client]]) for client in range(clients)]
        if len(np.unique(np.concatenate(owners))) == sum(map(len, owners)):
            return [test[np.isin(owner[test], mine)] for mine in owners]
    return np.array_split(rng.stream("sites", len(test)).permutation(test), clients)
