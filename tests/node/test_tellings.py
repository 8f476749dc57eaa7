"""What containers are told from their admission to their end, and that a word ends a delay."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from pinfold.core.moves.owners import Owner, Wish
from pinfold.core.moves.planner import plan_moves
from pinfold.core.values.cpuset import CPUSet
from pinfold.node.moves.moving import Moving
from pinfold.node.reconciler import reconcile
from pinfold.planning.fake_cgroups import FakeCgroups
from pinfold.ports.cgroups import Placement
from pinfold.ports.errors import ContainerKey
from pinfold.ports.tellers import Assigned, Assignment
from tests.scenes.manager_harness import ALL_MANAGERS, Harness, manifest, run_virtually

A = ContainerKey("uid-a", "c0")
A_OWNER = ("uid-a", "c0")


class Told(Harness):
    """A node whose containers keep what they were told."""

    set_by = 0.0

    def clock(self) -> float:
        return asyncio.get_running_loop().time() + self.set_by

    def news(self, key: ContainerKey = A) -> list[Assignment]:
        return [news for owner, news in self.teller.history if owner == key]

    def texts(self, key: ContainerKey = A) -> list[tuple[int, str, str, str, str, float | None]]:
        """Generation, current, coming, previous, reason and deadline of all that was told."""
        return [
            (
                one.generation,
                str(one.current.cpus),
                str(one.coming.cpus),
                "-" if one.previous is None else str(one.previous.cpus),
                one.reason,
                one.deadline,
            )
            for one in self.news(key)
        ]

    async def move(self, delay: float, **wishes: str) -> Moving:
        async with self.books.change() as draft:
            told = [
                Wish(Owner(f"uid-{pod}", "c0"), CPUSet.parse(cpus), delay=delay)
                for pod, cpus in wishes.items()
            ]
            plan = plan_moves(draft.state.ledger, told)
            return await self.manager.mover.begin(draft, plan, why="resize")


def run(scenario: Callable[[Told], Awaitable[None]], node: Told | None = None) -> Told:
    node = node or Told()

    async def whole() -> None:
        await node.start()
        await scenario(node)
        await node.settle()
        await node.kill()

    run_virtually(asyncio.wait_for(whole(), 600))
    return node


def test_containers_are_told_at_their_admission_and_forgotten_at_the_end() -> None:
    async def scenario(node: Told) -> None:
        await node.admit(manifest("a", "2", "500m"))
        await node.admit(manifest("web", ""))
        await node.settle()
        assert node.texts() == [(1, "2-3", "2-3", "-", "admission", None)]
        assert node.teller.assignments.keys() == {A}
        (spec,) = (s for s in node.runtime.specs.values() if s.key == A)
        (shared,) = (s for s in node.runtime.specs.values() if s.key.name == "c1")
        assert spec.env["PINFOLD_ASSIGNMENT_DIR"] == "/run/pinfold"
        assert "PINFOLD_ASSIGNMENT_DIR" not in shared.env
        mounts = [
            (m.host_path and m.host_path.path, m.mount_path, m.read_only)
            for m in spec.process.volume_mounts
        ]
        assert mounts == [
            (f"/assignments/{A}", "/run/pinfold", True),
            (f"/assignments/{A}/ack/generation", "/run/pinfold/ack/generation", False),
        ]
        assert shared.process.volume_mounts == ()
        await node.manager.release("a")
        assert node.teller.assignments == {}

    run(scenario)


def test_memory_is_told_too() -> None:
    async def scenario(node: Told) -> None:
        await node.admit(manifest("a", "2"))
        await node.settle()
        (news,) = node.news()
        assert news.current == news.coming
        assert str(news.coming.mems) == "0"

    run(scenario, Told(machine="2s4c2t", config=ALL_MANAGERS))


def test_a_shrink_is_announced_and_not_made_before_its_deadline() -> None:
    async def scenario(node: Told) -> None:
        await node.admit(manifest("a", "4"))
        await node.settle()
        began = node.clock()
        moving = await node.move(5.0, a="2-3")
        await node.settle()
        assert node.texts()[1:] == [(2, "2-5", "2-3", "2-5", "resize", began + 5.0)]
        assert node.cpus("a")["c0"] == "2-5"
        await moving.ended()
        await node.settle()
        assert node.texts()[2:] == [(3, "2-3", "2-3", "2-5", "resize", None)]
        assert node.cpus("a")["c0"] == "2-3"

    run(scenario)


def test_who_moves_has_old_and_new_until_then() -> None:
    async def scenario(node: Told) -> None:
        await node.admit(manifest("a", "2"))
        await node.settle()
        began = node.clock()
        moving = await node.move(5.0, a="4-5")
        await node.settle()
        assert node.texts()[1:] == [(2, "2-5", "4-5", "2-3", "resize", began + 5.0)]
        await moving.ended()
        await node.settle()
        assert node.texts()[2:] == [(3, "4-5", "4-5", "2-3", "resize", None)]

    run(scenario)


def test_a_grow_is_told_once_it_can_be_used() -> None:
    async def scenario(node: Told) -> None:
        await node.admit(manifest("a", "2"))
        await node.settle()
        await (await node.move(5.0, a="2-5")).ended()
        await node.settle()
        assert node.texts()[1:] == [(2, "2-5", "2-5", "2-3", "resize", None)]

    run(scenario)


class SlowCgroups(FakeCgroups):
    """A kernel that takes its time, in which others go on."""

    def __init__(self, machine: CPUSet) -> None:
        super().__init__(machine)
        self.beside: Callable[[], Awaitable[None]] | None = None

    async def place(self, key: ContainerKey, placement: Placement) -> str:
        # What is placed where it is is there at once.
        if self.beside is not None and self.groups[key].placement.cpus != placement.cpus:
            await self.beside()
        return await super().place(key, placement)


class Slow(Told):
    """A node that tells its containers while the kernel works."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.slow = SlowCgroups(self.view.topology.cpus)
        self.cgroups = self.slow
        self.runtime = type(self.runtime)(self.cgroups)

    async def publish(self) -> None:
        await self.books.announcements.publish(["uid-a"], self.books)


