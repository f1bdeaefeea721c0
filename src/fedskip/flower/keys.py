"""Certificates for the server and keys for the clients, in the forms that Flower reads."""

import datetime
import ipaddress
import os
from collections.abc import Iterable
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAYS = 825  # that a certificate is good for


def write_secret(path: Path, content: bytes) -> None:
    """Write what only its owner may read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(handle)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _name(common: str) -> x509.Name:
    organisation = x509.NameAttribute(NameOID.ORGANIZATION_NAME, "fedskip federation")
    return x509.Name([organisation, x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _hosts(names: Iterable[str]) -> list[x509.GeneralName]:
    found: list[x509.GeneralName] = []
    for name in dict.fromkeys(names):
        try:
            found.append(x509.IPAddress(ipaddress.ip_address(name)))
        except ValueError:
            found.append(x509.DNSName(name))
    return found


def write_certificates(folder: Path, hosts: Iterable[str]) -> None:
    """An authority of the federation's own, ca.crt, and the server's certificate, good for these hosts."""
    now = datetime.datetime.now(datetime.UTC)
    begin, end = now - datetime.timedelta(minutes=5), now + datetime.timedelta(days=DAYS)
    authority, key = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())

    def certificate(subject: str, holder: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        identifier = x509.SubjectKeyIdentifier.from_public_key(holder.public_key())
        return (
            x509.CertificateBuilder(_name("authority"), _name(subject), holder.public_key())
            .serial_number(x509.random_serial_number()).not_valid_before(begin).not_valid_after(end)
            .add_extension(identifier, False)
        )  # fmt: skip

    rights = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    usage = dict.fromkeys((*rights, "encipher_only", "decipher_only"), False)
    ca = certificate("authority", authority).add_extension(x509.BasicConstraints(True, 0), True)
    ca = ca.add_extension(x509.KeyUsage(True, key_cert_sign=True, crl_sign=True, **usage), True)
    signed_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
    server = certificate("server", key).add_extension(x509.BasicConstraints(False, None), True)
    server = server.add_extension(x509.SubjectAlternativeName(_hosts(hosts)), False)
    server = server.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False)
    server = server.add_extension(signed_by, False)
    write_secret(folder / "ca.key", _pem(authority))
    write_secret(folder / "server.key", _pem(key))
    for name, builder in (("ca.crt", ca), ("server.crt", server)):
        signed = builder.sign(authority, hashes.SHA384())
        (folder / name).write_bytes(signed.public_bytes(serialization.Encoding.PEM))


def write_key(private: Path, public: Path) -> None:
    """A client's key: the private half stays with it, the public half is registered at the server."""
    key = ec.generate_private_key(ec.SECP384R1())
    form = serialization.PrivateFormat.OpenSSH
    write_secret(private, key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    public.parent.mkdir(parents=True, exist_ok=True)
    open_ssh = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    public.write_bytes(key.public_key().public_bytes(*open_ssh) + b"\n")
