"""Pools of huge pages on a tree of files, with a kernel that may grant less than it is asked."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from pinfold.adapters.hugetlb import HugePagePoolError, HugePagePools
from pinfold.cli import main
from pinfold.core.memory.hugepage_pools import (
    Pool,
    even_shares,
    parse_amount,
    parse_page_size,
    released_shares,
)
from pinfold.core.pod.hugepages import HugePagesError, folder_name
from tests.roots import DATA

SMALL, LARGE = 2 << 20, 1 << 30
MEMORY_KB = 64 << 20


class Kernel:
    """Huge pages of one size in a folder, by the kernel's rules.

    ``room`` is what each node has memory for; ``used`` the pages that somebody has.
    """

    def __init__(self, root: Path, room: Mapping[int, int], size: int = SMALL) -> None:
        self.root = root
        self.room = dict(room)
        self.used = dict.fromkeys(room, 0)
        self.kept = dict.fromkeys(room, 0)
        self.size = size
        self.writes = 0
        for node in room:
            folder = root / f"sys/devices/system/node/node{node}"
            (folder / "hugepages" / folder_name(size)).mkdir(parents=True)
            (folder / "meminfo").write_text(f"Node {node} MemTotal:   {MEMORY_KB} kB\n")
            self.show(node)
        machine = root / "sys/kernel/mm/hugepages" / folder_name(size)
        machine.mkdir(parents=True)
        self.reserve(0)
        (root / "proc").mkdir()
        (root / "proc/meminfo").write_text(f"MemTotal:   {MEMORY_KB * len(self.room)} kB\n")

    def reserve(self, pages: int) -> None:
        """Promise free pages to a mapping."""
        folder = self.root / "sys/kernel/mm/hugepages" / folder_name(self.size)
        (folder / "resv_hugepages").write_text(f"{pages}\n")

    def fill(self, node: int, kept: int, used: int) -> None:
        """Set what a node has."""
        self.kept[node], self.used[node] = kept, used
        self.show(node)

    def show(self, node: int) -> None:
        """Write what sysfs tells."""
        total = max(self.kept[node], self.used[node])
        for what, number in (
            ("nr", total),
            ("free", total - self.used[node]),
            ("surplus", total - self.kept[node]),
        ):
            (self.folder(node) / f"{what}_hugepages").write_text(f"{number}\n")

    def folder(self, node: int) -> Path:
        """Of the node's pool."""
        place = self.root / f"sys/devices/system/node/node{node}/hugepages"
        return place / folder_name(self.size)

    def __call__(self, file: Path, number: int) -> None:
        """Take a number, as far as there is memory for it."""
        self.writes += 1
        node = int(file.parts[-4].removeprefix("node"))
        self.kept[node] = min(number, max(self.room[node], self.used[node]))
        self.show(node)


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    return Kernel(tmp_path, {0: 100, 1: 100})


def kept(kernel: Kernel) -> list[int]:
    return list(kernel.kept.values())


def test_pages_come_evenly_and_from_others_where_one_lacks_memory(kernel: Kernel) -> None:
    pools = HugePagePools(kernel.root, kernel)
    pools.allocate(pools.of_size(SMALL), 9)
    assert kept(kernel) == [5, 4]
    kernel.room[0] = 10
    pools.allocate(pools.of_size(SMALL), 20)
    assert kept(kernel) == [10, 19]


def test_too_few_are_given_back(kernel: Kernel) -> None:
    kernel.fill(1, 3, 2)
    kernel.room = {0: 10, 1: 20}
    pools = HugePagePools(kernel.root, kernel)
    with pytest.raises(HugePagePoolError) as caught:
        pools.allocate(pools.of_size(SMALL), 40)
    assert kept(kernel) == [0, 3]
    assert caught.value.problem == (
        "the kernel granted 27 of 40 pages of 2Mi (10 on node 0, 17 on node 1); "
        "they were given back"
    )
    assert "--compact" in caught.value.remedy
    assert "hugepagesz=2M hugepages=40" in caught.value.remedy
    after = pools.allocate(pools.of_size(SMALL), 40, best_effort=True)
    assert [pool.kept for pool in after.values()] == kept(kernel) == [10, 20]
    with pytest.raises(HugePagePoolError, match="granted 0 of 1 pages"):
        pools.allocate(pools.of_size(SMALL), 1, best_effort=True)


def test_an_exact_spread_is_all_or_nothing(kernel: Kernel) -> None:
    kernel.room[0] = 4
    pools = HugePagePools(kernel.root, kernel)
    with pytest.raises(HugePagePoolError, match=r"granted 9 of 10 pages"):
        pools.allocate(pools.of_size(SMALL), 10, exact=True)
    assert kept(kernel) == [0, 0]


