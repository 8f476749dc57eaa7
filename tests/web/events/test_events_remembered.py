"""Of a node that is looked at often, only what has changed is made anew."""

from __future__ import annotations

from pinfold.core.values.cpuset import CPUSet
from pinfold.web.documents import Documents
from pinfold.web.events.remembered import RememberedDocuments
from tests.scenes.manager_harness import Harness, manifest, run

SHARED, OWNERS = 6, 2


async def _pods(node: Harness) -> RememberedDocuments:
    for number in range(SHARED):
        await node.admit(manifest(f"shared-{number}", "500m"))
    for number in range(OWNERS):
        await node.admit(manifest(f"owner-{number}", "1"))
    await node.settle()
    return RememberedDocuments(node.books)


def _made(documents: RememberedDocuments, node: Harness) -> int:
    """How many pods' documents a look makes; it says what one without a memory does."""
    before = documents.made
    assert documents.pods() == Documents(node.books).pods()
    return documents.made - before


def test_who_is_as_before_is_not_made_anew() -> None:
    async def scenario(node: Harness) -> None:
        documents = await _pods(node)
        assert _made(documents, node) == SHARED + OWNERS
        assert _made(documents, node) == 0

    run(scenario)


def test_a_pool_of_another_size_makes_nobody_anew_but_who_comes_and_goes() -> None:
    async def scenario(node: Harness) -> None:
        documents = await _pods(node)
        _made(documents, node)
        before = str(node.books.view.pool)
        await node.admit(manifest("comes", "1"))
        await node.settle()
        assert str(node.books.view.pool) != before
        assert _made(documents, node) == 1
        await node.manager.release("comes")
        await node.settle()
        assert str(node.books.view.pool) == before
        assert _made(documents, node) == 0

    run(scenario)


def test_what_is_the_same_for_all_makes_all_anew() -> None:
    async def scenario(node: Harness) -> None:
        documents = await _pods(node)
        _made(documents, node)
        (owned, *_) = next(iter(node.books.view.state.ledger.assignments.values())).values()
        node.cgroups.online = node.cgroups.machine - owned
        await node.books.set_offline(owned)
        assert _made(documents, node) == SHARED + OWNERS
        node.cgroups.online = node.cgroups.machine
        await node.books.set_offline(CPUSet())
        assert _made(documents, node) == SHARED + OWNERS

    run(scenario)


def test_who_is_gone_is_forgotten() -> None:
    async def scenario(node: Harness) -> None:
        documents = await _pods(node)
        _made(documents, node)
        await node.manager.release("owner-0")
        await node.settle()
        _made(documents, node)
        assert documents.remembered == {pod.uid for pod in documents.pods()}

    run(scenario)
