"""The certificate authority of one run: made when the run first needs the network, and forgotten with it.

Its key signs one certificate, the driver's, and is never written anywhere. Who holds the authority's certificate knows
this run's driver from every other; nothing else does.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from edriver.invitation import SERVER_NAME

CLOCKS_APART = datetime.timedelta(days=1)
"""How far the clocks of two hosts may be apart."""

LIFE = datetime.timedelta(days=366)
"""How long a run may last."""


@dataclass(frozen=True, slots=True, repr=False)
class Authority:
    """A run's authority and the driver's papers, all in PEM.

    Attributes:
        certificate: the authority's, for those who want to know the driver.
        driver_key: the driver's private key,
        driver_certificate: and its certificate.
    """

    certificate: bytes
    driver_key: bytes
    driver_certificate: bytes

    @classmethod
    def of_run(cls, run_id: str, now: datetime.datetime) -> Authority:
        """Make one.

        Args:
            run_id: the run, for whoever looks at the certificate.
            now: the time, with its zone.
        """
        key, driver_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
        issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"edriver run {run_id}")])
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, SERVER_NAME)])
        root = (
            _certificate(issuer, issuer, key, now)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs=True), critical=True)
        )
        driver = (
            _certificate(subject, issuer, driver_key, now)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(SERVER_NAME)]), critical=False)
        )
        pem = serialization.Encoding.PEM
        return cls(
            certificate=root.sign(key, hashes.SHA256()).public_bytes(pem),
            driver_key=driver_key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
            driver_certificate=driver.sign(key, hashes.SHA256()).public_bytes(pem),
        )


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime.datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCKS_APART)
        .not_valid_after(now + LIFE)
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
