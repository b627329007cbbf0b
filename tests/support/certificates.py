"""A certificate authority and a server certificate for loopback addresses, in PEM as Kafka and its clients read it."""

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

LIFE = datetime.timedelta(hours=12)


class Authority:
    """Signs what its own certificate vouches for."""

    def __init__(self, name: str = "outbox tests") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = _named(name)
        usage = x509.BasicConstraints(ca=True, path_length=0)
        builder = _builder(self._subject, self._subject, self._key).add_extension(usage, critical=True)
        self._certificate = builder.sign(self._key, hashes.SHA256())

    def write(self, path: Path) -> Path:
        """What clients trust."""
        path.write_bytes(self._certificate.public_bytes(Encoding.PEM))
        return path

    def write_server(self, path: Path, *, is_localhost: bool = True) -> Path:
        """Key and certificates of a server on 127.0.0.1, in one file: Kafka's key store of type PEM. `is_localhost`:
        it may be called by this name too."""
        key = ec.generate_private_key(ec.SECP256R1())
        names: list[x509.GeneralName] = [x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        names += [x509.DNSName("localhost")] if is_localhost else []
        # Without a DNS name among the others clients take the common name for one.
        builder = _builder(_named("localhost" if is_localhost else "broker"), self._subject, key)
        certificate = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        path.write_bytes(
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
            + certificate.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM)
            + self._certificate.public_bytes(Encoding.PEM)
        )
        return path

    def write_client(self, folder: Path, name: str, password: str) -> tuple[Path, Path]:
        """Certificate and key of a client; the key is encrypted."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _builder(_named(name), self._subject, key).sign(self._key, hashes.SHA256())
        found = folder / f"{name}.pem", folder / f"{name}.key"
        found[0].write_bytes(certificate.public_bytes(Encoding.PEM))
        locked = BestAvailableEncryption(password.encode())
        found[1].write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, locked))
        return found


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return x509.CertificateBuilder(
        issuer_name=issuer,
        subject_name=subject,
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=now - datetime.timedelta(hours=1),  # clocks differ a little between containers
        not_valid_after=now + LIFE,
    )