def test_surplus_pages_are_not_counted_as_kept(kernel: Kernel) -> None:
    kernel.fill(0, 2, 5)
    pools = HugePagePools(kernel.root, kernel)
    (pool,) = pools.of_size(SMALL, 0).values()
    assert pool == Pool(0, SMALL, 5, 0, 3)
    pools.allocate({0: pool}, 4)
    assert pools.of_size(SMALL, 0)[0] == Pool(0, SMALL, 6, 1, 0)


def test_release_takes_what_nobody_uses(kernel: Kernel) -> None:
    kernel.fill(0, 10, 4)
    kernel.fill(1, 5, 0)
    pools = HugePagePools(kernel.root, kernel)
    with pytest.raises(HugePagePoolError) as caught:
        pools.release(pools.of_size(SMALL), 12)
    assert str(caught.value) == (
        "12 pages of 2Mi cannot be released: of 15 pages 4 are in use and 11 can be given back "
        "(end what uses them, or release fewer)"
    )
    pools.release(pools.of_size(SMALL), 3)
    assert kept(kernel) == [8, 4]
    kernel.reserve(6)
    with pytest.raises(HugePagePoolError, match="4 are in use and 2 can be given back"):
        pools.release(pools.of_size(SMALL, 0), 3)
    pools.release(pools.of_size(SMALL, 0), 2)
    assert kept(kernel) == [6, 4]


def test_pages_that_come_into_use_are_left(kernel: Kernel) -> None:
    kernel.fill(0, 10, 0)
    before = HugePagePools(kernel.root).of_size(SMALL)

    def taken_meanwhile(file: Path, number: int) -> None:
        kernel.used[0] = 8
        kernel(file, number)

    with pytest.raises(HugePagePoolError, match=r"on node 0 came into use .*try again"):
        HugePagePools(kernel.root, taken_meanwhile).release(before, 10)
    assert kept(kernel) == [10, 0]


def test_an_undoing_that_fails_is_told(kernel: Kernel) -> None:
    kernel.room[0] = 4

    def only_up(file: Path, number: int) -> None:
        if number < kernel.kept[0]:
            raise HugePagePoolError(f"{file}: writing {number}: gone")
        kernel(file, number)

    pools = HugePagePools(kernel.root, only_up)
    with pytest.raises(HugePagePoolError) as caught:
        pools.allocate(pools.of_size(SMALL, 0), 5)
    assert "putting the former number back failed, too" in caught.value.problem
    assert caught.value.problem.endswith("writing 0: gone")


def test_an_interrupt_puts_the_former_number_back(kernel: Kernel) -> None:
    def interrupted(file: Path, number: int) -> None:
        kernel(file, number)
        if kernel.writes == 2:
            raise KeyboardInterrupt

    pools = HugePagePools(kernel.root, interrupted)
    with pytest.raises(KeyboardInterrupt):
        pools.allocate(pools.of_size(SMALL), 10)
    assert kept(kernel) == [0, 0]


def test_what_no_memory_can_hold_is_never_asked_of_the_kernel(kernel: Kernel) -> None:
    pools = HugePagePools(kernel.root, kernel)
    most = (MEMORY_KB << 10) // SMALL
    with pytest.raises(HugePagePoolError, match="but this machine has 131072 MiB, 0 MiB of them"):
        pools.allocate(pools.of_size(SMALL), 2 * most + 1)
    with pytest.raises(HugePagePoolError, match="but node 1 has 65536 MiB"):
        pools.allocate(pools.of_size(SMALL, 1), most + 1)
    assert kernel.writes == 0


PAGES = st.integers(0, 60)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["allocate", "release", "use"]),
        st.none() | st.integers(0, 2),
        PAGES,
        st.booleans(),
        st.booleans(),
    ),
    max_size=8,
)


@given(st.tuples(PAGES, PAGES, PAGES), STEPS)
def test_all_or_nothing_and_nobody_loses_a_page(
    room: tuple[int, int, int],
    steps: list[tuple[str, int | None, int, bool, bool]],
) -> None:
    with TemporaryDirectory() as folder:
        kernel = Kernel(Path(folder), dict(enumerate(room)))
        pools = HugePagePools(kernel.root, kernel)
        for what, node, pages, exact, best_effort in steps:
            before = dict(kernel.kept)
            if what == "use":
                place = node or 0
                kernel.fill(place, before[place], min(pages, before[place]))
                continue
            found = pools.of_size(SMALL, node)
            try:
                if what == "allocate":
                    pools.allocate(found, pages, exact=exact, best_effort=best_effort)
                    gained = sum(kernel.kept.values()) - sum(before.values())
                    assert gained == pages or (best_effort and 0 < gained < pages)
                else:
                    pools.release(found, pages)
                    assert sum(kernel.kept.values()) == sum(before.values()) - pages
            except HugePagePoolError:
                assert kernel.kept == before
            changed = {place for place in before if kernel.kept[place] != before[place]}
            assert node is None or changed <= {node}
            assert all(kernel.kept[place] >= kernel.used[place] for place in kernel.used)


