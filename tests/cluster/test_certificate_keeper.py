"""The certificates in a cluster: Secret, configuration and files, with replicas and refusals."""

from __future__ import annotations

import asyncio
import base64
import itertools
from typing import Any

import pytest

from pinfold.adapters.certificates import X509
from pinfold.cluster.certificates.keeper import CertificateKeeper, Names
from pinfold.cluster.certificates.steps import SERVING_DAYS
from pinfold.planning.fake_cluster import FakeCluster
from pinfold.planning.fake_kubernetes import FakeKubernetes
from pinfold.ports.errors import PortError
from pinfold.ports.kubernetes import SECRETS, VALIDATING_WEBHOOKS, Kubernetes
from tests.scenes.waiting import until

NAMES = Names("pinfold", "pinfold-quota-certificates", "pinfold-quota", "pinfold-quota")
NOW = 1_800_000_000.0
MADE = X509()


def configuration(*names: str) -> dict[str, Any]:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": NAMES.configuration},
        "webhooks": [
            {"name": name, "clientConfig": {"service": {"name": "pinfold-quota"}}} for name in names
        ],
    }


class Replica:
    """One keeper, and the files that it has written."""

    def __init__(self, kubernetes: Kubernetes, now: float = NOW) -> None:
        self.placed: list[tuple[bytes, bytes]] = []
        self.files = (b"", b"")
        self.told: list[str] = []
        self.now = now
        self.keeper = CertificateKeeper(
            kubernetes,
            MADE,
            NAMES,
            self._place,
            lambda: self.files,
            told=self.told.append,
            clock=lambda: self.now,
        )

    async def _place(self, certificate: bytes, key: bytes) -> None:
        self.placed.append((certificate, key))
        self.files = certificate, key


async def bundles(kubernetes: Kubernetes) -> list[bytes]:
    found = await kubernetes.get(VALIDATING_WEBHOOKS, NAMES.configuration)
    return [base64.b64decode(one["clientConfig"]["caBundle"]) for one in found["webhooks"]]


def test_one_replica_makes_all_of_it_and_leaves_the_rest_alone() -> None:
    async def scenario() -> None:
        kubernetes = FakeKubernetes(FakeCluster())
        await kubernetes.create(VALIDATING_WEBHOOKS, configuration("pods", "claims"))
        replica = Replica(kubernetes)
        until = await replica.keeper.settle()
        assert NOW < until < NOW + SERVING_DAYS * 86400
        ((certificate, _),) = replica.placed
        first, second = await bundles(kubernetes)
        assert first == second
        assert MADE.is_signed_by(certificate, first)
        found = await kubernetes.get(VALIDATING_WEBHOOKS, NAMES.configuration)
        assert found["webhooks"][0]["clientConfig"]["service"] == {"name": "pinfold-quota"}
        assert replica.told == [
            "written: there is no authority yet",
            "trusted by pinfold-quota",
            "written: there is no certificate yet",
        ]
        # There is nothing more to do, and nothing is written again.
        assert await replica.keeper.settle() == until
        assert len(replica.placed) == 1

    asyncio.run(scenario())


def test_replicas_that_begin_together_serve_the_same() -> None:
    async def scenario() -> None:
        kubernetes = FakeKubernetes(FakeCluster())
        await kubernetes.create(VALIDATING_WEBHOOKS, configuration("pods"))
        replicas = [Replica(kubernetes) for _ in range(4)]
        await asyncio.gather(*(one.keeper.settle() for one in replicas))
        for one in replicas:
            await one.keeper.settle()
        last = {one.placed[-1] for one in replicas}
        assert len(last) == 1
        (bundle,) = await bundles(kubernetes)
        assert MADE.is_signed_by(next(iter(last))[0], bundle)

    asyncio.run(scenario())


def test_a_secret_that_is_deleted_leaves_the_other_replica_trusted() -> None:
    async def scenario() -> None:
        kubernetes = FakeKubernetes(FakeCluster())
        await kubernetes.create(VALIDATING_WEBHOOKS, configuration("pods", "claims"))
        first, second = Replica(kubernetes), Replica(kubernetes)
        for one in (first, second):
            await one.keeper.settle()
        await kubernetes.delete(SECRETS, NAMES.secret, NAMES.namespace)
        await first.keeper.settle()
        # The second has not looked yet.
        assert len(first.placed) == 2
        assert len(second.placed) == 1
        for bundle in await bundles(kubernetes):
            authorities = MADE.split(bundle)
            for certificate, _ in (*first.placed, *second.placed):
                assert any(MADE.is_signed_by(certificate, one) for one in authorities)

    asyncio.run(scenario())


