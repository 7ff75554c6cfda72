"""The certificate authority of one run: made when the run first needs the network, and forgotten with it.

Its key signs two certificates, the driver's and one that all workers share, and is never written anywhere. Who holds
the authority's own certificate knows this run's driver from every other, and its workers from all other processes.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from edriver.common.join_config import MEMBER_NAME, SERVER_NAME

_PEM_ENCODING: Final = serialization.Encoding.PEM

MAX_CLOCK_SKEW = datetime.timedelta(days=1)
"""How far the clocks of two hosts may be apart."""

CERTIFICATE_LIFETIME = datetime.timedelta(days=366)
"""How long a run may last."""


@dataclass(frozen=True, slots=True, repr=False)
class Authority:
    """A run's authority and what it has signed, all in PEM.

    Attributes:
        certificate: the authority's own.
        driver_key: the driver's private key,
        driver_certificate: and its certificate.
        member_key: the private key that all workers share,
        member_certificate: and its certificate.
    """

    certificate: bytes
    driver_key: bytes
    driver_certificate: bytes
    member_key: bytes
    member_certificate: bytes

    @classmethod
    def of_run(cls, run_id: str, now: datetime.datetime) -> Authority:
        """Make one.

        Args:
            run_id: the run, as the certificate's name.
            now: the time, with its zone.
        """
        root = Root.new(f"edriver run {run_id}", now, CERTIFICATE_LIFETIME)
        return cls(
            root.certificate,
            *root.sign(SERVER_NAME, (ExtendedKeyUsageOID.SERVER_AUTH,), now),
            *root.sign(MEMBER_NAME, (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH), now),
        )


@dataclass(frozen=True, slots=True, repr=False)
class Root:
    """What signs an authority's certificates.

    Attributes:
        certificate: its own, in PEM.
        key: its private key, in PEM.
    """

    certificate: bytes
    key: bytes

    @classmethod
    def new(cls, name: str, now: datetime.datetime, lifetime: datetime.timedelta) -> Root:
        """Make one.

        Args:
            name: the certificate's.
            now: the time, with its zone.
            lifetime: of the certificate.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        root = (
            _certificate(issuer, issuer, key, now, lifetime)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        )
        return cls(root.sign(key, hashes.SHA256()).public_bytes(_PEM_ENCODING), _private(key))

    def sign(self, name: str, purposes: Sequence[x509.ObjectIdentifier], now: datetime.datetime) -> tuple[bytes, bytes]:
        """Make a private key and a certificate for it, both in PEM.

        Args:
            name: whose.
            purposes: what it is for.
            now: the time, with its zone.
        """
        root = serialization.load_pem_private_key(self.key, None)
        assert isinstance(root, ec.EllipticCurvePrivateKey)
        issuer = x509.load_pem_x509_certificate(self.certificate).subject
        its_key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        made = (
            _certificate(subject, issuer, its_key, now, CERTIFICATE_LIFETIME)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
            # RFC 5280, 4.2.1.1: required, and Python's ssl insists on it from 3.13 on.
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(root.public_key()), critical=False)
        )
        return _private(its_key), made.sign(root, hashes.SHA256()).public_bytes(_PEM_ENCODING)


def end_of(certificate: bytes) -> datetime.datetime:
    """When a certificate, in PEM, ends.

    Raises:
        ValueError: it is not a certificate in PEM.
    """
    return x509.load_pem_x509_certificate(certificate).not_valid_after_utc


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(_PEM_ENCODING, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    now: datetime.datetime,
    lifetime: datetime.timedelta,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - MAX_CLOCK_SKEW)
        .not_valid_after(now + lifetime)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