@given(st.lists(st.tuples(PAGES, PAGES), min_size=1, max_size=5), st.integers(0, 300))
def test_pages_are_released_from_the_fullest_nodes(
    nodes: list[tuple[int, int]], count: int
) -> None:
    pools = [Pool(node, SMALL, free + used, free) for node, (free, used) in enumerate(nodes)]
    taken = released_shares(pools, count)
    left = [pool.free - taken.get(pool.node, 0) for pool in pools]
    assert sum(taken.values()) == min(count, sum(pool.free for pool in pools))
    assert all(pages >= 0 for pages in left)
    touched = [pages for pool, pages in zip(pools, left, strict=True) if pool.node in taken]
    assert not touched or max(touched) - min(touched) <= 1
    assert not touched or max(left) <= max(touched) + 1


@given(st.integers(0, 10**9), st.integers(1, 9))
def test_shares_are_even(count: int, nodes: int) -> None:
    shares = even_shares(count, list(range(nodes)))
    assert sum(shares.values()) == count
    assert max(shares.values()) - min(shares.values()) <= 1


# ------------------------------------------------------------------------------------------ texts


@pytest.mark.parametrize(
    "text", ["2Mi", "2MB", "2M", "2097152", "2048kB", "2048Ki", "hugepages-2Mi"]
)
def test_spellings_of_a_size(text: str) -> None:
    assert parse_page_size(text) == SMALL


@pytest.mark.parametrize("text", ["", "0", "-2Mi", "2.5Mi", "Mi", "2Mi ", "2Xi", "2i", "9" * 13])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(HugePagesError, match="is no page size; write 2Mi or 1Gi"):
        parse_page_size(text)


@pytest.mark.parametrize("text", ["3Mi", "3M", "6144kB", "1536Ki"])
def test_what_no_kernel_has(text: str) -> None:
    with pytest.raises(HugePagesError, match=f"{text} is no page size of any kernel"):
        parse_page_size(text)


@pytest.mark.parametrize(
    ("text", "pages"),
    [
        *(("0", 0), ("512", 512), ("1Gi", 512), ("2048Ki", 1), ("1.5Gi", 768)),
        # Units without an i are those of the sizes: what the kernel writes with 2M is 2Mi.
        *(("4M", 2), ("1G", 512), ("2048kB", 1), ("2048KB", 1), ("1GB", 512), ("1.5G", 768)),
    ],
)
def test_amounts(text: str, pages: int) -> None:
    assert parse_amount(text, SMALL) == pages


@pytest.mark.parametrize(
    "text", ["3Mi", "-1", "-2Mi", "", "x", "1.5", "2e6", "1500m", "1M", "1Mib", "9" * 19]
)
def test_what_is_no_amount(text: str) -> None:
    with pytest.raises(HugePagesError):
        parse_amount(text, SMALL)


@pytest.mark.parametrize(
    ("text", "hint"),
    [("3Mi", "2Mi or 4Mi"), ("5M", "4Mi or 6Mi"), ("1M", "2Mi")],
)
def test_what_is_no_whole_number_names_those_beside_it(text: str, hint: str) -> None:
    with pytest.raises(HugePagesError) as caught:
        parse_amount(text, SMALL)
    assert str(caught.value) == f"{text} is no whole number of 2Mi pages; write {hint}"


# ------------------------------------------------------------------------------------ the command


@pytest.fixture
def call(kernel: Kernel) -> Callable[..., Result]:
    """Run ``pinfold hugepages`` on the folder, where files take every number."""

    def run(*words: str) -> Result:
        return CliRunner().invoke(main, ["hugepages", *words, "--root", str(kernel.root)])

    return run


def test_show(call: Callable[..., Result], kernel: Kernel) -> None:
    kernel.fill(1, 7, 9)
    assert call("show").stdout.splitlines() == [
        "node  size  total  free  surplus",
        "   0   2Mi      0     0        0",
        "   1   2Mi      9     0        2",
    ]
    document = json.loads(call("show", "-o", "json").stdout)
    assert (document["version"], document["kind"]) == (1, "HugepagePools")
    assert document["pools"][1] == {
        "node": 1,
        "size": SMALL,
        "resource": "hugepages-2Mi",
        "total": 9,
        "free": 0,
        "surplus": 2,
    }


