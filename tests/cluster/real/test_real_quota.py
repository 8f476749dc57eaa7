"""``pinfold quota serve`` and what is deployed for it, in a cluster of Kubernetes itself."""

from __future__ import annotations

import asyncio
import signal
from typing import Any, Final

import pytest

from pinfold.core.quota.names import EXCLUSIVE_CPUS
from tests.scenes.real_quota import RealQuota, Team, counted
from tests.scenes.replica_process import NAME
from tests.scenes.waiting import until, wait_until

ACCOUNT = f"system:serviceaccount:{NAME}:{NAME}"
WEBHOOKS: Final = "validatingwebhookconfigurations"


def refused(name: str, cpus: int, used: int, hard: int) -> str:
    """What kubectl says of it, beside where the manifest was."""
    asked, is_used, limited = (f"{EXCLUSIVE_CPUS}={number}" for number in (cpus, used, hard))
    return (
        f'admission webhook "quota.pinfold.dev" denied the request: pods "{name}" is forbidden: '
        f"exceeded quota: cpus, requested: {asked}, used: {is_used}, limited: {limited}\n"
    )


def test_pods_come_in_until_the_quota_is_full(deployed: RealQuota) -> None:
    async def scenario() -> None:
        async with deployed.replicas() as replicas:
            team = deployed.team(4, pods="10", requests_memory="8Gi")
            assert team.create("a", 3) == "pod/a created\n"
            assert team.used == 3
            told = team.create("b", 2, status=1)
            assert told == (
                'Error from server (Forbidden): error when creating "STDIN": '
                + refused("b", 2, 3, 4)
            )
            team.create("shares", 1, "--dry-run=server")
            # Two who keep one status: the names of the other are as it wants them.
            wait_until(
                lambda: (
                    team.status["used"]
                    == {EXCLUSIVE_CPUS: "3", "pods": "1", "requests.memory": "1Gi"}
                )
            )
            deployed.control.kubectl("delete", "pod", "a", "-n", team.name)
            team.settles_at(0)
            team.create("b", 2)
            # A limit that is lowered ends nobody, and one that is raised lets more in.
            team.limit(1)
            assert team.used == 2
            told = team.create("c", 1, status=1)
            assert refused("c", 1, 2, 1) in told
            team.limit(5)
            team.create("c", 3)
            assert [await one.get("/readyz") for one in replicas] == [(200, "ok\n")] * 2
            # Whoever of them was asked: nothing was denied to its service account.
            answered = [one.get("responseStatus", {}) for one in deployed.control.events(ACCOUNT)]
            assert answered
            assert not any(one.get("code") in {401, 403, 422} for one in answered)

    asyncio.run(scenario())


def test_the_audit_log_says_what_was_charged(deployed: RealQuota) -> None:
    async def scenario() -> None:
        async with deployed.replicas(1) as (replica,):
            team = deployed.team(4)
            team.create("a", 3)
            team.create("b", 3, status=1)
            found = [
                said
                for one in deployed.control.events("admin")
                if one.get("objectRef", {}).get("namespace") == team.name
                for said in one["annotations"].items()
            ]
            assert ("quota.pinfold.dev/charged", f"cpus: {EXCLUSIVE_CPUS}=3") in found
            assert ("quota.pinfold.dev/refused-by", "cpus") in found
            _, metrics = await replica.get("/metrics")
            assert 'quota_reviews_total{decision="denied",resource="pods"} 1.0' in metrics

    asyncio.run(scenario())


def test_pods_of_generated_names_and_of_controllers_are_charged(deployed: RealQuota) -> None:
    async def scenario() -> None:
        async with deployed.replicas(1):
            team = deployed.team(6)
            for number in range(3):
                team.create("", 1, generateName="some-")
                assert team.used == number + 1
            template = team.pod("", 2)
            template["metadata"] = {"labels": {"app": "a"}}
            spec = {
                "replicas": 5,
                "selector": {"matchLabels": {"app": "a"}},
                "template": {key: template[key] for key in ("metadata", "spec")},
            }
            team.control.apply(
                {
                    "apiVersion": "apps/v1",
                    "kind": "ReplicaSet",
                    "metadata": {"name": "set", "namespace": team.name},
                    "spec": spec,
                }
            )
            wait_until(lambda: len(team.pods) == 4, 60)

            def told() -> bool:
                found = team.control.get("events", "-n", team.name)["items"]
                return any("exceeded quota: cpus, requested" in one["message"] for one in found)

            wait_until(told, 60)
            assert (team.used, sum(map(counted, team.pods))) == (5, 5)
            # Who makes room lets the set go on by itself.
            team.limit(20)
            wait_until(lambda: len(team.pods) == 8, 100)
            team.settles_at(13)

    asyncio.run(scenario())


def test_what_decides_about_cpus_stays_as_it_was_counted(deployed: RealQuota) -> None:
    async def scenario() -> None:
        async with deployed.replicas(1):
            team = deployed.team(4)
            team.create("a", 3)

            def annotate(*words: str, status: int = 0) -> str:
                return team.control.kubectl(
                    "annotate", "pod", "a", "-n", team.name, *words, status=status
                )

            told = annotate("exclusive-cpus.pinfold.dev/pod=false", status=1)
            assert told.startswith(
                'Error from server (Forbidden): admission webhook "quota.pinfold.dev" denied the '
                "request: exclusive-cpus.pinfold.dev/pod: may not change once a pod is created"
            )
            annotate("example.com/other=1")
            team.control.kubectl("label", "pod", "a", "-n", team.name, "a=b")
            team.create("b", 4, annotations={"exclusive-cpus.pinfold.dev/pod": "false"})
            assert team.used == 3

    asyncio.run(scenario())


