"""The webhook's own certificates: at each moment every replica that serves is trusted."""

from __future__ import annotations

import ssl

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pinfold.adapters.certificates import X509
from pinfold.cluster.certificates.steps import (
    AUTHORITY_DAYS,
    MOST_OLDER,
    SERVING_DAYS,
    Material,
    Rest,
    Trust,
    Write,
    next_step,
)
from pinfold.ports.certificates import CertificateError, KeyPair

NAMES = ["pinfold-quota.pinfold.svc", "pinfold-quota.pinfold.svc.cluster.local"]
DAY = 86400.0
NOW = 1_800_000_000.0
MADE = X509()


class Cluster:
    """A Secret, and the configuration of two webhooks."""

    def __init__(self) -> None:
        self.material = Material()
        self.trusted = [b"", b""]

    def step(self, now: float) -> str:
        """Do what is to be done; what it was."""
        found = next_step(MADE, self.material, self.trusted, NAMES, now)
        if isinstance(found, Write):
            self.material = found.material
            return found.why
        if isinstance(found, Trust):
            self.trusted = [found.authorities] * 2
            return "trust"
        assert now < found.until
        return ""

    def settle(self, now: float) -> list[str]:
        """Until there is nothing to do; what was done."""
        done = []
        while step := self.step(now):
            done.append(step)
            assert len(done) < 5
        return done

    def until(self, now: float) -> float:
        """When there is something to do again."""
        found = next_step(MADE, self.material, self.trusted, NAMES, now)
        assert isinstance(found, Rest)
        return found.until


def is_trusted(certificate: bytes, bundle: bytes, now: float) -> bool:
    """Whether a server with this certificate is believed by who trusts this bundle."""
    good = [one for one in MADE.split(bundle) if MADE.about(one).ends > now]
    about = MADE.about(certificate)
    return about.begins <= now < about.ends and any(
        MADE.is_signed_by(certificate, authority) for authority in good
    )


def test_from_nothing_trust_comes_before_the_certificate() -> None:
    cluster = Cluster()
    assert cluster.settle(NOW) == [
        "there is no authority yet",
        "trust",
        "there is no certificate yet",
    ]
    assert is_trusted(cluster.material.certificate, cluster.trusted[0], NOW)
    assert cluster.until(NOW) < NOW + SERVING_DAYS * DAY


def test_a_certificate_is_renewed_without_a_new_authority() -> None:
    cluster = Cluster()
    cluster.settle(NOW)
    authorities, later = cluster.material.authorities, cluster.until(NOW)
    assert cluster.settle(later) == ["the certificate ends"]
    assert cluster.material.authorities == authorities
    assert cluster.until(later) > later + 30 * DAY


@given(part=st.floats(0.665, 0.99), days=st.integers(1, 400))
@settings(max_examples=10, deadline=None)
def test_what_is_served_is_trusted_at_each_step_of_a_new_authority(part: float, days: int) -> None:
    cluster, served = Cluster(), b""
    cluster.settle(NOW)
    for now in (
        NOW + 0.66 * AUTHORITY_DAYS * DAY,
        NOW + part * AUTHORITY_DAYS * DAY,
        NOW + (part * AUTHORITY_DAYS + days) * DAY,
    ):
        while step := cluster.step(now):
            # Another replica may not yet have what is there now.
            for certificate in filter(None, (served, cluster.material.certificate)):
                if now < MADE.about(certificate).ends:
                    assert is_trusted(certificate, cluster.trusted[0], now), step
            served = cluster.material.certificate
        served = cluster.material.certificate
        assert is_trusted(served, cluster.trusted[0], now)


def test_what_is_served_is_trusted_while_a_lost_secret_is_made_anew() -> None:
    cluster = Cluster()
    cluster.settle(NOW)
    for round_ in range(MOST_OLDER + 3):
        served, cluster.material = cluster.material.certificate, Material()
        # One of the webhooks was applied anew, or spoilt: the other one's trust is enough.
        cluster.trusted[0] = b"nonsense" if round_ % 2 else b""
        now = NOW + round_
        while step := cluster.step(now):
            for certificate in filter(None, (served, cluster.material.certificate)):
                assert is_trusted(certificate, cluster.trusted[1], now), step
        assert len(MADE.split(cluster.material.authorities)) == min(round_ + 1, MOST_OLDER) + 1


def test_authorities_that_have_ended_are_forgotten() -> None:
    cluster = Cluster()
    for round_ in range(4):
        cluster.settle(NOW + round_ * AUTHORITY_DAYS * DAY)
        assert len(MADE.split(cluster.material.authorities)) == 1


@pytest.mark.parametrize("field", ["authorities", "authority_key", "certificate", "key"])
@pytest.mark.parametrize("text", [b"", b"nonsense"])
def test_a_secret_that_somebody_has_spoilt_is_made_good(field: str, text: bytes) -> None:
    cluster = Cluster()
    cluster.settle(NOW)
    cluster.material = replace(cluster.material, **{field: text})
    assert cluster.settle(NOW)
    assert is_trusted(cluster.material.certificate, cluster.trusted[1], NOW)
    assert MADE.fits(KeyPair(cluster.material.certificate, cluster.material.key))


def test_a_configuration_that_was_applied_anew_is_told_again() -> None:
    cluster = Cluster()
    cluster.settle(NOW)
    cluster.trusted[1] = b""
    assert cluster.settle(NOW) == ["trust"]


def test_another_name_of_the_service_is_another_certificate() -> None:
    cluster = Cluster()
    cluster.settle(NOW)
    found = next_step(MADE, cluster.material, cluster.trusted, ["other.svc"], NOW)
    assert isinstance(found, Write)
    assert MADE.about(found.material.certificate).names == ("other.svc",)


def test_a_certificate_is_believed_by_openssl_and_no_authority_signs_another(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    cluster = Cluster()
    cluster.settle(NOW)
    context = ssl.create_default_context(cadata=cluster.material.authorities.decode())
    assert context.cert_store_stats()["x509_ca"] == 1
    file = tmp_path_factory.mktemp("pair") / "pair.pem"
    file.write_bytes(cluster.material.certificate + cluster.material.key)
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(file)


def test_secrets_are_not_shown() -> None:
    cluster = Cluster()
    cluster.settle(NOW)
    pair = KeyPair(cluster.material.certificate, cluster.material.key)
    assert "PRIVATE" not in f"{cluster.material!r} {pair!r}"


@pytest.mark.parametrize("text", [b"", b"x", b"-----BEGIN CERTIFICATE-----\n"])
def test_what_is_no_certificate_is_said(text: bytes) -> None:
    with pytest.raises(CertificateError):
        MADE.about(text)
    with pytest.raises(CertificateError):
        MADE.split(text)
    with pytest.raises(CertificateError):
        MADE.fits(KeyPair(text, text))
