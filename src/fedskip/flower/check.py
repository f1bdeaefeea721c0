"""Before a start: files, certificates, keys, versions, data, and whether the server can be reached."""

from __future__ import annotations

import datetime
import os
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    load_pem_private_key,
    load_ssh_private_key,
    load_ssh_public_key,
)
from flwr.supercore.version import package_version

from fedskip.files import refuse_unreadable
from fedskip.flower.agreement import FILE, Agreement, address
from fedskip.flower.folder import CLIENT, ClientFile
from fedskip.flower.processes import answers, tool
from fedskip.flower.serve import plan_in
from fedskip.flower.site import Place, Site
from fedskip.flower.supernode import node_config
from fedskip.input.errors import InputError, require

FLOWER = "1.41"  # the versions of Flower that this was tried with
Check = tuple[str, Callable[[], str]]
WROTE = "bring back what `fedskip federation init` wrote"
WRONG_KEY = "give the file that `fedskip federation init` wrote, or make one with ssh-keygen -t ecdsa -b 384"


def installed() -> str:
    """The version of Flower, which must be one that this was tried with."""
    fix = f"install it: pip install 'flwr=={FLOWER}.*'"
    found = package_version
    require("flwr", found.startswith(f"{FLOWER}."), f"must be {FLOWER}", found, fix)
    tool("flower-supernode")
    return f"flwr {found}"


def certificate(path: Path) -> x509.Certificate:
    refuse_unreadable(str(path), path)
    try:
        found = x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError as error:
        raise InputError(str(path), f"is no certificate ({error})", fix=WROTE) from None
    now = datetime.datetime.now(datetime.UTC)
    until = found.not_valid_after_utc
    require(str(path), now < until, f"has expired on {until:%Y-%m-%d}", ..., "make a new one with init")
    ahead = "set the clock of this machine"
    require(str(path), found.not_valid_before_utc <= now, "is not valid yet", ..., ahead)
    return found


def private_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """A client's key."""
    refuse_unreadable(str(path), path)
    try:
        found = load_ssh_private_key(path.read_bytes(), None)
    except (ValueError, UnsupportedAlgorithm, TypeError) as error:
        raise InputError(str(path), f"is no private key ({str(error)[:80]})", fix=WRONG_KEY) from None
    ok = isinstance(found, ec.EllipticCurvePrivateKey)
    require(str(path), ok, "must be an elliptic curve's key", type(found).__name__, WRONG_KEY)
    open_to_all = os.name == "posix" and path.stat().st_mode & 0o077
    require(str(path), not open_to_all, "can be read by others", ..., f"run chmod 600 {path}")
    assert isinstance(found, ec.EllipticCurvePrivateKey)
    return found


def public_key(path: Path) -> str:
    refuse_unreadable(str(path), path)
    try:
        found = load_ssh_public_key(path.read_bytes())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InputError(str(path), f"is no public key ({str(error)[:80]})", fix=WRONG_KEY) from None
    ok = isinstance(found, ec.EllipticCurvePublicKey)
    require(str(path), ok, "must be an elliptic curve's key", type(found).__name__, WRONG_KEY)
    return path.name


# --- the server ----------------------------------------------------------------------------------------


def server_checks(folder: Path, *, insecure: bool = False, begins: bool = False) -> Iterator[Check]:
    """What a server needs. `begins`: it is about to start, so its port must be free."""
    yield "Flower", installed
    yield FILE, lambda: f"{len(Agreement.read(folder / FILE).clients)} clients"
    yield "study.yaml", lambda: _planned(folder)
    parties = Agreement.read(folder / FILE)
    if not insecure:
        yield "certificates", lambda: _server_certificate(folder / "certificates", address(parties.server)[0])
        for name in parties.clients:
            yield f"key of {name}", lambda name=name: public_key(folder / "keys" / f"{name}.pub")  # type: ignore[misc]
    yield "port", lambda: _port(parties, begins)


def _planned(folder: Path) -> str:
    plan = plan_in(folder)
    note = "; its seed can be guessed: leave `seeds` out for a secret one" if plan.guessable else ""
    return f"{plan.method.label}, {plan.setting.rounds} rounds, {plan.layout.size:,} numbers in a model{note}"