def test_who_declines_is_counted_where_nodes_do_not_heed_it(deployed: RealQuota) -> None:
    async def scenario() -> None:
        declines = {"exclusive-cpus.pinfold.dev/pod": "false"}
        async with deployed.replicas(1):
            team = deployed.team(4)
            team.create("a", 3, annotations=declines)
            assert team.used == 0
        async with deployed.replicas(1, "--ignore-opt-out"):
            await until(lambda: team.used == 3, 60)
            told = team.create("b", 2, annotations=declines, status=1)
            assert refused("b", 2, 3, 4) in told

    asyncio.run(scenario())


def test_a_namespace_goes_with_its_quota(deployed: RealQuota) -> None:
    async def scenario() -> None:
        async with deployed.replicas(1) as (replica,):
            team = deployed.team(4)
            team.create("a", 3)
            team.control.kubectl("delete", "namespace", team.name, "--timeout=120s")
            again = Team(deployed, team.name)
            team.control.make_namespace(team.name)
            again.limit(2)
            assert again.used == 0
            assert "exceeded quota" in again.create("a", 3, status=1)
            again.create("a", 2)
            assert "[warning  ] status" not in replica.text, replica.text

    asyncio.run(scenario())


def test_nothing_comes_in_while_no_replica_answers(deployed: RealQuota) -> None:
    team = deployed.team_without_replica()

    async def scenario() -> None:
        async with deployed.replicas(1):
            wait_until(lambda: team.used == 0, 60)
            team.create("a", 1)
        told = team.create("b", 1, status=1)
        assert told.startswith('Error from server (InternalError): error when creating "STDIN": ')
        assert 'failed calling webhook "quota.pinfold.dev"' in told
        # Those without which it would not come back, and whoever goes.
        elsewhere = team.pod("b", 1)
        elsewhere["metadata"]["namespace"] = "kube-system"
        team.control.apply(elsewhere)
        team.control.kubectl("delete", "pod", "b", "-n", "kube-system")
        team.control.kubectl("delete", "pod", "a", "-n", team.name)

    asyncio.run(scenario())


def test_what_came_in_while_it_was_open_is_counted(deployed: RealQuota) -> None:
    async def scenario() -> None:
        team = deployed.team_without_replica()
        deployed.deploy("fail-open")
        try:
            async with deployed.replicas(1):
                wait_until(lambda: team.used == 0, 60)
            team.create("a", 4)
            async with deployed.replicas(1):
                team.settles_at(4)
                assert refused("b", 1, 4, 2) in team.create("b", 1, status=1)
        finally:
            deployed.deploy("fail-closed")

    asyncio.run(scenario())


@pytest.mark.parametrize("compacts", [False, True])
def test_the_api_server_is_killed_and_comes_back(deployed: RealQuota, *, compacts: bool) -> None:
    async def scenario() -> None:
        control = deployed.control
        async with deployed.replicas() as replicas:
            team = deployed.team(4)
            team.create("a", 2)
            # Neither knows what happens now.
            for one in replicas:
                one.process.send_signal(signal.SIGSTOP)
            control.kubectl("delete", "pod", "a", "-n", team.name)
            control.kill("kube-apiserver")
            if compacts:
                control.compact()
            await asyncio.to_thread(control.start_api_server)
            for one in replicas:
                one.process.send_signal(signal.SIGCONT)
            await asyncio.to_thread(team.settles_at, 0)
            await asyncio.to_thread(team.create, "b", 3)
            await asyncio.to_thread(lambda: team.create("c", 2, status=1))
            await until(lambda: team.used == 3, 60)
            assert all(one.process.returncode is None for one in replicas)

    asyncio.run(scenario())


def test_a_backup_of_etcd_is_restored(deployed: RealQuota) -> None:
    """Versions go back, and with them what is in use."""

    async def scenario() -> None:
        control = deployed.control
        async with deployed.replicas():
            team = deployed.team(4)
            team.create("a", 2)
            await until(lambda: not team.is_reserved, 60)
            snapshot = control.backup()
            team.create("b", 2)
            assert "exceeded quota" in team.create("c", 2, status=1)
            await asyncio.to_thread(control.restore, snapshot)

            # Whatever they knew of later, they count what there is.
            await until(lambda: "created" in team.create("c", 2, status=None), 120)
            assert sorted(one["metadata"]["name"] for one in team.pods) == ["a", "c"]
            assert "exceeded quota" in await asyncio.to_thread(
                lambda: team.create("d", 1, status=1)
            )
            assert team.used == 4

    asyncio.run(scenario())


def test_where_nothing_happens_nothing_is_asked(deployed: RealQuota) -> None:
    """But for the lease, and watches that end by themselves."""

    async def scenario() -> None:
        async with deployed.replicas():
            team = deployed.team(4)
            team.create("a", 2)

            await until(lambda: team.used == 2 and not team.is_reserved, 30)
            before = sum(1 for _ in deployed.control.events(ACCOUNT))
            await asyncio.sleep(10)  # that nothing happens tells of no event
            asked = [_request(one) for one in list(deployed.control.events(ACCOUNT))[before:]]
            beside = [one for one in asked if one[1] not in {"leases", "secrets"}]
            assert [one for one in beside if one[0] != "watch" and one[1] != WEBHOOKS] == []
            assert len(asked) <= 30

    asyncio.run(scenario())


def _request(event: dict[str, Any]) -> tuple[str, str]:
    return event["verb"], event["objectRef"]["resource"]
