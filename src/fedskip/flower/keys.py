"""Certificates of the server and keys of the clients, in the formats that Flower reads."""

from __future__ import annotations

import datetime
import ipaddress
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedskip.errors import InputError, require
from fedskip.files import refuse_unreadable, sync_folder

T = TypeVar("T")

DAYS = 825  # that a certificate is valid
WROTE = "bring back what `fedskip federation init` wrote"
WRONG_KEY = "give the file that `fedskip federation init` wrote, or make one with ssh-keygen -t ecdsa -b 384"

# --- writing -------------------------------------------------------------------------------------


def write_secret(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read, completely or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mode 0600
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(handle)
    os.replace(partial, path)
    sync_folder(path.parent)


def write_certificates(folder: Path, hosts: Iterable[str]) -> None:
    """Make an authority for this federation, and the server's certificate, valid for these hosts."""
    now = datetime.datetime.now(datetime.UTC)
    begin, end = now - datetime.timedelta(minutes=5), now + datetime.timedelta(days=DAYS)
    authority, server = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    rights = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    no_others = dict.fromkeys((*rights, "encipher_only", "decipher_only"), False)
    extensions: dict[str, list[tuple[x509.ExtensionType, bool]]] = {  # and whether it is critical
        "authority": [
            (x509.BasicConstraints(True, 0), True),
            (x509.KeyUsage(True, key_cert_sign=True, crl_sign=True, **no_others), True),
        ],
        "server": [
            (x509.BasicConstraints(False, None), True),
            (x509.SubjectAlternativeName([*map(_host, dict.fromkeys(hosts))]), False),
            (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
            (x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), False),
        ],
    }
    for name, subject, key in (("ca", "authority", authority), ("server", "server", server)):
        builder = x509.CertificateBuilder(_name("authority"), _name(subject), key.public_key())
        builder = builder.serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(begin).not_valid_after(end)
        identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        for extension, critical in [(identifier, False), *extensions[subject]]:
            builder = builder.add_extension(extension, critical)
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        write_secret(folder / f"{name}.key", private)
        signed = builder.sign(authority, hashes.SHA384())
        (folder / f"{name}.crt").write_bytes(signed.public_bytes(Encoding.PEM))


def _name(common: str) -> x509.Name:
    organisation = x509.NameAttribute(NameOID.ORGANIZATION_NAME, "fedskip federation")
    return x509.Name([organisation, x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def write_key(private: Path, public: Path) -> None:
    """Make a client's key. The private half stays at the client, the public half is registered."""
    key = ec.generate_private_key(ec.SECP384R1())
    write_secret(private, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    public.parent.mkdir(parents=True, exist_ok=True)
    text = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    public.write_bytes(text + b"\n")


# --- reading: each refuses what cannot be used ---------------------------------------------------


def read_certificate(path: Path) -> x509.Certificate:
    certificate = _read_key(path, "certificate", WROTE, x509.load_pem_x509_certificate)
    now, end = datetime.datetime.now(datetime.UTC), certificate.not_valid_after_utc
    require(str(path), now < end, f"has expired on {end:%Y-%m-%d}", ..., "make a new one with init")
    fix = "set the clock of this machine"
    require(str(path), certificate.not_valid_before_utc <= now, "is not valid yet", ..., fix)
    return certificate


def read_server_certificate(folder: Path, host: str) -> x509.Certificate:
    """The server's certificate, which must match its key, the authority and the host."""
    authority, own = read_certificate(folder / "ca.crt"), read_certificate(folder / "server.crt")
    key_file, file = folder / "server.key", str(folder / "server.crt")
    key = _read_key(
        key_file, "private key", WROTE, lambda c: serialization.load_pem_private_key(c, None)
    )
    same = key.public_key() == own.public_key()
    require(str(key_file), same, "does not belong to server.crt", ..., WROTE)
    try:
        own.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        raise InputError(file, "was not signed by ca.crt", fix=WROTE) from None
    names = own.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    hosts = {str(name.value) for name in names}
    rule = f"is not for {host}, only for {', '.join(sorted(hosts))}"
    fix = f"make one with `fedskip federation init --server {host}:PORT`"
    require(file, host in hosts, rule, ..., fix)
    return own


def read_private_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """A client's private key."""
    key = _read_key(
        path, "private key", WRONG_KEY, lambda c: serialization.load_ssh_private_key(c, None)
    )
    refuse_open_to_others(path)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise InputError(str(path), "must be of an elliptic curve", type(key).__name__, WRONG_KEY)
    return key


def read_public_key(path: Path) -> ec.EllipticCurvePublicKey:
    """A client's public key."""
    key = _read_key(path, "public key", WRONG_KEY, serialization.load_ssh_public_key)
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise InputError(str(path), "must be of an elliptic curve", type(key).__name__, WRONG_KEY)
    return key


def _read_key(path: Path, what: str, fix: str, load: Callable[[bytes], T]) -> T:
    refuse_unreadable(str(path), path)
    try:
        return load(path.read_bytes())
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise InputError(str(path), f"is no {what} ({str(error)[:80]})", fix=fix) from None


def refuse_open_to_others(path: Path) -> None:
    """Refuse a secret that other users of this machine can read."""
    open_to_others = os.name == "posix" and path.stat().st_mode & 0o077
    require(str(path), not open_to_others, "can be read by others", ..., f"run chmod 600 {path}")
