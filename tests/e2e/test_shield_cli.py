"""The command ``pinfold shield``, its refusals, and its record."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from pinfold.adapters.shield import (
    CGROUP,
    Method,
    Shield,
    ShieldError,
    find_place,
    lower_shield,
    raise_shield,
    read_shield,
)
from pinfold.adapters.shield.record import (
    Journal,
    Kind,
    SavedAffinity,
    SavedValue,
    lock,
)
from pinfold.cli import main
from pinfold.core.values.cpuset import CPUSet
from pinfold.linux.processes import boot_id
from tests.scenes.shield_scene import own_machine

ONLINE = CPUSet.parse(Path("/sys/devices/system/cpu/online").read_text())
LAST = CPUSet([max(ONLINE)])
SHIELD = Shield(
    cpus=CPUSet([2, 3]),
    others=CPUSet([0, 1]),
    method=Method.CGROUP2,
    root="/sys/fs/cgroup",
    boot=boot_id(),
    keep=("/pinfold",),
    values=(
        SavedValue(
            kind=Kind.IRQ,
            place="/proc/irq/1/smp_affinity_list",
            before=ONLINE,
            written=(CPUSet([0]),),
        ),
    ),
    affinities=(SavedAffinity(17, 4711, CPUSet([2])),),
)


def shield(*arguments: str | Path | CPUSet) -> Result:
    return CliRunner().invoke(main, ["shield", *map(str, arguments)])


@pytest.fixture
def root() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Path]:
    """A record; the machine is this test's alone, and is left without a shield."""
    record = tmp_path / "shield.json"
    with own_machine() as place:
        if (place.root / CGROUP).exists():
            pytest.skip("CPUs of this machine are shielded already")
        try:
            yield record
        finally:
            asyncio.run(lower_shield(record=record))


def test_up_status_off(machine: Path) -> None:
    at = ("--record", machine)
    assert shield(*at).output == "no CPUs are shielded\n"

    up = shield("--cpus", LAST, *at)
    seen = shield(*at, "-o", "json")
    off = shield("--off", *at)

    assert (up.exit_code, seen.exit_code, off.exit_code) == (0, 0, 0), up.output + off.output
    assert f"CPUs {LAST} are shielded" in up.output
    assert "kernel thread(s) are bound" in up.output
    document = json.loads(seen.output)
    assert (document["version"], document["kind"], document["state"]) == (1, "Shield", "up")
    assert (document["cpus"], document["others"]) == (str(LAST), str(ONLINE - LAST))
    assert document["keep"] == ["/pinfold"]
    assert isinstance(document["strangers"], list)
    assert f"CPUs {LAST} are no longer shielded" in off.output
    assert shield("--off", *at).output == "no CPUs are shielded\n"
    assert not machine.exists()


def test_an_unfinished_one_is_said(machine: Path) -> None:
    place = find_place()
    begun = Shield(LAST, ONLINE - LAST, place.method, str(place.root), boot=boot_id())
    Journal(machine, begun).change(complete=False)
    said = shield("--record", machine)
    assert "half shielded" in said.output
    assert "--off" in said.output
    assert shield("--off", "--record", machine).exit_code == 0
    assert not machine.exists()


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize(
    ("cpus", "said"),
    [
        ("", "no CPUs to shield"),
        (str(ONLINE), "all CPUs cannot be shielded"),
        ("60000", "there is no CPU 60000"),
        ("3-1", "runs downwards"),
        ("two", "no CPU id or range"),
    ],
)
def test_cpus_that_cannot_be_shielded(cpus: str, said: str, tmp_path: Path) -> None:
    done = shield("--cpus", cpus, "--record", tmp_path / "shield.json")
    assert done.exit_code == 2
    assert said in done.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "options", [("--off", "--cpus", "1"), ("--off", "--irqs"), ("--irqs",), ("--keep", "/x")]
)
def test_options_that_do_not_go_together(options: tuple[str, ...]) -> None:
    assert shield(*options).exit_code == 2


def test_without_root_it_refuses(tmp_path: Path) -> None:
    tries = (
        raise_shield(LAST, record=tmp_path / "shield.json"),
        lower_shield(record=tmp_path / "shield.json"),
    )
    was = os.geteuid()
    if was == 0:
        os.seteuid(65534)
    try:
        for attempt in tries:
            with pytest.raises(ShieldError, match="run as root"):
                asyncio.run(attempt)
        done = shield("--cpus", LAST)
    finally:
        os.seteuid(was)
    assert done.exit_code == 1
    assert done.output == "Error: a shield concerns the whole machine (run as root)\n"


def test_a_record_comes_back_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "shield.json"
    journal = Journal(file, SHIELD)
    journal.change(complete=True)
    assert read_shield(file) == journal.shield
    assert list(tmp_path.iterdir()) == [file]


