"""resctrl through files, against a file system that answers as the kernel does."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from pinfold.adapters.resctrl.groups import KERNEL, Mounts, ResctrlGroups
from pinfold.adapters.resctrl.info import cache_domains
from pinfold.core.cache.offers import Bandwidth, Cache, Offer
from pinfold.core.cache.options import CacheClass
from pinfold.core.cache.plan import Why, Wish, plan_groups
from pinfold.core.cache.steps import Assign, Make, Write
from pinfold.core.values.cpuset import CPUSet
from pinfold.linux.mounts import Mount
from pinfold.planning.fake_cache_groups import FakeCacheGroups
from pinfold.ports.cache_groups import CacheError, CacheGroups, NoCacheGroupsError, NoGroupLeftError
from tests.scenes.cache_groups_contract import FAST, CacheGroupsContract, follow
from tests.scenes.fuse_folder import why_no_fuse
from tests.scenes.resctrl_kernel import Resource
from tests.scenes.resctrl_world import TWO_CACHES, ResctrlWorld, resctrl_world

needs_fuse = pytest.mark.skipif(bool(why_no_fuse()), reason=why_no_fuse())
FOUR_IDS = (Resource("L3", 0xFFF, closids=4), Resource("MB", 100))


class TestFake(CacheGroupsContract):
    @pytest.fixture
    def groups(self) -> CacheGroups:
        cache = Cache(3, ("L3",), 0xFFF, 1, 0, sparse=False, domains=TWO_CACHES)
        return FakeCacheGroups(
            Offer(4, (cache,), Bandwidth("%", 10, 10, TWO_CACHES)), CPUSet(range(8))
        )


@needs_fuse
class TestKernel(CacheGroupsContract):
    @pytest.fixture
    def groups(self, tmp_path: Path) -> Iterator[CacheGroups]:
        with resctrl_world(tmp_path, *FOUR_IDS) as world:
            yield world.groups()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ResctrlWorld]:
    with resctrl_world(tmp_path, *FOUR_IDS) as found:
        yield found


OWNERS = (Wish("a", "fast", CPUSet([1, 2])), Wish("b", "thin", CPUSet([3, 4])))
OTHERS = (Wish("b", "thin", CPUSet([2, 3])), Wish("c", "fast", CPUSet([4, 5])))


@needs_fuse
class TestCrashes:
    def test_whenever_an_agent_dies_the_next_one_puts_right(self, tmp_path: Path) -> None:
        """Between any two calls that change something; and nobody's ways overlap meanwhile."""
        at, died = 0, True
        while died:
            place = tmp_path / str(at)
            place.mkdir()
            with resctrl_world(place, *FOUR_IDS) as world:
                (world.folder / "theirs").mkdir()
                (world.folder / "theirs/schemata").write_text("L3:0=800;1=800\n")
                (world.folder / "theirs/cpus_list").write_text("7\n")
                died = self._dies(world, at)
                assert not list(self._overlaps(world))
                groups = world.groups()
                if at % 2:
                    follow(groups, *OTHERS)
                follow(groups)
                left = world.kernel.groups
                assert left.keys() == {"", "theirs"}
                assert left[""].values["L3"] == {0: 0xFFF, 1: 0xFFF}
                assert left[""].cpus == CPUSet(range(7))
                assert left["theirs"].values["L3"] == {0: 0x800, 1: 0x800}
                assert not world.record.exists()
            at += 1
        assert at > 20

    def _dies(self, world: ResctrlWorld, at: int) -> bool:
        left, problems = at, list[str]()

        def counted(_path: str, _text: str) -> None:
            nonlocal left
            problems.extend(self._overlaps(world))
            if left == 0:
                raise OSError(errno.EIO, "the agent has died")
            left -= 1

        groups = world.groups()
        world.kernel.calls = counted
        try:
            for wishes in ((), OWNERS, OTHERS, OWNERS):
                follow(groups, *wishes)
        except CacheError:
            return True
        finally:
            world.kernel.calls = lambda _path, _text: None
            assert not problems
        return False

    def _overlaps(self, world: ResctrlWorld) -> Iterator[str]:
        groups = world.kernel.groups
        for domain, cpus in TWO_CACHES.items():
            for name, group in groups.items():
                if name.startswith("pinfold.") and group.cpus & cpus:
                    own = group.values["L3"][domain]
                    for other, theirs in groups.items():
                        here = theirs.cpus & cpus or other in ("", "theirs")
                        if other != name and here and own & theirs.values["L3"][domain]:
                            yield f"{name} and {other or 'the default group'} at {domain}"

    def test_groups_of_an_agent_before_are_kept_while_they_are_wanted(
        self, world: ResctrlWorld
    ) -> None:
        before = follow(world.groups(), *OWNERS)
        asked: list[str] = []
        world.kernel.calls = lambda path, text: asked.append(f"{path} {text}")
        assert follow(world.groups(), *OWNERS) == before
        assert asked == []