def test_nobody_is_told_of_cpus_before_the_kernel_lets_it_use_them() -> None:
    async def scenario(node: Told) -> None:
        assert isinstance(node, Slow)
        await node.admit(manifest("a", "2"))
        await node.settle()
        seen: list[tuple[str, str, str]] = []

        async def beside() -> None:
            await node.publish()
            told, facts = node.news()[-1], json.loads(node.files.documents["uid-a"])
            in_file = facts["containers"]["c0"]["cpus"]
            seen.append((str(told.current.cpus), in_file, node.cpus("a")["c0"]))

        node.slow.beside = beside
        await (await node.move(0.0, a="2-5")).ended()
        await node.settle()
        assert node.texts()[-1][:3] == (2, "2-5", "2-5")
        await (await node.move(0.0, a="2-4")).ended()
        # More is told of after it can be used, less before it is taken.
        assert seen[0] == ("2-3", "2-3", "2-3")
        assert ("2-4", "2-4", "2-5") in seen
        assert all(CPUSet.parse(told) <= CPUSet.parse(has) for told, _, has in seen)

    run(scenario, Slow())


def test_an_agent_that_dies_in_a_move_leaves_nobody_who_was_told_of_cpus_that_are_gone() -> None:
    """Also where there is no delay: what is told beside may come too late."""

    async def scenario(node: Told) -> None:
        assert isinstance(node, Slow)
        await node.admit(manifest("a", "2"))
        await node.settle()
        seen: list[tuple[str, str]] = []

        async def beside() -> None:
            seen.append((str(node.news()[-1].current.cpus), node.cpus("a")["c0"]))

        node.slow.beside = beside
        await (await node.move(0.0, a="4-5")).ended()
        assert seen == [("2-3", "2-3"), ("4-5", "2-5")]

    run(scenario, Slow())


def test_the_right_word_ends_the_delay_early() -> None:
    async def scenario(node: Told) -> None:
        loop = asyncio.get_running_loop()
        await node.admit(manifest("a", "4"))
        await node.settle()
        await node.teller.acknowledge(A, 1)
        began = loop.time()
        moving = await node.move(8.0, a="2-3")
        for generation in (1, 3):
            await node.teller.acknowledge(A, generation)
            await node.settle()
            assert node.cpus("a")["c0"] == "2-5"
        await node.teller.acknowledge(A, 2)
        assert (await moving.ended()).done
        assert loop.time() - began < 8.0
        assert node.cpus("a")["c0"] == "2-3"

    run(scenario)