def test_what_was_at_first_is_kept(tmp_path: Path) -> None:
    """A value changed twice goes back to what it was before the first time."""
    journal = Journal(tmp_path / "shield.json", SHIELD)
    (first,) = SHIELD.values
    journal.about_to_write([replace(first, before=CPUSet([0]), written=(CPUSet([1]),))])
    assert journal.shield.values == (replace(first, written=(CPUSet([0]), CPUSet([1]))),)
    journal.about_to_move([SavedAffinity(17, 4711, CPUSet([0]))])
    assert journal.shield.affinities == SHIELD.affinities
    # The same number, but another thread.
    journal.about_to_move([SavedAffinity(17, 4712, CPUSet([0]))])
    assert len(journal.shield.affinities) == 2


def test_a_record_of_another_boot_is_none(tmp_path: Path) -> None:
    file = tmp_path / "shield.json"
    Journal(file, SHIELD).change(boot="11111111-2222-3333-4444-555555555555")
    assert read_shield(file) is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"cpus": "1", "others": "0", "method": "magic", "root": "/"}',
        b'{"cpus": "x", "others": "0", "method": "cgroup2", "root": "/"}',
        b'{"cpus": 1, "others": "0", "method": "cgroup2", "root": "/"}',
        b'{"cpus": "1", "others": "0", "method": "cgroup2", "root": "/", "version": 9}',
        b"\xff\xfe",
    ],
)
def test_a_file_that_is_no_record(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "shield.json"
    file.write_bytes(content)
    with pytest.raises(ShieldError, match=str(file)):
        read_shield(file)
    done = shield("--record", file)
    assert done.exit_code == 1
    assert str(file) in done.output
    assert file.read_bytes() == content


def test_a_full_disk_leaves_the_old_record(tmp_path: Path) -> None:
    file = tmp_path / "shield.json"
    journal = Journal(file, SHIELD)
    journal.change(complete=True)
    before = file.read_bytes()
    code = (
        "import resource, signal, sys\n"
        "from pathlib import Path\n"
        "from pinfold.adapters.shield import ShieldError, read_shield\n"
        "from pinfold.adapters.shield.record import Journal\n"
        "file = Path(sys.argv[1])\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"
        "try: Journal(file, read_shield(file)).change(complete=False)\n"
        "except ShieldError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(file)], capture_output=True, text=True, check=True
    )
    assert "writing the record" in done.stdout
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]


def test_one_at_a_time(tmp_path: Path) -> None:
    file = tmp_path / "shield.json"
    order: list[Any] = []

    async def holder(number: int) -> None:
        async with lock(file):
            order.append(("in", number))
            await asyncio.sleep(0.03)
            order.append(("out", number))

    async def scenario() -> None:
        await asyncio.gather(holder(1), holder(2))

    asyncio.run(scenario())
    assert [what for what, _ in order] == ["in", "out", "in", "out"]


@pytest.mark.parametrize(
    ("mounts", "said"),
    [
        ("24 1 0:22 / /proc rw - proc proc rw\n", "no cgroup hierarchy has the cpuset controller"),
        ("24 1 0:22 / {tmp}/v1 rw - cgroup cgroup rw,cpuset\n", "only a part"),
        ("24 1 0:22 / {tmp}/v2 rw - cgroup2 cgroup rw\nnonsense\n", "only a part"),
    ],
)
def test_places_that_will_not_do(mounts: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "mountinfo").write_text(mounts.format(tmp=tmp_path))
    (tmp_path / "v2").mkdir()
    (tmp_path / "v2" / "cgroup.controllers").write_text("cpuset cpu\n")
    (tmp_path / "v2" / "cgroup.type").write_text("domain\n")
    with pytest.raises(ShieldError, match=said):
        find_place(tmp_path, tmp_path / "none")


def test_places_that_do(tmp_path: Path) -> None:
    """A hybrid machine has the controller on v1; systemd is asked only where it is on v2."""
    (tmp_path / "self").mkdir()
    mounts = tmp_path / "self" / "mountinfo"
    version_1, version_2 = tmp_path / "v 1", tmp_path / "v2"
    version_1.mkdir()
    (version_1 / "release_agent").touch()
    version_2.mkdir()
    (version_2 / "cgroup.controllers").write_text("pids\n")
    escaped = str(version_1).replace(" ", "\\040")
    mounts.write_text(
        f"24 1 0:22 / {version_2} rw - cgroup2 cgroup rw\n"
        f"25 1 0:23 / {escaped} rw - cgroup cgroup rw,cpuset,cpu\n"
    )
    found = find_place(tmp_path, tmp_path)
    assert (found.method, found.root) == (Method.CGROUP1, version_1)
    (version_2 / "cgroup.controllers").write_text("cpuset pids\n")
    assert find_place(tmp_path, tmp_path).method is Method.SYSTEMD
    assert find_place(tmp_path, tmp_path / "none").method is Method.CGROUP2


def test_kept_cgroups() -> None:
    assert SHIELD.keeps(Path("/sys/fs/cgroup/pinfold"))
    assert not SHIELD.keeps(Path("/sys/fs/cgroup/pinfold-system"))
    assert SHIELD.keeps(Path("/sys/fs/cgroup/a")) is False
    assert Shield(LAST, LAST, Method.CGROUP2, "/x", keep=("/a/b",)).keeps(Path("/x/a"))