def test_changes(call: Callable[..., Result], kernel: Kernel) -> None:
    done = call("allocate", "2Mi", "8Mi", "--node", "1")
    assert done.stdout == "node 1: 0 -> 4 pages of 2Mi, 0 free\n"
    again = call("allocate", "2Mi", "--total", "4", "-o", "json")
    assert again.exit_code == 0
    assert json.loads(again.stdout) == {
        "version": 1,
        "kind": "HugepageChange",
        "size": SMALL,
        "resource": "hugepages-2Mi",
        "asked": 0,
        "changed": 0,
        "nodes": [{"node": 0, "before": 0, "after": 0}, {"node": 1, "before": 4, "after": 4}],
    }
    kernel.fill(1, 4, 1)
    assert call("release", "2Mi", "--total", "2").stdout.startswith("node 1: 4 -> 2 pages of 2Mi")
    kernel.fill(1, 2, 1)
    assert call("release", "2Mi").stdout.startswith("node 1: 2 -> 1 page of 2Mi")
    kernel.fill(1, 1, 1)
    assert call("release", "2Mi").stdout == "nothing to do: 1 page of 2Mi\n"
    refused = call("release", "2Mi", "1")
    assert refused.exit_code == 1
    assert "of 1 pages 1 are in use and 0 can be given back" in refused.stderr


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        (["allocate", "2Mi"], 2, "say how many pages, or --total"),
        (["allocate", "2Mi", "1", "--total", "2"], 2, "either how many pages, or --total"),
        (["allocate", "2Mi", "1", "--spread", "--node", "0"], 2, "exclude each other"),
        (["allocate", "2Mx", "1"], 2, "is no page size"),
        (["allocate", "2Mi", "3Mi"], 2, "3Mi is no whole number of 2Mi pages"),
        (["allocate", "2M", "3M"], 2, "3M is no whole number of 2Mi pages; write 2Mi or 4Mi"),
        (["allocate", "3Mi", "1"], 2, "3Mi is no page size of any kernel: all are powers of two"),
        (["allocate", "4Mi", "1"], 1, "no huge pages of 4Mi (it has 2Mi)"),
        (["allocate", "1Gi", "1"], 1, "no huge pages of 1Gi (it has 2Mi)"),
        (["allocate", "2Mi", "1", "--node", "7"], 1, "no NUMA node 7 with huge pages (the nodes "),
        (["allocate", "2Mi", "1", "--compact"], 1, "compact_memory: writing 1: No such file"),
    ],
)
def test_refusals(call: Callable[..., Result], words: list[str], status: int, text: str) -> None:
    done = call(*words)
    assert done.exit_code == status
    assert text in done.stderr
    assert "Traceback" not in done.output


def test_a_machine_without_nodes(tmp_path: Path) -> None:
    folder = tmp_path / "sys/kernel/mm/hugepages" / folder_name(LARGE)
    folder.mkdir(parents=True)
    for what in ("nr", "free", "surplus", "resv"):
        (folder / f"{what}_hugepages").write_text("0\n")
    words = ["--root", str(tmp_path)]
    done = CliRunner().invoke(main, ["hugepages", "allocate", "1Gi", "2Gi", *words])
    assert done.stdout == "this machine: 0 -> 2 pages of 1Gi, 0 free\n"
    assert (folder / "nr_hugepages").read_text() == "2\n"
    shown = CliRunner().invoke(main, ["hugepages", "show", *words])
    assert shown.stdout.splitlines()[1].split() == ["-", "1Gi", "2", "0", "0"]


@pytest.mark.parametrize(
    ("content", "text"), [("x\n", "'x' is no number"), ("", "'' is no number")]
)
def test_files_that_say_nonsense(
    call: Callable[..., Result], kernel: Kernel, content: str, text: str
) -> None:
    (kernel.folder(0) / "nr_hugepages").write_text(content)
    done = call("show")
    assert done.exit_code == 1
    assert text in done.stderr
    (kernel.folder(0) / "nr_hugepages").unlink()
    assert "No such file" in call("show").stderr


def test_no_huge_pages_at_all(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["hugepages", "show", "--root", str(tmp_path)])
    assert done.exit_code == 1
    assert "the kernel has no huge pages (a kernel with CONFIG_HUGETLBFS is needed)" in done.stderr


MACHINES = DATA / "machines"


def test_another_machines_pools() -> None:
    source = str(MACHINES / "20em64t-hybrid-1p6c2t+2ca4co1t.json")
    done = CliRunner().invoke(main, ["hugepages", "show", "--machine", source])
    assert done.stdout.splitlines()[1].split() == ["0", "2Mi", "0", "0", "-"]
    done = CliRunner().invoke(main, ["hugepages", "show", "--machine", "2s8c2t"])
    assert done.exit_code == 2
    assert "it says nothing about huge pages" in done.stderr
