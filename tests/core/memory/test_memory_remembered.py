"""What a kubelet remembers of init containers, which is not always what they have."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pinfold.core.memory.memory import remove_pod
from pinfold.core.memory.policy import MemoryTransaction
from pinfold.core.pod.pod import Pod
from tests.scenes.memory_scene import GIB, container, fresh, hint, pod, policy, table

MADE = policy(8)
SIZES = st.sampled_from(["512Mi", "1Gi", "2Gi"])
CONTAINERS = st.builds(
    lambda restarts, size: (restarts, size), st.sampled_from([None, "Always"]), SIZES
)


def admit(transaction: MemoryTransaction, what: Pod) -> None:
    for one in what.all_containers:
        MADE.allocate(transaction, what, one, hint(0))


@given(st.lists(CONTAINERS, max_size=3), st.lists(SIZES, min_size=1, max_size=2))
def test_in_one_admission_it_is_what_they_have(
    inits: list[tuple[str | None, str]], sizes: list[str]
) -> None:
    init = tuple(container(f"i{n}", who, memory=size) for n, (who, size) in enumerate(inits))
    what = pod("p", *(container(f"c{n}", memory=s) for n, s in enumerate(sizes)), init=init)
    plain, remembering = fresh(MADE), MemoryTransaction("p", MADE.empty_state, {})
    for transaction in (plain, remembering):
        admit(transaction, what)
    assert plain.state == remembering.state


def test_what_has_gone_is_still_remembered() -> None:
    what = pod("p", container("c", memory="1Gi"), init=(container("i", memory="2Gi"),))
    transaction = MemoryTransaction("p", MADE.empty_state, {})
    MADE.allocate(transaction, what, what.init_containers[0], hint(0))
    transaction.state = remove_pod(transaction.state, "p")
    MADE.allocate(transaction, what, what.init_containers[0], hint(0))
    assert table(transaction.state, 0).reserved == 0
    sound = fresh(MADE)
    MADE.allocate(sound, what, what.init_containers[0], hint(0))
    assert table(sound.state, 0).reserved == 2 * GIB


def test_what_is_there_already_is_remembered_anew() -> None:
    what = pod("p", container("c", memory="1Gi"), init=(container("i", memory="2Gi"),))
    first = fresh(MADE)
    MADE.allocate(first, what, what.init_containers[0], hint(0))
    restarted = MemoryTransaction("p", first.state, {})
    admit(restarted, what)
    assert table(restarted.state, 0).reserved == 2 * GIB
