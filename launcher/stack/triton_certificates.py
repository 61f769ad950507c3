"""Certificates for Triton's gRPC, made from a secret: whoever has it is trusted, on whatever machine.

Triton takes a secret of its own only on its command line, which everybody on its machine can read. Here
both sides derive the same authority from the secret, and each signs its own certificate with it. Only the
secret has to be brought from one machine to another, and neither it nor a key is on a command line.
"""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

if TYPE_CHECKING:
    from pathlib import Path

# What clients expect to find in the server's certificate, at whatever address they reach it.
SERVER_NAME = "inflight-triton"
_CLIENT_NAME = "inflight-router"
_CURVE = ec.SECP256R1()
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
# They end with the process they were made for; clocks of two machines may differ.
_VALID_FOR, _SKEW = timedelta(days=3650), timedelta(days=1)


@dataclass(frozen=True)
class TlsFiles:
    """PEM files of one side: whom it trusts, and by what it is known itself."""

    authority: Path
    certificate: Path
    key: Path


class Authority:
    """The same one for the same secret; guessing the secret from a certificate is made slow."""

    def __init__(self, secret: str) -> None:
        derived = Scrypt(salt=b"inflight triton gRPC", length=48, n=1 << 14, r=8, p=1).derive(secret.encode())
        self._key = ec.derive_private_key(int.from_bytes(derived, "big") % (_ORDER - 1) + 1, _CURVE)
        self._name = _name("inflight authority")

    def write_for_server(self, directory: Path) -> TlsFiles:
        names: list[x509.GeneralName] = [x509.DNSName(SERVER_NAME), x509.DNSName("localhost")]
        names += [x509.IPAddress(ipaddress.ip_address(each)) for each in ("127.0.0.1", "::1")]
        return self._write(directory, "server", SERVER_NAME, ExtendedKeyUsageOID.SERVER_AUTH, names)

    def write_for_client(self, directory: Path) -> TlsFiles:
        usage = ExtendedKeyUsageOID.CLIENT_AUTH
        names: list[x509.GeneralName] = [x509.DNSName(_CLIENT_NAME)]
        return self._write(directory, "client", _CLIENT_NAME, usage, names)

    def _write(
        self,
        directory: Path,
        file: str,
        common_name: str,
        usage: x509.ObjectIdentifier,
        names: list[x509.GeneralName],
    ) -> TlsFiles:
        key = ec.generate_private_key(_CURVE)
        leaf = (
            self._builder(_name(common_name), key.public_key(), is_authority=False)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
        )
        own = self._builder(self._name, self._key.public_key(), is_authority=True)
        files = TlsFiles(directory / "authority.pem", directory / f"{file}.pem", directory / f"{file}.key")
        _write_private(files.authority, _pem(own.sign(self._key, hashes.SHA256())))
        _write_private(files.certificate, _pem(leaf.sign(self._key, hashes.SHA256())))
        _write_private(
            files.key,
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            ),
        )
        return files

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, is_authority: bool
    ) -> x509.CertificateBuilder:
        now = datetime.now(timezone.utc)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _SKEW)
            .not_valid_after(now + _VALID_FOR)
            .add_extension(x509.BasicConstraints(is_authority, 0 if is_authority else None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
            .add_extension(_usage(signs_certificates=is_authority), critical=True)
        )


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _write_private(path: Path, content: bytes) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
