"""Certificates of the server and keys of the clients, in the formats that Flower reads."""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Iterable
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedskip.errors import InputError, require
from fedskip.files import refuse_unreadable

DAYS = 825  # that a certificate is valid
WROTE = "bring back what `fedskip federation init` wrote"
WRONG_KEY = "give the file that `fedskip federation init` wrote, or make one with ssh-keygen -t ecdsa -b 384"

# --- writing -------------------------------------------------------------------------------------


def write_secret(path: Path, content: bytes) -> None:
    """Write a new file that only its owner may read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(handle)


def write_certificates(folder: Path, hosts: Iterable[str]) -> None:
    """Make an authority for this federation, and the server's certificate, valid for these hosts."""
    now = datetime.datetime.now(datetime.UTC)
    begin, end = now - datetime.timedelta(minutes=5), now + datetime.timedelta(days=DAYS)
    authority, key = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))

    def certificate(
        subject: str,
        holder: ec.EllipticCurvePrivateKey,
        *extensions: tuple[x509.ExtensionType, bool],
    ) -> x509.Certificate:
        """A certificate that the authority signs; an extension comes with whether it is critical."""
        builder = (
            x509.CertificateBuilder(_name("authority"), _name(subject), holder.public_key())
            .serial_number(x509.random_serial_number()).not_valid_before(begin).not_valid_after(end)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(holder.public_key()), False)
        )  # fmt: skip
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical)
        return builder.sign(authority, hashes.SHA384())

    rights = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    none = dict.fromkeys((*rights, "encipher_only", "decipher_only"), False)
    ca = certificate(
        "authority", authority,
        (x509.BasicConstraints(True, 0), True),
        (x509.KeyUsage(True, key_cert_sign=True, crl_sign=True, **none), True),
    )  # fmt: skip
    server = certificate(
        "server", key,
        (x509.BasicConstraints(False, None), True),
        (x509.SubjectAlternativeName(_hosts(hosts)), False),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), False),
    )  # fmt: skip
    pkcs8 = serialization.PrivateFormat.PKCS8
    for name, private in (("ca.key", authority), ("server.key", key)):
        write_secret(folder / name, private.private_bytes(Encoding.PEM, pkcs8, NoEncryption()))
    for name, signed in (("ca.crt", ca), ("server.crt", server)):
        (folder / name).write_bytes(signed.public_bytes(Encoding.PEM))


def _name(common: str) -> x509.Name:
    organisation = x509.NameAttribute(NameOID.ORGANIZATION_NAME, "fedskip federation")
    return x509.Name([organisation, x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _hosts(names: Iterable[str]) -> list[x509.GeneralName]:
    hosts: list[x509.GeneralName] = []
    for name in dict.fromkeys(names):
        try:
            hosts.append(x509.IPAddress(ipaddress.ip_address(name)))
        except ValueError:
            hosts.append(x509.DNSName(name))
    return hosts


def write_key(private: Path, public: Path) -> None:
    """Make a client's key. The private half stays at the client, the public half is registered."""
    key = ec.generate_private_key(ec.SECP384R1())
    open_ssh = serialization.PrivateFormat.OpenSSH
    write_secret(private, key.private_bytes(Encoding.PEM, open_ssh, NoEncryption()))
    public.parent.mkdir(parents=True, exist_ok=True)
    text = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    public.write_bytes(text + b"\n")


# --- reading: each refuses what cannot be used ---------------------------------------------------


def read_certificate(path: Path) -> x509.Certificate:
    refuse_unreadable(str(path), path)
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError as error:
        raise InputError(str(path), f"is no certificate ({error})", fix=WROTE) from None
    now, end = datetime.datetime.now(datetime.UTC), certificate.not_valid_after_utc
    require(str(path), now < end, f"has expired on {end:%Y-%m-%d}", ..., "make a new one with init")
    fix = "set the clock of this machine"
    require(str(path), certificate.not_valid_before_utc <= now, "is not valid yet", ..., fix)
    return certificate


def read_server_certificate(folder: Path, host: str) -> x509.Certificate:
    """The server's certificate, which must match its key, the authority and the host."""
    authority, own = read_certificate(folder / "ca.crt"), read_certificate(folder / "server.crt")
    key_file, certificate_file = folder / "server.key", str(folder / "server.crt")
    refuse_unreadable(str(key_file), key_file)
    try:
        key = serialization.load_pem_private_key(key_file.read_bytes(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise InputError(str(key_file), "is no private key", fix=WROTE) from None
    same = key.public_key() == own.public_key()
    require(str(key_file), same, "does not belong to server.crt", ..., WROTE)
    try:
        own.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        raise InputError(certificate_file, "was not signed by ca.crt", fix=WROTE) from None
    names = own.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    hosts = [
        *names.get_values_for_type(x509.DNSName),
        *map(str, names.get_values_for_type(x509.IPAddress)),
    ]
    rule = f"is not for {host}, only for {', '.join(sorted(set(hosts)))}"
    fix = f"make one with `fedskip federation init --server {host}:PORT`"
    require(certificate_file, host in hosts, rule, ..., fix)
    return own


def read_private_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """A client's private key."""
    refuse_unreadable(str(path), path)
    try:
        key = serialization.load_ssh_private_key(path.read_bytes(), None)
    except (ValueError, UnsupportedAlgorithm, TypeError) as error:
        rule = f"is no private key ({str(error)[:80]})"
        raise InputError(str(path), rule, fix=WRONG_KEY) from None
    refuse_open_to_others(path)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        rule = "must be an elliptic curve's key"
        raise InputError(str(path), rule, type(key).__name__, WRONG_KEY)
    return key


def read_public_key(path: Path) -> ec.EllipticCurvePublicKey:
    """A client's public key."""
    refuse_unreadable(str(path), path)
    try:
        key = serialization.load_ssh_public_key(path.read_bytes())
    except (ValueError, UnsupportedAlgorithm) as error:
        rule = f"is no public key ({str(error)[:80]})"
        raise InputError(str(path), rule, fix=WRONG_KEY) from None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        rule = "must be an elliptic curve's key"
        raise InputError(str(path), rule, type(key).__name__, WRONG_KEY)
    return key


def refuse_open_to_others(path: Path) -> None:
    """Refuse a secret that other users of this machine can read."""
    open_to_others = os.name == "posix" and path.stat().st_mode & 0o077
    require(str(path), not open_to_others, "can be read by others", ..., f"run chmod 600 {path}")
