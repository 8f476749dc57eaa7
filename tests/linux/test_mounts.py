"""What is mounted: names with anything in them, and what is no such table."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pinfold.linux.mounts import Mount, mounts, parse_mountinfo, unescaped

CGROUP = "34 31 0:31 /a /sys/fs/cgroup/cpu rw,relatime shared:3 - cgroup cgroup rw,cpu,cpuacct"


def escaped(name: str) -> str:
    """A name as the kernel writes it (``mangle_path`` of seq_file.c)."""
    return "".join(f"\\{ord(c):03o}" if c in " \t\n\\#" else c for c in name)


def test_a_line() -> None:
    assert list(parse_mountinfo(CGROUP)) == [
        Mount(
            root="/a",
            point="/sys/fs/cgroup/cpu",
            kind="cgroup",
            options=frozenset({"rw", "cpu", "cpuacct"}),
            writable=True,
            is_shared=True,
        )
    ]


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_any_name_is_read_whole(name: str) -> None:
    text = CGROUP.replace("/a", f"/{escaped(name)}").replace("/sys", f"/{escaped(name)}")
    (found,) = parse_mountinfo(text)
    assert (found.root, found.path) == (f"/{name}", Path(f"/{name}/fs/cgroup/cpu"))


def test_a_name_that_is_no_unicode_is_the_one_that_can_be_opened(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self/mountinfo").write_bytes(CGROUP.encode().replace(b"/sys", b"/\xff"))
    (found,) = mounts(tmp_path)
    assert os.fsencode(found.path) == b"/\xff/fs/cgroup/cpu"


@pytest.mark.parametrize(
    ("change", "writable"),
    [
        (("rw,relatime", "ro,relatime"), False),
        (("cgroup rw,", "cgroup ro,"), False),
        (("/a", "/ro"), True),
    ],
)
def test_what_can_be_written(change: tuple[str, str], writable: bool) -> None:
    (found,) = parse_mountinfo(CGROUP.replace(*change))
    assert found.writable is writable


def test_optional_fields_and_a_source_may_be_missing() -> None:
    without = CGROUP.replace(" shared:3", "").replace("cgroup cgroup", "cgroup ")
    (one,), (other,) = parse_mountinfo(without), parse_mountinfo(CGROUP)
    assert one == replace(other, is_shared=False)


@pytest.mark.parametrize(
    "text", ["", "\n", "nonsense", "1 2 3 /a /b rw cgroup cgroup rw", "1 2 - cgroup cgroup rw"]
)
def test_what_is_no_such_line_is_passed_over(text: str) -> None:
    assert list(parse_mountinfo(f"{text}\n{CGROUP}\n{text}")) == list(parse_mountinfo(CGROUP))


@given(st.text())
def test_any_text_can_be_read(text: str) -> None:
    assert len(list(parse_mountinfo(text))) <= text.count("\n") + 1


@pytest.mark.parametrize(
    ("text", "name"),
    [("a\\040b", "a b"), ("\\134040", "\\040"), ("\\777", "\\777"), ("\\04", "\\04"), ("\\", "\\")],
)
def test_numbers_that_stand_for_characters(text: str, name: str) -> None:
    assert unescaped(text) == name


def test_this_machine() -> None:
    found = {mount.point: mount for mount in mounts()}
    assert found["/proc"].kind == "proc"
    with pytest.raises(FileNotFoundError):
        mounts(Path("/nonexistent"))