class Dies(Exception):  # noqa: N818 - the end of a replica
    pass


class Mortal:
    """An API server at whose ``last`` request from here the replica dies, before or after it."""

    def __init__(self, kubernetes: Kubernetes, last: int, *, after: bool) -> None:
        self._kubernetes, self._left, self._after = kubernetes, last, after

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._kubernetes, name)

        async def mortal(*args: Any) -> Any:
            self._left -= 1
            if self._left == 0 and not self._after:
                raise Dies
            try:
                return await method(*args)
            finally:
                if self._left == 0:
                    raise Dies

        return mortal


@pytest.mark.parametrize("after", [False, True])
def test_a_replica_may_die_at_any_request(*, after: bool) -> None:
    async def scenario(last: int) -> bool:
        kubernetes = FakeKubernetes(FakeCluster())
        await kubernetes.create(VALIDATING_WEBHOOKS, configuration("pods"))
        try:
            await Replica(Mortal(kubernetes, last, after=after)).keeper.settle()
        except Dies:
            died = True
        else:
            died = False
        other = Replica(kubernetes)
        await other.keeper.settle()
        (bundle,) = await bundles(kubernetes)
        # Whatever was ever placed is trusted.
        assert all(MADE.is_signed_by(certificate, bundle) for certificate, _ in other.placed)
        assert other.placed
        return died

    ran = itertools.takewhile(bool, (asyncio.run(scenario(last)) for last in range(1, 50)))
    assert sum(ran) > 6


def test_a_certificate_is_renewed_and_placed() -> None:
    async def scenario() -> None:
        kubernetes = FakeKubernetes(FakeCluster())
        await kubernetes.create(VALIDATING_WEBHOOKS, configuration("pods"))
        replica = Replica(kubernetes)
        replica.now = await replica.keeper.settle()
        assert await replica.keeper.settle() > replica.now
        before, after = replica.placed
        assert before != after
        secret = await kubernetes.get(SECRETS, NAMES.secret, NAMES.namespace)
        assert base64.b64decode(secret["data"]["tls.crt"]) == after[0]

    asyncio.run(scenario())


def test_without_a_configuration_nothing_is_trusted_and_that_is_said() -> None:
    async def scenario() -> None:
        with pytest.raises(PortError, match="ValidatingWebhookConfiguration pinfold-quota"):
            await Replica(FakeKubernetes(FakeCluster())).keeper.settle()

    asyncio.run(scenario())


def test_a_secret_of_somebody_else_keeps_what_is_his() -> None:
    async def scenario() -> None:
        kubernetes = FakeKubernetes(FakeCluster())
        await kubernetes.create(VALIDATING_WEBHOOKS, configuration("pods"))
        about = {"name": NAMES.secret, "namespace": NAMES.namespace}
        odd = {"ca.crt": "%%%", "note": base64.b64encode(b"his").decode()}
        await kubernetes.create(
            SECRETS, {"apiVersion": "v1", "kind": "Secret", "metadata": about, "data": odd}
        )
        await Replica(kubernetes).keeper.settle()
        secret = await kubernetes.get(SECRETS, NAMES.secret, NAMES.namespace)
        assert base64.b64decode(secret["data"]["note"]) == b"his"
        assert secret["data"]["tls.crt"]

    asyncio.run(scenario())


def test_what_somebody_else_has_put_in_the_files_is_put_back_at_once() -> None:
    async def scenario() -> None:
        kubernetes = FakeKubernetes(FakeCluster())
        await kubernetes.create(VALIDATING_WEBHOOKS, configuration("pods"))
        replica = Replica(kubernetes)
        running = asyncio.create_task(replica.keeper.run())
        await until(lambda: replica.placed)
        ours = replica.files
        for theirs in ((b"another", b"key"), (b"", b""), (ours[0], b"key")):
            replica.files = theirs
            replica.keeper.look()
            await until(lambda: replica.files == ours)
        assert replica.told[-3:] == ["put back: there was another certificate, or none"] * 3
        running.cancel()

    asyncio.run(scenario())