def test_who_could_not_be_told_keeps_its_cpus_until_the_deadline() -> None:
    async def scenario(node: Told) -> None:
        loop = asyncio.get_running_loop()
        await node.admit(manifest("a", "4"))
        await node.settle()
        await node.teller.acknowledge(A, 1)
        node.teller.faults.fail_all = True
        began = loop.time()
        moving = await node.move(8.0, a="2-3")
        await moving.ended()
        assert loop.time() - began >= 8.0
        assert any("was not told its CPUs" in problem for problem in node.problems)
        node.teller.faults.fail_all = False
        await node.admit(manifest("b", "2"))
        await node.settle()
        # The next change tells what holds, whoever it is about.
        assert node.texts()[-1] == (2, "2-3", "2-3", "2-5", "resize", None)

    run(scenario)


def test_an_agent_that_comes_later_tells_what_its_record_says() -> None:
    async def scenario(node: Told) -> None:
        await node.admit(manifest("a", "4"))
        await node.settle()
        await node.move(8.0, a="2-3")
        await node.settle()
        before = node.texts()
        assert before[-1][:3] == (2, "2-5", "2-3")
        await node.kill()
        await node.start()
        await node.settle()
        assert node.texts() == before
        await node.teller.acknowledge(A, 2)
        await node.settle()
        assert node.texts()[2:] == [(3, "2-3", "2-3", "2-5", "resize", None)]
        await node.kill()
        await node.start()
        await node.settle()
        assert len(node.texts()) == 3

    run(scenario)


def test_what_was_told_and_is_removed_is_told_again() -> None:
    async def scenario(node: Told) -> None:
        for name in ("a", "b"):
            await node.admit(manifest(name, "2"))
        await node.admit(manifest("web", ""))
        await node.settle()
        told = dict(node.teller.assignments)
        files = dict(node.files.documents)
        del node.teller.assignments[A]
        del node.files.documents["uid-web"]
        await reconcile(node.books)
        assert (node.teller.assignments, node.files.documents) == (told, files)
        assert node.problems == [
            f"default/a: container {A}: what it was told was removed, and is told again"
        ]
        await reconcile(node.books)
        assert len(node.problems) == 1

    run(scenario)


def test_what_is_removed_in_a_delay_is_told_again_and_agreed_to() -> None:
    async def scenario(node: Told) -> None:
        await node.admit(manifest("a", "4"))
        await node.settle()
        began, moving = node.clock(), await node.move(8.0, a="2-3")
        await node.settle()
        announced = node.teller.assignments.pop(A)
        await asyncio.sleep(2)
        assert node.teller.assignments[A] == announced
        await node.teller.acknowledge(A, announced.generation)
        assert (await moving.ended()).done
        assert node.clock() - began < 8.0

    run(scenario)


def test_generations_never_come_again() -> None:
    async def scenario(node: Told) -> None:
        await node.admit(manifest("a", "4"))
        last = 0
        for _ in range(3):
            await (await node.move(0.0, a="2-3")).ended()
            await (await node.move(0.0, a="2-5")).ended()
            await node.settle()
            generations = [one.generation for one in node.news()]
            assert generations == sorted(set(generations))
            assert generations[-1] > last
            last = generations[-1]
            await node.kill()
            node.teller.assignments.clear()
            await node.start()
            await node.settle()
        await node.admit(manifest("b", "1"))
        await node.settle()
        assert node.texts(ContainerKey("uid-b", "c0"))[0][0] == 1

    run(scenario)


def test_a_deadline_is_told_anew_when_the_clock_is_set() -> None:
    async def scenario(node: Told) -> None:
        await node.admit(manifest("a", "4"))
        await node.settle()
        loop = asyncio.get_running_loop()
        began, moving = loop.time(), await node.move(8.0, a="2-3")
        for hours in (-2, 1):
            await asyncio.sleep(2)
            node.set_by = hours * 3600.0
            await asyncio.sleep(2)
        assert [one[0:3] + one[5:] for one in node.texts()[1:]] == [
            (2, "2-5", "2-3", began + 8.0),
            (3, "2-5", "2-3", began + 8.0 - 7200),
            (4, "2-5", "2-3", began + 8.0 + 3600),
        ]
        await moving.ended()
        assert loop.time() == began + 8.0

    run(scenario)


