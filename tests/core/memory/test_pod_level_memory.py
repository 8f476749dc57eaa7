"""Memory of pods that have some as a whole: who gets what, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st
from msgspec.structs import replace

from pinfold.admission.container import keeps_memory
from pinfold.core.kubelet.faults import KUBELET, SOUND, AllocationRules
from pinfold.core.memory.memory import MemoryState, remove_container, remove_pod
from pinfold.core.memory.policy import MemoryTransaction, StaticMemoryPolicy
from pinfold.core.pod.pod import Container, Pod, PodResources, most_at_once
from pinfold.core.topology_manager.hints import AllocationError, EmptyPodSharedPoolError
from pinfold.core.values.quantity import Quantity
from tests.scenes.memory_scene import GIB, PAGES, container, hint, pod, policy, table

MIB = 1 << 20
ON = replace(policy(4, 4), pod_level=True)
SOUNDLY = replace(ON, rules=SOUND)
SHARED = Container("shared")


def pod_of(
    memory: str, *containers: Container, init: tuple[Container, ...] = (), **more: str
) -> Pod:
    """A pod with 4 CPUs and so much memory as a whole; ``pages`` are 2 MiB pages."""
    names = {"pages": PAGES}
    amounts = {"cpu": Quantity(4), "memory": Quantity.parse(memory)} | {
        names.get(name, name): Quantity.parse(amount) for name, amount in more.items()
    }
    return replace(pod("p", *containers, init=init), resources=PodResources(amounts, amounts))


def sizes(state: MemoryState, kind: str = "memory") -> dict[str, int]:
    """Container name -> its MiB of one kind."""
    return {
        name: sum(block.size for block in blocks if block.type == kind) // MIB
        for name, blocks in state.assignments["p"].items()
    }


def given_to(what: Pod, made: StaticMemoryPolicy = ON) -> MemoryState:
    transaction = MemoryTransaction("p", made.empty_state)
    made.allocate_pod(transaction, what, hint(0))
    return transaction.state


class TestAsAWhole:
    def test_who_shares_has_the_remainder_and_the_machine_is_charged_once(self) -> None:
        state = given_to(pod_of("2Gi", container("own", memory="512Mi"), SHARED))
        assert sizes(state) == {"own": 512, "shared": 1536}
        assert [block.size for block in state.bubbles["p"]] == [2 * GIB]
        assert table(state, 0).reserved == 2 * GIB
        assert state.machine[0].number_of_assignments == 1

    def test_what_runs_one_after_another_has_the_same_memory(self) -> None:
        init = (
            Container("first"),
            container("sidecar", "Always", memory="256Mi"),
            Container("second"),
            container("third", memory="1Gi"),
        )
        state = given_to(pod_of("2Gi", container("own", memory="512Mi"), SHARED, init=init))
        assert sizes(state) == {
            "first": 2048,
            "sidecar": 256,
            "second": 1792,
            "third": 1024,
            "own": 512,
            "shared": 1280,
        }

    def test_a_fraction_of_a_cpu_has_memory_of_its_own(self) -> None:
        amounts = {"cpu": Quantity.parse("500m"), "memory": Quantity.parse("1Gi")}
        state = given_to(pod_of("2Gi", Container("half", amounts, amounts), SHARED))
        assert sizes(state) == {"half": 1024, "shared": 1024}

    def test_hints_are_for_the_whole(self) -> None:
        what = pod_of("5Gi", container("own", memory="512Mi"), SHARED, pages="64Mi")
        hints = ON.pod_hints(MemoryTransaction("p", ON.empty_state), what)
        assert hints == {"memory": [hint(0, 1)], PAGES: [hint(0, 1)]}

    def test_nothing_is_left_for_who_shares(self) -> None:
        what = pod_of("1Gi", container("own", memory="1Gi"), SHARED, pages="64Mi")
        transaction = MemoryTransaction("p", ON.empty_state)
        assert ON.pod_hints(transaction, what) == {"memory": [], PAGES: []}
        with pytest.raises(EmptyPodSharedPoolError, match="leaving no memory for shared"):
            ON.allocate_pod(transaction, what, hint(0))
        assert transaction.state == ON.empty_state

    def test_pages_that_no_node_has(self) -> None:
        amounts = {"cpu": Quantity(1), "memory": Quantity(GIB), "hugepages-1Gi": Quantity(GIB)}
        what = replace(pod_of("1Gi", SHARED), resources=PodResources(amounts, amounts))
        transaction = MemoryTransaction("p", ON.empty_state)
        assert ON.pod_hints(transaction, what) == {"hugepages-1Gi": []}
        with pytest.raises(AllocationError, match="pod default/p asks for hugepages-1Gi, but no"):
            ON.allocate_pod(transaction, what, hint(0))

    def test_a_container_keeps_its_part_however_much_it_asks_for(self) -> None:
        what = pod_of("2Gi", container("own", memory="512Mi"), SHARED)
        state = given_to(what)
        assert all(keeps_memory(state, what, one) for one in what.containers)
        gone = remove_container(state, "p", "shared")
        assert not keeps_memory(gone, what, SHARED)


class TestByContainer:
    WHAT = pod_of("2Gi", container("own", memory="512Mi"), SHARED)

    def test_only_exclusive_ones_ask(self) -> None:
        transaction = MemoryTransaction("p", ON.empty_state)
        own, shared = self.WHAT.containers
        assert ON.container_hints(transaction, self.WHAT, shared) == {}
        assert ON.container_hints(transaction, self.WHAT, own) == {
            "memory": [hint(0), hint(1), hint(0, 1, preferred=False)]
        }

    def test_nothing_is_looked_for_in_vain(self) -> None:
        transaction = MemoryTransaction("p", ON.empty_state)
        own, shared = self.WHAT.containers
        assert ON.allocate(transaction, self.WHAT, own) is not None
        with pytest.raises(AllocationError, match="no NUMA nodes with enough memory"):
            ON.allocate(transaction, self.WHAT, shared)
        assert ON.allocate(transaction, self.WHAT, shared, hint(0)) == ()
        assert transaction.state.bubbles == {}

    def test_soundly_who_asks_for_nothing_is_left_alone(self) -> None:
        transaction = MemoryTransaction("p", ON.empty_state)
        for one in self.WHAT.containers:
            SOUNDLY.allocate(transaction, self.WHAT, one)
        assert set(transaction.state.assignments["p"]) == {"own"}


def test_with_the_gate_off_such_pods_are_left_alone() -> None:
    off = replace(ON, pod_level=False)
    what = pod_of("2Gi", container("own", memory="512Mi"), SHARED)
    transaction = MemoryTransaction("p", off.empty_state)
    assert off.pod_hints(transaction, what) is None
    assert off.container_hints(transaction, what, what.containers[0]) is None
    assert off.allocate(transaction, what, what.containers[0]) is None
    assert off.allocate_pod(transaction, what) is None
    assert ON.allocate_pod(transaction, pod("p", container("own", memory="1Gi"))) is None
    assert transaction.state == off.empty_state


class TestFaults:
    WRAPS = pod_of("2Gi", container("own", memory="512Mi", pages="64Mi"), SHARED)
    MORE = pod_of("1Gi", container("own", memory="768Mi"), container("too", memory="512Mi"))

    def test_a_kubelets_remainder_wraps_around(self) -> None:
        state = given_to(self.WRAPS)
        (pages,) = [b for b in state.assignments["p"]["shared"] if b.type == PAGES]
        assert pages.size == (1 << 64) - 64 * MIB
        assert table(state, 0, PAGES).reserved == 0
        assert sizes(given_to(self.MORE)) == {"own": 768, "too": 512}

    def test_soundly_what_does_not_fit_is_refused(self) -> None:
        with pytest.raises(AllocationError, match=r"request 64Mi of hugepages-2Mi .* whole none"):
            given_to(self.WRAPS, SOUNDLY)
        with pytest.raises(AllocationError, match=r"p has too little: .* 1280Mi of memory .* 1Gi"):
            given_to(self.MORE, SOUNDLY)

    def test_a_kubelets_sidecar_takes_pages_from_nowhere(self) -> None:
        init = (container("sidecar", "Always", memory="256Mi", pages="64Mi"),)
        state = given_to(pod_of("2Gi", SHARED, init=init))
        assert [block.type for block in state.assignments["p"]["shared"]] == ["memory"]

    @pytest.mark.parametrize(("rules", "charged"), [(KUBELET, 4), (SOUND, 2)])
    def test_a_pod_that_has_its_memory(self, rules: AllocationRules, charged: int) -> None:
        made = replace(ON, rules=rules)
        transaction = MemoryTransaction("p", made.empty_state)
        what = pod_of("2Gi", container("own", memory="512Mi"), SHARED)
        first = made.allocate_pod(transaction, what, hint(0))
        again = made.allocate_pod(transaction, what, hint(0))
        assert first == again
        assert table(transaction.state, 0).reserved == charged * GIB


AMOUNTS = st.sampled_from(["128Mi", "512Mi", "1Gi", "3Gi"])


@st.composite
def pods(draw: st.DrawFn) -> Pod:
    def drawn(prefix: str, count: int, policies: list[str | None]) -> tuple[Container, ...]:
        found = []
        for number in range(count):
            name, restarts = f"{prefix}{number}", draw(st.sampled_from(policies))
            if draw(st.booleans()):
                pages = draw(st.sampled_from([{}, {"pages": "64Mi"}]))
                found.append(container(name, restarts, memory=draw(AMOUNTS), **pages))
            else:
                found.append(Container(name, restart_policy=restarts))
        return tuple(found)

    pages = draw(st.sampled_from([{}, {"pages": "128Mi"}]))
    return pod_of(
        draw(st.sampled_from(["1Gi", "2Gi", "6Gi", "9Gi"])),
        *drawn("c", draw(st.integers(1, 3)), [None]),
        init=drawn("i", draw(st.integers(0, 3)), [None, "Always"]),
        **pages,
    )


@given(pods(), st.booleans())
def test_who_lives_at_the_same_time_fits_into_the_pod(what: Pod, aligned: bool) -> None:
    transaction = MemoryTransaction("p", SOUNDLY.empty_state)
    try:
        given = SOUNDLY.allocate_pod(transaction, what, hint(0) if aligned else None)
    except AllocationError:
        assert transaction.state == SOUNDLY.empty_state
        return
    assert given is not None
    state = transaction.state
    assert MemoryState.of(SOUNDLY.nodes, state.assignments, state.bubbles).machine == state.machine
    whole = {block.type: block.size for block in given.bubble}
    for kind, size in whole.items():
        own = {
            c.name: sum(b.size for b in given.containers[c.name] if b.type == kind)
            if c.requests
            else 0
            for c in what.all_containers
        }
        assert most_at_once(what, lambda one: own[one.name]) <= size  # noqa: B023 - called here
        running = sum(own[c.name] for c in what.containers)
        sidecars = sum(own[c.name] for c in what.init_containers if c.is_sidecar)
        for one in what.containers:
            if not one.requests:
                shared = sum(b.size for b in given.containers[one.name] if b.type == kind)
                assert shared == size - running - sidecars


@given(pods(), st.data())
def test_all_comes_back_with_the_last_container(what: Pod, data: st.DataObject) -> None:
    transaction = MemoryTransaction("p", ON.empty_state)
    try:
        ON.allocate_pod(transaction, what)
    except AllocationError:
        reject()
    charged = transaction.state.machine
    names = data.draw(st.permutations([one.name for one in what.all_containers]))
    state = transaction.state
    for name in names:
        assert state.machine == charged
        state = remove_container(state, "p", name)
    assert state == ON.empty_state == remove_pod(transaction.state, "p")