@needs_fuse
class TestOthers:
    def test_a_group_with_our_prefix_that_is_not_on_record_is_left_alone(
        self, world: ResctrlWorld
    ) -> None:
        (world.folder / "pinfold.fast.0").mkdir()
        groups = world.groups()
        follow(groups)
        assert [group.name for group in groups.read()[1].foreign] == ["pinfold.fast.0"]
        with pytest.raises(CacheError, match="File exists"):
            groups.carry_out(Make("pinfold.fast.0", {"L3": {0: 1}}))
        assert not world.record.exists()

    def test_what_somebody_else_writes_is_what_there_is_without_us(
        self, world: ResctrlWorld
    ) -> None:
        groups = world.groups()
        follow(groups, *OWNERS)
        (world.folder / "schemata").write_text("L3:0=7ff\n")
        follow(groups, *OWNERS)
        assert groups.read()[1].default.schemata["L3"][0] == 0x7E0
        follow(groups)
        assert world.kernel.groups[""].values["L3"] == {0: 0x7FF, 1: 0xFFF}

    def test_the_kernels_word_is_in_the_error(self, world: ResctrlWorld) -> None:
        groups = world.groups()
        follow(groups, OWNERS[0])
        (name,) = groups.read()[1].ours
        with pytest.raises(CacheError) as found:
            groups.carry_out(Write(name, {"L3": {0: 5}}))
        assert found.value.problem == (
            f"{world.folder}/{name}/schemata: writing 'L3:0=5': Invalid argument "
            "(The mask 5 has non-consecutive 1-bits)"
        )
        world.kernel.set_online(CPUSet(range(7)))
        with pytest.raises(CacheError, match="Can only assign online CPUs"):
            groups.carry_out(Assign(name, CPUSet([7])))

    def test_an_exclusive_group_of_others_is_respected(self, world: ResctrlWorld) -> None:
        (world.folder / "schemata").write_text("L3:0=ff;1=ff\n")
        (world.folder / "theirs").mkdir()
        (world.folder / "theirs/schemata").write_text("L3:0=f00;1=f00\n")
        (world.folder / "theirs/mode").write_text("exclusive\n")
        found = follow(world.groups(), *OWNERS)
        assert found["a"].schemata["L3"][0] == 0x00F
        follow(world.groups())
        assert world.kernel.groups[""].values["L3"] == {0: 0xFF, 1: 0xFF}

    def test_a_cpu_that_comes_back_joins_its_owner_again(self, world: ResctrlWorld) -> None:
        groups = world.groups()
        follow(groups, OWNERS[0])
        world.kernel.set_online(CPUSet([0, 1, 3, 4, 5, 6, 7]))
        assert follow(groups, Wish("a", "fast", CPUSet([1])))["a"].cpus == CPUSet([1])
        world.kernel.set_online(CPUSet(range(8)))
        assert follow(groups, OWNERS[0])["a"].cpus == CPUSet([1, 2])


@needs_fuse
def test_code_and_data_apart_and_bandwidth_in_mbps(tmp_path: Path) -> None:
    resources = (
        Resource("L3CODE", 0xFF, closids=4, min_bits=2, shareable=0xC0),
        Resource("L3DATA", 0xFF, closids=4, min_bits=2, shareable=0xC0),
        Resource("MB", 1 << 32, min_bandwidth=10),
    )
    with resctrl_world(tmp_path, *resources, options="rw,cdp,mba_MBps") as world:
        offer, now = world.groups().read()
        assert offer.caches[0].lines == ("L3CODE", "L3DATA")
        assert (offer.caches[0].min_bits, offer.caches[0].shareable) == (2, 0xC0)
        assert offer.bandwidth is not None
        assert offer.bandwidth.unit == "MBps"
        classes = {"fast": CacheClass(l3_code="1", l3_data="2", memory_bandwidth="2000MBps")}
        plan = plan_groups(offer, classes, [Wish("a", "fast", CPUSet([1]))], now)
        (group,) = plan.groups.values()
        world.groups().carry_out(Make(group.name, group.schemata))
        values = world.kernel.groups[group.name].values
        assert (values["L3CODE"][0], values["L3DATA"][0], values["MB"][0]) == (0x3, 0xC, 2000)


