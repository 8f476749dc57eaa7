"""The webhook's own certificates: what is to be done next, one step at a time.

An API server trusts what ``caBundle`` of the webhook's configuration has; the replicas serve what a
Secret has.  Each step leaves both so that every replica is trusted, and each is made for what was
read, so that replicas that do the same at the same time, or die in between, do no harm:

1. an authority is made, and goes in front of those that are still good: those of the Secret, and
   those that are trusted, as replicas go on serving for a while what a lost Secret had;
2. the configuration trusts all of them;
3. only then a certificate is signed by the first one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from pinfold.ports.certificates import CertificateError, Certificates, KeyPair

AUTHORITY_DAYS: Final = 3650
SERVING_DAYS: Final = 90

RENEWED: Final = 2 / 3
"""The part of a certificate's time after which there is another one."""

MOST_OLDER: Final = 7
"""Authorities that stay trusted beside a new one, however often the Secret is deleted."""


class Material(Struct, frozen=True):
    """What the Secret holds: authorities (PEM, newest first), the newest one's key, what is served.

    b"" is what is not there yet.
    """

    authorities: bytes = b""
    authority_key: bytes = b""
    certificate: bytes = b""
    key: bytes = b""

    def __repr__(self) -> str:
        return "<Material>"  # the keys are secret


class Write(Struct, frozen=True):
    """Write this into the Secret, if it is as it was read."""

    material: Material
    why: str


class Trust(Struct, frozen=True):
    """Have the API server trust these authorities (PEM)."""

    authorities: bytes


class Rest(Struct, frozen=True):
    """All is well until then, in seconds since the epoch."""

    until: float


def next_step(
    made: Certificates,
    material: Material,
    trusted: Sequence[bytes],
    names: Sequence[str],
    now: float,
) -> Write | Trust | Rest:
    """What to do.

    Args:
        made: makes and reads certificates.
        material: what the Secret holds.
        trusted: ``caBundle`` of each webhook of the configuration; b"" where there is none.
        names: the DNS names of the service; the first begins with what it is called.
        now: seconds since the epoch.
    """
    authority = _authority(made, material)
    if authority is None:
        wanted = _with_authority(made, material, trusted, names, now)
        return Write(wanted, "there is no authority yet")
    renewal = made.about(authority.certificate).half_life(RENEWED)
    if now >= renewal:
        return Write(_with_authority(made, material, trusted, names, now), "the authority ends")
    if any(bundle != material.authorities for bundle in trusted):
        return Trust(material.authorities)
    why = _lacks(made, material, authority, names, now)
    if why:
        pair = made.serving(authority, names, now, SERVING_DAYS)
        return Write(replace(material, certificate=pair.certificate, key=pair.key), why)
    return Rest(min(renewal, made.about(material.certificate).half_life(RENEWED)))


def _authority(made: Certificates, material: Material) -> KeyPair | None:
    """The newest authority; None where there is none that can sign."""
    try:
        pair = KeyPair(made.split(material.authorities)[0], material.authority_key)
        return pair if made.fits(pair) else None
    except CertificateError:
        return None


def _with_authority(
    made: Certificates,
    material: Material,
    trusted: Sequence[bytes],
    names: Sequence[str],
    now: float,
) -> Material:
    pair = made.authority(names[0].partition(".")[0], now, AUTHORITY_DAYS)
    bundles = (material.authorities, *trusted)
    # Each once, the newest first.
    older = list(dict.fromkeys(one for bundle in bundles for one in _good(made, bundle, now)))
    return replace(
        material,
        authorities=b"".join([pair.certificate, *older[:MOST_OLDER]]),
        authority_key=pair.key,
    )


def _good(made: Certificates, bundle: bytes, now: float) -> list[bytes]:
    """The authorities of a bundle that have not ended; none where it cannot be read."""
    try:
        return [one for one in made.split(bundle) if made.about(one).ends > now]
    except CertificateError:
        return []


def _lacks(
    made: Certificates, material: Material, authority: KeyPair, names: Sequence[str], now: float
) -> str:
    """Why another certificate has to be served; "" where it has not."""
    try:
        if not made.fits(KeyPair(material.certificate, material.key)):
            return "certificate and key do not belong together"
        about = made.about(material.certificate)
    except CertificateError:
        return "there is no certificate yet"
    if not made.is_signed_by(material.certificate, authority.certificate):
        return "there is a new authority"
    if set(names) - set(about.names):
        return "the service has other names"
    return "the certificate ends" if now >= about.half_life(RENEWED) else ""
