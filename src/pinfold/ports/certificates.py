"""What makes certificates: an authority of our own, and what it signs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from pinfold.ports.errors import PortError


class CertificateError(PortError):
    """What should be a certificate or a key is none."""


class KeyPair(Struct, frozen=True):
    """A certificate and its private key, each PEM."""

    certificate: bytes
    key: bytes

    def __repr__(self) -> str:
        return "<KeyPair>"  # the key is a secret


class About(Struct, frozen=True):
    """What a certificate says; times are seconds since the epoch."""

    begins: float
    ends: float
    names: tuple[str, ...]

    def half_life(self, part: float) -> float:
        """The moment at which this part of its time is over."""
        return self.begins + (self.ends - self.begins) * part


class Certificates(Protocol):
    """Each method raises :class:`CertificateError` where it is given none."""

    def authority(self, name: str, now: float, days: int) -> KeyPair:
        """A new authority that may sign servers only."""

    def serving(self, authority: KeyPair, names: Sequence[str], now: float, days: int) -> KeyPair:
        """A new certificate for a server of these DNS names; it ends with its authority."""

    def about(self, certificate: bytes) -> About:
        """What the first certificate of a PEM text says."""

    def split(self, bundle: bytes) -> Sequence[bytes]:
        """The certificates of a PEM text, each for itself."""

    def is_signed_by(self, certificate: bytes, authority: bytes) -> bool:
        """Whether the signature is the authority's."""

    def fits(self, pair: KeyPair) -> bool:
        """Whether the key is the certificate's."""
