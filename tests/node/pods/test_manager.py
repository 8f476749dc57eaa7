"""The manager on fakes: the specification's scenarios, restarts of pods and of the agent."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from msgspec.structs import replace

from pinfold.admission.decision import Decision
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.kubelet.own_policies import OWN_POLICIES, OwnPolicies
from pinfold.core.values.cpuset import CPUSet
from pinfold.core.values.quantity import Quantity
from pinfold.node.pod_table import NameTakenError, UnknownPodError
from pinfold.node.reconciler import reconcile
from pinfold.node.recovery.recovery import MismatchError, OnMismatch
from pinfold.ports.errors import CgroupError, ContainerKey, StoreError
from pinfold.ports.records import PodPhase
from pinfold.ports.runtime import ContainerState
from tests.scenes.manager_harness import STATIC, Harness, manifest, run

STRICT = NodeConfig(
    cpu_manager_policy="static",
    reserved_system_cpus=CPUSet([0]),
    cpu_manager_policy_options={"strict-cpu-reservation": "true"},
)


def test_a_container_arrives_that_requires_exclusive_cores() -> None:
    async def scenario(node: Harness) -> None:
        await node.admit(manifest("web", ""))
        assert node.cpus("web") == {"c0": "1-7"}
        await node.admit(manifest("db", "2"))
        assert node.cpus("db") == {"c0": "2-3"}
        assert node.cpus("web") == {"c0": "1,4-7"}
        assert str(node.books.view.state.ledger.default) == "0-1,4-7"
        assert str(node.mirrored[-1].default) == "0-1,4-7"

    run(scenario)


def test_a_container_that_was_assigned_exclusive_cores_terminates() -> None:
    async def scenario(node: Harness) -> None:
        await node.admit(manifest("web", ""))
        await node.admit(manifest("db", "2"))
        await node.manager.release("db")
        assert node.cpus("db") == {}
        assert node.cpus("web") == {"c0": "1-7"}
        assert node.store.pods.keys() == {"uid-web"}
        assert ContainerKey("uid-db", "c0") not in node.cgroups.groups

    run(scenario)


def test_the_shared_pool_never_becomes_empty() -> None:
    async def scenario(node: Harness) -> None:
        await node.admit(manifest("web", ""))
        await node.admit(manifest("all", "7"))
        assert node.cpus("all") == {"c0": "1-7"}
        # The reserved CPU is shared only because there is no other.
        assert node.cpus("web") == {"c0": "0"}

    run(scenario)


def test_with_a_strict_reservation_the_last_shared_cpu_is_not_given_away() -> None:
    async def scenario(node: Harness) -> None:
        await node.admit(manifest("web", ""))
        refused = await node.admit(manifest("all", "7"))
        assert refused.phase is PodPhase.REJECTED
        assert "strict-cpu-reservation" in (refused.message or "")
        assert node.cpus("web") == {"c0": "1-7"}
        await node.manager.release("web")
        assert (await node.admit(manifest("all", "7"))).phase is PodPhase.ADMITTED
        assert (await node.admit(manifest("late", ""))).phase is PodPhase.REJECTED

    run(scenario, config=STRICT)


@pytest.mark.parametrize("policy", ["none", "static"])
def test_no_container_runs_on_reserved_system_cpus(policy: str) -> None:
    config = NodeConfig(
        cpu_manager_policy=policy,
        reserved_system_cpus=CPUSet([1, 3]),
        kube_reserved={"cpu": Quantity.parse("500m")},
    )

    async def scenario(node: Harness) -> None:
        for name, cpus in (("besteffort", ""), ("half", "500m"), ("whole", "2")):
            await node.admit(manifest(name, cpus))
            for allowed in node.cpus(name).values():
                assert CPUSet.parse(allowed).isdisjoint(CPUSet([1, 3]))

    run(scenario, config=config)


def test_the_pool_is_taken_before_the_first_instruction() -> None:
    """The owner starts when no other process may run on its CPUs any more."""

    async def scenario(node: Harness) -> None:
        started = []
        start = node.runtime.start

        async def watched(container_id: str) -> Any:
            others = [
                node.cgroups.allowed(status.pid)
                for status in node.runtime.known()
                if status.pid is not None and status.id != container_id
            ]
            status = await start(container_id)
            started.append((node.runtime.ran_on[-1][1], others))
            return status

        node.runtime.start = watched  # type: ignore[method-assign] # listens, changes nothing
        await node.admit(manifest("web", "", ""))
        await node.admit(manifest("db", "2", "500m"))
        own, others = next(entry for entry in started if str(entry[0]) == "2-3")
        assert others
        assert all(own.isdisjoint(other) for other in others)

    run(scenario)


def test_init_containers_run_one_after_the_other_and_give_back_what_only_they_needed() -> None:
    async def scenario(node: Harness) -> None:
        pod = manifest("job", "2", init=("4", "2"))
        record = await node.admit(pod, wait=False)
        await node.settle()
        assert node.cpus("job") == {"i0": "2-5"}
        assert len(record.assignments["i0"]) == 4
        for name in ("i0", "i1"):
            await node.settle()
            (status,) = node.runtime.known()
            assert status.key.name == name
            node.runtime.exit(status.id, 0)
        await asyncio.wait_for(node.manager.lives["uid-job"].started.wait(), 5)
        assert node.cpus("job") == {"c0": "2-3"}
        assert str(node.books.view.state.ledger.default) == "0-1,4-7"

    run(scenario)


def test_a_failing_init_container_fails_a_pod_that_never_restarts() -> None:
    async def scenario(node: Harness) -> None:
        await node.admit(manifest("job", "2", init=("",), restartPolicy="Never"), wait=False)
        await node.settle()
        (status,) = node.runtime.known()
        node.runtime.exit(status.id, 3)
        await node.manager.lives["uid-job"].gone.wait()
        assert node.books.view.pods.ended["uid-job"].phase is PodPhase.FAILED
        assert node.books.view.pods.ended["uid-job"].exit_codes == {"i0": 3}
        assert str(node.books.view.state.ledger.default) == "0-7"

    run(scenario)


def test_a_sidecar_starts_before_and_ends_after_the_others() -> None:
    async def scenario(node: Harness) -> None:
        pod = manifest("mesh", "2", init=("1",), restartPolicy="Never")
        pod["spec"]["initContainers"][0]["restartPolicy"] = "Always"
        await node.admit(pod)
        assert node.cpus("mesh").keys() == {"i0", "c0"}
        (main,) = [s for s in node.runtime.known() if s.key.name == "c0"]
        active = node.manager.lives["uid-mesh"]
        node.runtime.exit(main.id, 0)
        await asyncio.wait_for(active.gone.wait(), 5)
        assert node.runtime.known() == ()
        assert node.books.view.pods.ended["uid-mesh"].phase is PodPhase.SUCCEEDED

    run(scenario)


def test_a_container_that_exits_is_restarted_on_the_same_cpus() -> None:
    async def scenario(node: Harness) -> None:
        await node.admit(manifest("db", "2"))
        for attempt in range(1, 4):
            (status,) = node.runtime.known()
            node.runtime.exit(status.id, 1)
            for _ in range(100):
                await asyncio.sleep(0.005)
                known = node.runtime.known()
                if known and known[0].attempt == attempt:
                    break
            assert node.runtime.known()[0].attempt == attempt
            await node.settle()
            assert node.cpus("db") == {"c0": "2-3"}
            assert node.books.view.pods.active["uid-db"].record.restarts == {"c0": attempt}

    run(scenario)


def test_a_rejected_pod_holds_nothing_and_can_be_asked_for_again() -> None:
    async def scenario(node: Harness) -> None:
        refused = await node.admit(manifest("big", "8"))
        assert refused.phase is PodPhase.REJECTED
        assert refused.message is not None
        assert node.books.view.pods.find("big") == "uid-big"
        assert str(node.books.view.state.ledger.default) == "0-7"
        again = manifest("big", "2")
        again["metadata"]["uid"] = "other"
        assert (await node.admit(again)).phase is PodPhase.ADMITTED
        assert node.store.pods.keys() == {"other"}

    run(scenario)


def test_names_are_taken_once() -> None:
    async def scenario(node: Harness) -> None:
        await node.admit(manifest("web", ""))
        with pytest.raises(NameTakenError, match="default/web is there already"):
            await node.admit(manifest("web", ""))
        with pytest.raises(UnknownPodError, match="no pod default/other"):
            await node.manager.release("other")

    run(scenario)


def test_a_process_that_ignores_sigterm_is_killed_after_the_grace_period() -> None:
    async def scenario(node: Harness) -> None:
        await node.admit(manifest("stubborn", "2", terminationGracePeriodSeconds=30))
        (status,) = node.runtime.known()
        node.runtime.ignores_sigterm.add(status.id)
        await asyncio.wait_for(node.manager.release("stubborn", grace=0.05), 5)
        assert node.runtime.known() == ()

    run(scenario)


def test_nothing_changes_when_the_decision_cannot_be_written_down() -> None:
    async def scenario(node: Harness) -> None:
        node.store.faults.fail_at.add(node.store.faults.calls + 1)
        with pytest.raises(StoreError):
            await node.admit(manifest("db", "2"))
        assert str(node.books.view.state.ledger.default) == "0-7"
        assert node.books.view.pods.active == {}
        await node.admit(manifest("db", "2"))

    run(scenario)


def test_a_pod_fails_when_the_others_cannot_be_moved_away() -> None:
    async def scenario(node: Harness) -> None:
        await node.admit(manifest("web", ""))
        node.cgroups.faults.fail_at.add(node.cgroups.faults.calls + 1)
        with pytest.raises(CgroupError):
            await node.admit(manifest("db", "2"))
        assert node.books.view.pods.ended["uid-db"].phase is PodPhase.REJECTED
        assert node.cpus("web") == {"c0": "1-7"}

    run(scenario)


def test_a_container_that_cannot_be_started_is_tried_again() -> None:
    async def scenario(node: Harness) -> None:
        node.runtime.faults.fail_at.update(range(1, 3))
        await node.admit(manifest("db", "2"), wait=False)
        for _ in range(200):
            await asyncio.sleep(0.005)
            if node.cpus("db"):
                break
        assert node.cpus("db") == {"c0": "2-3"}
        assert any("was not started" in problem for problem in node.problems)

    run(scenario)


def test_applications_read_their_cpus() -> None:
    async def scenario(node: Harness) -> None:
        await node.admit(manifest("db", "2", "500m"))
        read = json.loads(node.files.documents["uid-db"])
        assert read["containers"] == {
            "c0": {"cpus": "2-3", "exclusive": True},
            "c1": {"cpus": "1,4-7", "exclusive": False},
        }
        await node.admit(manifest("other", "2"))
        read = json.loads(node.files.documents["uid-db"])
        assert read["containers"]["c1"]["cpus"] == "1,6-7"
        await node.manager.release("db")
        assert node.files.documents.keys() == {"uid-other"}

    run(scenario)


def test_drift_is_found_and_repaired() -> None:
    async def scenario(node: Harness) -> None:
        await node.admit(manifest("web", ""))
        await node.admit(manifest("db", "2"))
        assert await reconcile(node.books) == []
        node.cgroups.shared = CPUSet.parse("0-7")
        group = node.cgroups.groups[ContainerKey("uid-db", "c0")]
        del node.cgroups.groups[ContainerKey("uid-web", "c0")]
        group.cpus = CPUSet.parse("0-7")
        found = await reconcile(node.books)
        assert [(d.key and d.key.name, d.found, d.repaired) for d in found] == [
            (None, "0-7", True),
            ("c0", "no cgroup", True),
            ("c0", "effective 0-7", True),
        ]
        assert await reconcile(node.books) == []
        assert node.cpus("web") == {"c0": "1,4-7"}
        assert [e.kind for e in node.store.entries][-3:] == ["repaired"] * 3

    run(scenario)


def test_cpus_that_go_offline_are_given_to_nobody() -> None:
    async def scenario(node: Harness) -> None:
        await node.admit(manifest("web", ""))
        await node.books.set_offline(CPUSet([2, 3]))
        node.cgroups.online = CPUSet.parse("0-1,4-7")
        await node.admit(manifest("db", "2"))
        assert node.cpus("db") == {"c0": "4-5"}
        assert node.cpus("web") == {"c0": "1,6-7"}
        node.cgroups.online = CPUSet.parse("0-7")
        await node.books.set_offline(CPUSet())
        assert node.cpus("web") == {"c0": "1-3,6-7"}

    run(scenario)


@pytest.mark.parametrize("kills", [1, 3])
def test_a_restarted_agent_goes_on(kills: int) -> None:
    async def scenario(node: Harness) -> None:
        await node.admit(manifest("web", ""))
        await node.admit(manifest("db", "2"))
        pids = {status.pid for status in node.runtime.known()}
        for _ in range(kills):
            await node.kill()
            await node.start()
            await node.settle()
        assert {status.pid for status in node.runtime.known()} == pids
        assert node.cpus("db") == {"c0": "2-3"}
        await node.manager.release("db")
        assert node.cpus("web") == {"c0": "1-7"}

    run(scenario)


def test_an_exit_in_the_agents_absence_is_not_lost() -> None:
    async def scenario(node: Harness) -> None:
        await node.admit(manifest("job", "2", restartPolicy="Never"))
        await node.kill()
        (status,) = node.runtime.known()
        node.runtime.exit(status.id, 7)
        await node.start()
        await node.settle()
        assert node.books.view.pods.ended["uid-job"].exit_codes == {"c0": 7}
        assert str(node.books.view.state.ledger.default) == "0-7"

    run(scenario)


def test_what_has_ended_and_nobody_knows_is_cleared_away() -> None:
    async def scenario(node: Harness) -> None:
        await node.admit(manifest("db", "2"))
        await node.kill()
        for status in node.runtime.known():
            node.runtime.exit(status.id, 0)
        node.store.pods.clear()
        assert node.store.node is not None
        node.store.node = None
        await node.start()
        assert node.runtime.known() == ()
        assert node.cgroups.groups == {}

    run(scenario)


def test_a_changed_reservation_is_refused_or_repaired() -> None:
    async def scenario(node: Harness) -> None:
        await node.admit(manifest("db", "2"))
        await node.admit(manifest("web", ""))
        await node.kill()
        node.config = NodeConfig(
            cpu_manager_policy="static", reserved_system_cpus=CPUSet.parse("2")
        )
        with pytest.raises(MismatchError, match='not all reserved cpus: "2" are present'):
            await node.start()
        await node.start(OnMismatch.REPAIR)
        assert node.cpus("db") == {"c0": "0-1"}
        assert node.cpus("web") == {"c0": "3-7"}
        assert any("decided again" in problem for problem in node.problems)

    run(scenario)


def test_a_changed_policy_is_refused_or_repaired() -> None:
    async def scenario(node: Harness) -> None:
        await node.admit(manifest("db", "2"))
        await node.kill()
        node.config = NodeConfig()
        with pytest.raises(MismatchError, match='configured policy "none" differs from state'):
            await node.start()
        await node.start(OnMismatch.REPAIR)
        assert node.cpus("db") == {"c0": "0-7"}

    run(scenario)


def test_policies_that_place_as_static_does_are_no_mismatch() -> None:
    async def scenario(node: Harness) -> None:
        await node.admit(manifest("db", "2"))
        before, plain = node.cpus("db"), node.config
        for policy in (*OWN_POLICIES, "static"):
            await node.kill()
            node.config = replace(plain, cpu_manager_policy=policy, own=OwnPolicies())
            await node.start()
            assert node.cpus("db") == before
            await node.admit(manifest(f"db-{policy}", "1"))
            assert node.store.node is not None
            assert node.store.node.policy_name == "static"
            assert {ledger.policy_name for ledger in node.mirrored} == {"static"}

    run(scenario)


def test_a_refusal_that_takes_long_to_explain_holds_up_no_exit() -> None:
    async def scenario(node: Harness) -> None:
        explained = asyncio.Event()

        async def describe(decision: Decision, _state: object) -> str:
            if not decision.admitted:
                await explained.wait()
            return "{}"

        node.books.observers = replace(node.books.observers, describe=describe)
        await node.admit(manifest("job", "2", restartPolicy="Never"))
        refusal = asyncio.create_task(node.admit(manifest("huge", "9")))
        later = asyncio.create_task(node.admit(manifest("later", "1")))
        await node.settle()
        (status,) = node.runtime.known()
        node.runtime.exit(status.id, 0)
        assert (await node.books.containers.exits.wait(status)).exit_code == 0
        assert not refusal.done()
        assert not later.done()
        explained.set()
        assert (await refusal).phase is PodPhase.REJECTED
        assert (await later).phase is PodPhase.ADMITTED
        kinds = [entry.kind for entry in await node.store.history()]
        assert kinds.index("admitted") < kinds.index("rejected")

    run(scenario)


def test_a_machine_with_fewer_cpus_is_refused_or_repaired() -> None:
    async def scenario(node: Harness) -> None:
        await node.admit(manifest("db", "2"))
        await node.admit(manifest("big", "4"))
        await node.kill()
        node.machine = "1s2c2t"
        again = Harness(machine="1s2c2t", config=STATIC)
        node.view, node.cgroups.machine = again.view, again.cgroups.machine
        node.cgroups.online = again.cgroups.online
        with pytest.raises(MismatchError, match="doesn't match with CPUs in state"):
            await node.start()
        await node.start(OnMismatch.REPAIR)
        await node.settle()
        assert node.cpus("db") == {"c0": "2-3"}
        assert node.books.view.pods.ended["uid-big"].reason == "NodeMismatch"
        assert all(status.state is ContainerState.RUNNING for status in node.runtime.known())

    run(scenario)