@needs_fuse
class TestMounting:
    def test_it_is_mounted_only_where_that_is_asked_for(self, world: ResctrlWorld) -> None:
        world.unmount()
        with pytest.raises(NoCacheGroupsError, match="resctrl is not mounted"):
            world.groups().read()
        groups = world.groups("cdp,mba_MBps")
        groups.read()
        assert world.mounted_with == ["cdp,mba_MBps"]
        follow(groups, *OWNERS)
        groups.close()
        assert world.is_mounted(), "its containers run on"
        groups = world.groups("cdp,mba_MBps")
        follow(groups)
        groups.close()
        assert not world.is_mounted()
        assert not world.record.exists()

    def test_what_others_use_stays_mounted(self, world: ResctrlWorld) -> None:
        world.unmount()
        groups = world.groups("plain")
        groups.read()
        (world.folder / "theirs").mkdir()
        groups.close()
        assert world.is_mounted()
        world.groups().close()
        (world.folder / "theirs").rmdir()
        world.groups().close()
        assert not world.is_mounted()
        assert world.mounted_with == [""]


def test_one_that_only_observes(tmp_path: Path) -> None:
    (tmp_path / "info").mkdir()
    there = Mount("/", str(tmp_path), "resctrl", frozenset(), writable=True)
    mounts = Mounts(lambda: there, lambda _: None, lambda: None)
    groups = ResctrlGroups(tmp_path / "record", "never", lambda: CPUSet([0]), mounts)
    with pytest.raises(NoCacheGroupsError, match="only observes"):
        groups.read()
    (tmp_path / "schemata").write_text("SMBA:0=2048\n")
    (tmp_path / "cpus_list").write_text("0\n")
    with pytest.raises(NoCacheGroupsError, match="divides nothing"):
        groups.read()


def test_which_cpus_are_at_which_cache(tmp_path: Path) -> None:
    for cpu in range(4):
        for index, (level, number) in enumerate([(1, cpu), (2, cpu // 2), (3, 7)]):
            folder = tmp_path / f"cpu{cpu}/cache/index{index}"
            folder.mkdir(parents=True)
            (folder / "level").write_text(f"{level}\n")
            if cpu != 3:
                (folder / "id").write_text(f"{number}\n")
    assert cache_domains(CPUSet([0, 2, 3]), tmp_path) == {
        2: {0: CPUSet([0]), 1: CPUSet([2])},
        3: {7: CPUSet([0, 2])},
    }
    (tmp_path / "cpu0/cache/index2/id").write_text("seven\n")
    with pytest.raises(CacheError, match=r"index2/id: 'seven' is no number"):
        cache_domains(CPUSet([0]), tmp_path)


@needs_fuse
def test_a_region_that_is_being_locked_names_no_ways(world: ResctrlWorld) -> None:
    (world.folder / "theirs").mkdir()
    world.kernel.groups["theirs"].mode = "pseudo-locksetup"
    found = follow(world.groups(), *OWNERS)
    assert found["a"].schemata["L3"][0] == 0x00F


def test_a_machine_without_it(tmp_path: Path) -> None:
    """As this one, unless it has."""
    if KERNEL.found() is not None or Path("/sys/fs/resctrl").exists():
        pytest.skip("this machine has resctrl")
    groups = ResctrlGroups(tmp_path / "resctrl.json", "plain", lambda: CPUSet([0]))
    with pytest.raises(NoCacheGroupsError, match="this machine has no resctrl"):
        groups.read()
    groups.close()
    assert not (tmp_path / "resctrl.json").exists()


@needs_fuse
def test_the_kernel_may_be_out_of_ids_before_it_says_so(world: ResctrlWorld) -> None:
    """Ids for observation run out as well."""
    groups = world.groups()
    offer, now = groups.read()
    world.kernel.resources["L3"].closids = 1
    plan = plan_groups(offer, FAST, OWNERS, now)
    with pytest.raises(NoGroupLeftError, match="Out of CLOSIDs"):
        groups.carry_out(Make(next(iter(plan.groups)), {"L3": {0: 1}}))
    assert plan_groups(groups.read()[0], FAST, OWNERS, now).refused["a"].why is Why.OUT_OF_IDS
