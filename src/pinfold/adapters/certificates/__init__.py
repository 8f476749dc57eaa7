"""X.509 certificates, by the library ``cryptography`` (the extra ``cluster``)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from pinfold.ports.certificates import About, CertificateError, KeyPair

_EARLIER: Final = timedelta(minutes=5)
"""A certificate is good before now, for those whose clock is behind."""

_USAGES: Final = (
    "digital_signature",
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "key_cert_sign",
    "crl_sign",
    "encipher_only",
    "decipher_only",
)


class X509:
    """Fulfils :class:`pinfold.ports.certificates.Certificates`; keys are of the curve P-256."""

    def authority(self, name: str, now: float, days: int) -> KeyPair:
        """A new authority; it can sign certificates and nothing else, and no other authority."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _subject(name)
        begins = datetime.fromtimestamp(now, UTC)
        builder = (
            _builder(key.public_key(), begins)
            .subject_name(subject)
            .issuer_name(subject)
            .not_valid_after(begins + timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage("key_cert_sign", "crl_sign"), critical=True)
        )
        return _signed(builder, key, key)

    def serving(self, authority: KeyPair, names: Sequence[str], now: float, days: int) -> KeyPair:
        """A new certificate for a server."""
        issuer, issuer_key = _certificate(authority.certificate), _key(authority.key)
        key = ec.generate_private_key(ec.SECP256R1())
        begins = datetime.fromtimestamp(now, UTC)
        ends = min(begins + timedelta(days=days), issuer.not_valid_after_utc)
        identifier = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        builder = (
            _builder(key.public_key(), begins)
            # A common name has at most 64 characters; nobody looks at it.
            .subject_name(_subject(names[0][:64]))
            .issuer_name(issuer.subject)
            .not_valid_after(ends)
            .add_extension(
                x509.SubjectAlternativeName([x509.DNSName(name) for name in names]),
                critical=False,
            )
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage("digital_signature"), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier),
                critical=False,
            )
        )
        return _signed(builder, key, issuer_key)

    def about(self, certificate: bytes) -> About:
        """What it says."""
        found = _certificate(certificate)
        try:
            names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            said = tuple(names.get_values_for_type(x509.DNSName))
        except x509.ExtensionNotFound:
            said = ()
        begins, ends = found.not_valid_before_utc, found.not_valid_after_utc
        return About(begins.timestamp(), ends.timestamp(), said)

    def split(self, bundle: bytes) -> Sequence[bytes]:
        """Each for itself."""
        try:
            found = x509.load_pem_x509_certificates(bundle)
        except ValueError as error:
            raise CertificateError(f"no PEM certificates: {error}") from None
        return [one.public_bytes(serialization.Encoding.PEM) for one in found]

    def is_signed_by(self, certificate: bytes, authority: bytes) -> bool:
        """Whether the authority has signed it."""
        try:
            _certificate(certificate).verify_directly_issued_by(_certificate(authority))
        except (InvalidSignature, ValueError, TypeError):
            return False
        return True

    def fits(self, pair: KeyPair) -> bool:
        """Whether they belong together."""
        return _certificate(pair.certificate).public_key() == _key(pair.key).public_key()


def _builder(key: ec.EllipticCurvePublicKey, begins: datetime) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins - _EARLIER)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _signed(
    builder: x509.CertificateBuilder,
    key: ec.EllipticCurvePrivateKey,
    signer: ec.EllipticCurvePrivateKey,
) -> KeyPair:
    certificate = builder.sign(signer, hashes.SHA256())
    return KeyPair(
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )


def _usage(*names: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{name: name in names for name in _USAGES})


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _certificate(pem: bytes) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError as error:
        raise CertificateError(f"no PEM certificate: {error}") from None


def _key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(pem, None)
    except (ValueError, TypeError) as error:
        raise CertificateError(f"no PEM key: {error}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise CertificateError("a key of another kind than P-256")
    return key
