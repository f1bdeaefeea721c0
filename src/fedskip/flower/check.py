"""Checks before a start: files, certificates, keys, versions, data, and whether the server can be reached."""

from __future__ import annotations

import socket
import ssl
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import flwr

from fedskip.errors import InputError, require
from fedskip.flower import FLOWER
from fedskip.flower.client_app import Client
from fedskip.flower.config import CLIENT, FEDERATION, ClientConfig, FederationConfig, address
from fedskip.flower.keys import (
    read_certificate,
    read_private_key,
    read_public_key,
    read_server_certificate,
)
from fedskip.flower.plan import FederationPlan
from fedskip.flower.processes import listens, tool

Check = tuple[str, Callable[[], str]]  # what is checked; says what it has found, or raises


def folder_checks(folder: Path, *, insecure: bool = False, trust: bool = False) -> Iterator[Check]:
    """What the folder of a federation needs, or that of a client."""
    if (folder / FEDERATION).exists():
        return server_checks(folder, insecure=insecure, trust=trust)
    fix = "make one with `fedskip federation init`"
    there, rule = (folder / CLIENT).exists(), f"holds neither {FEDERATION} nor {CLIENT}"
    require("DIR", there, rule, str(folder), fix)
    return client_checks(ClientConfig.read(folder), insecure=insecure)


def server_checks(
    folder: Path, *, insecure: bool = False, starts: bool = False, trust: bool = False
) -> Iterator[Check]:
    """What a server needs. `starts`: it is about to start, so its port must be free. `trust`: its study may name code."""
    yield "Flower", _flower
    yield FEDERATION, lambda: f"{len(FederationConfig.read(folder).clients)} clients"
    yield "study.yaml", lambda: _study(folder, trust)
    config = FederationConfig.read(folder)
    if not insecure:
        yield "certificates", lambda: _certificate(folder, address(config.server)[0])
        for name in config.clients:
            file = folder / "keys" / f"{name}.pub"
            yield f"key of {name}", lambda file=file: read_public_key(file).curve.name  # type: ignore[misc]
    yield "port", lambda: _port(config, starts)


def client_checks(
    config: ClientConfig, *, insecure: bool = False, reach: bool = True
) -> Iterator[Check]:
    """What a client needs. `reach`: also that the server is there now."""
    yield "Flower", _flower
    if not insecure:
        ca, key = Path(config.ca), Path(config.key)
        yield "ca", lambda: f"until {read_certificate(ca).not_valid_after_utc:%Y-%m-%d}"
        yield "key", lambda: read_private_key(key).curve.name
    yield "data", lambda: _data(config)
    yield "state-dir", lambda: _writable(Path(config.state_dir))
    yield "server", lambda: _reachable(config, insecure=insecure, required=reach)


def _flower() -> str:
    installed, fix = flwr.__version__, f"install it: pip install 'flwr=={FLOWER}.*'"
    require("flwr", installed.startswith(f"{FLOWER}."), f"must be {FLOWER}", installed, fix)
    tool("flower-supernode")
    return f"flwr {installed}"


def _study(folder: Path, trust: bool) -> str:
    plan = FederationPlan.read(folder, trust=trust)
    note = "; its seed can be guessed: leave `seeds` out for a secret one" if plan.guessable else ""
    size = f"{plan.layout.size:,} numbers in a model"
    return f"{plan.method.label}, {plan.setting.rounds} rounds, {size}{note}"


def _certificate(folder: Path, host: str) -> str:
    own = read_server_certificate(folder / "certificates", host)
    return f"for {host}, until {own.not_valid_after_utc:%Y-%m-%d}"


def _port(config: FederationConfig, starts: bool) -> str:
    port = address(config.server)[1]
    taken = listens("127.0.0.1", port, 1.0)
    rule = "has a port that is in use"
    fix = f"end what listens there, or change `server` in {FEDERATION} and in every {CLIENT}"
    require("server", not (taken and starts), rule, config.server, fix)
    return f"{port} is {'in use' if taken else 'free'}"


def _data(config: ClientConfig) -> str:
    require("data", bool(config.data), "is missing", ..., f"name it in {CLIENT}, or with --data")
    client = Client(config)
    train, test = client.samples
    return f"{len(train):,} samples to train on, {len(test):,} to test on, device {client.device}"


def _writable(folder: Path) -> str:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        rule = f"cannot be written ({error.strerror})"
        raise InputError("state-dir", rule, str(folder)) from None
    return str(folder)


def _reachable(config: ClientConfig, *, insecure: bool, required: bool) -> str:
    """Whether the server answers, and is the one for which the authority vouches."""
    host, port = address(config.server)
    try:
        with socket.create_connection((host, port), timeout=10) as plain:
            if insecure:
                return f"{config.server} answers"
            context = ssl.create_default_context(cafile=config.ca)
            with context.wrap_socket(plain, server_hostname=host) as secure:
                return f"{config.server} answers, {secure.version()}"
    except ssl.SSLCertVerificationError as error:
        rule = f"does not vouch for {config.server} ({error.verify_message})"
        fix = f"ask for the ca.crt of this federation, and see that its certificate is for {host}"
        raise InputError(config.ca, rule, fix=fix) from None
    except ssl.SSLError as error:
        rule, fix = f"does not speak TLS ({error.reason})", "is it started without --insecure?"
        raise InputError("server", rule, config.server, fix) from None
    except OSError as error:
        if not required:
            return f"{config.server} does not answer yet"
        rule = f"cannot be reached ({error.strerror or error})"
        fix = "see that the server is started, that its name is right, and that firewalls let the port through"
        raise InputError("server", rule, config.server, fix) from None