def test_cpus_that_go_offline_and_come_back_are_told() -> None:
    async def scenario(node: Told) -> None:
        await node.admit(manifest("a", "2"))
        await node.settle()
        for offline in ("3", "2-3", "3", ""):
            node.cgroups.online = node.cgroups.machine - CPUSet.parse(offline)
            await node.books.set_offline(CPUSet.parse(offline))
            await node.settle()
        assert [one[:5] for one in node.texts()[1:]] == [
            (2, "2", "2", "2-3", "offline"),
            (3, "", "", "2", "offline"),
            (4, "2", "2", "", "offline"),
            (5, "2-3", "2-3", "2", "online"),
        ]

    run(scenario)


def test_a_manifest_that_is_in_the_way_gets_no_mount() -> None:
    async def scenario(node: Told) -> None:
        pod = manifest("a", "2", volumes=[{"name": "v", "emptyDir": {}}])
        container = pod["spec"]["containers"][0]
        container["volumeMounts"] = [{"name": "v", "mountPath": "/run/pinfold/sub"}]
        await node.admit(pod)
        await node.settle()
        (spec,) = node.runtime.specs.values()
        assert [mount.mount_path for mount in spec.process.volume_mounts] == ["/run/pinfold/sub"]
        assert "PINFOLD_ASSIGNMENT_DIR" not in spec.env
        assert any("mount at or below /run/pinfold" in problem for problem in node.problems)

    run(scenario)


def test_who_was_told_what_never_came_to_be_is_told_what_holds() -> None:
    async def scenario(node: Told) -> None:
        await node.admit(manifest("a", "4"))
        await node.settle()
        (first,) = node.news()
        await node.kill()
        # The agent died after it had told, and before that was on record.
        coming = Assigned(CPUSet.parse("2-3"))
        await node.teller.tell(
            A, replace(first, generation=2, coming=coming, deadline=node.clock() + 5)
        )
        await node.start()
        await node.settle()
        assert node.texts()[-1] == (3, "2-5", "2-5", "-", "undo", None)

    run(scenario)


def test_an_announcement_that_is_not_written_is_made_again() -> None:
    async def scenario(node: Told) -> None:
        await node.admit(manifest("a", "4"))
        await node.settle()
        moving = await node.move(5.0, a="2-3")
        # The plan is on record; its announcement is the next transaction.
        node.store.faults.fail_at = {node.store.faults.calls + 1}
        assert (await moving.ended()).done
        await node.settle()
        told = [one[:3] for one in node.texts()[1:]]
        assert told == [(2, "2-5", "2-3"), (3, "2-3", "2-3")]
        assert any("injected" in problem for problem in node.problems)

    run(scenario)


def test_a_second_shrink_is_another_generation() -> None:
    async def scenario(node: Told) -> None:
        await node.admit(manifest("a", "4"))
        await node.settle()
        first = await node.move(5.0, a="2-4")
        await node.settle()
        async with node.books.change() as draft:
            plan = plan_moves(
                draft.state.ledger, [Wish(Owner(*A_OWNER), CPUSet.parse("2-3"), delay=5.0)]
            )
            second = await node.manager.mover.begin(draft, plan, why="resize", replaces=True)
        assert not (await first.ended()).done
        await node.settle()
        await node.teller.acknowledge(A, 2)
        await node.settle()
        assert [one[:4] for one in node.texts()[1:]] == [
            (2, "2-5", "2-4", "2-5"),
            (3, "2-5", "2-3", "2-5"),
        ]
        await node.teller.acknowledge(A, 3)
        assert (await second.ended()).done

    run(scenario)


def test_a_word_for_what_was_announced_before_ends_no_delay() -> None:
    async def scenario(node: Told) -> None:
        await node.admit(manifest("a", "6"))
        await node.settle()
        await node.move(5.0, a="2-5")
        await node.settle()
        node.teller.faults.fail_all = True
        async with node.books.change() as draft:
            wish = Wish(Owner(*A_OWNER), CPUSet.parse("2-3"), delay=5.0)
            plan = plan_moves(draft.state.ledger, [wish])
            second = await node.manager.mover.begin(draft, plan, why="resize", replaces=True)
        began = node.clock()
        await node.settle()
        await node.teller.acknowledge(A, 2)
        assert (await second.ended()).done
        assert node.clock() - began >= 5.0
        assert node.texts()[-1][:3] == (2, "2-7", "2-5")

    run(scenario)