def _server_certificate(folder: Path, host: str) -> str:
    ca, own = certificate(folder / "ca.crt"), certificate(folder / "server.crt")
    refuse_unreadable(str(folder / "server.key"), folder / "server.key")
    try:
        key = load_pem_private_key((folder / "server.key").read_bytes(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise InputError(str(folder / "server.key"), "is no private key", fix=WROTE) from None
    same = key.public_key() == own.public_key()
    require(str(folder / "server.key"), same, "does not belong to server.crt", ..., WROTE)
    try:
        own.verify_directly_issued_by(ca)
    except (ValueError, TypeError, InvalidSignature):
        rule = "was not signed by ca.crt"
        raise InputError(str(folder / "server.crt"), rule, fix=WROTE) from None
    names = own.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    known = {*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))}
    fix = f"make one with `fedskip federation init --server {host}:PORT`"
    require(
        str(folder / "server.crt"),
        host in known,
        f"is not for {host}, only for {', '.join(sorted(known))}",
        ...,
        fix,
    )
    return f"for {host}, until {own.not_valid_after_utc:%Y-%m-%d}"


def _port(parties: Agreement, begins: bool) -> str:
    port = address(parties.server)[1]
    taken = answers("127.0.0.1", port, 1.0)
    fix = f"end what listens there, or change `server` in {FILE} and in every {CLIENT}"
    require("server", not (taken and begins), "has a port that is in use", parties.server, fix)
    return f"{port} is {'in use' if taken else 'free'}"


# --- a client ------------------------------------------------------------------------------------------


def client_checks(file: ClientFile, *, insecure: bool = False, reach: bool = True) -> Iterator[Check]:
    """What a client needs. `reach`: also that the server is there now."""
    yield "Flower", installed
    if not insecure:
        yield "ca", lambda: f"until {certificate(Path(file.ca)).not_valid_after_utc:%Y-%m-%d}"
        yield "key", lambda: private_key(Path(file.key)).curve.name
    yield "data", lambda: _data(file)
    yield "state-dir", lambda: _writable(Path(file.state_dir))
    yield "server", lambda: reachable(file, insecure, reach)


def _data(file: ClientFile) -> str:
    require("data", bool(file.data), "is missing", ..., f"name it in {CLIENT}, or with --data")
    node_config(file)
    values = {
        "name": file.name, "data": file.data, "loader": file.loader, "share": file.share,
        "device": file.device, "state-dir": file.state_dir,
    }  # fmt: skip
    site = Site(Place.of({key: value for key, value in values.items() if value}))
    train, test = site.halves
    return f"{len(train):,} samples to train on, {len(test):,} to test on, device {site.device}"


def _writable(folder: Path) -> str:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".probe.{os.getpid()}"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise InputError("state-dir", f"cannot be written ({error.strerror})", str(folder)) from None
    return str(folder)


def reachable(file: ClientFile, insecure: bool, must: bool = True) -> str:
    """Whether the server answers, and is the one that the certificate speaks of."""
    host, port = address(file.server)
    try:
        with socket.create_connection((host, port), timeout=10) as plain:
            if insecure:
                return f"{file.server} answers"
            context = ssl.create_default_context(cafile=file.ca)
            with context.wrap_socket(plain, server_hostname=host) as secure:
                return f"{file.server} answers, {secure.version()}"
    except ssl.SSLCertVerificationError as error:
        fix = f"ask for the ca.crt of this federation, and see that its certificate is for {host}"
        raise InputError(
            file.ca, f"does not vouch for {file.server} ({error.verify_message})", fix=fix
        ) from None
    except ssl.SSLError as error:
        rule = f"does not speak TLS ({error.reason})"
        raise InputError("server", rule, file.server, "is it started without --insecure?") from None
    except OSError as error:
        if not must:
            return f"{file.server} does not answer yet"
        fix = (
            "see that the server is started, that its name is right, and that firewalls let the port through"
        )
        raise InputError(
            "server", f"cannot be reached ({error.strerror or error})", file.server, fix
        ) from None
