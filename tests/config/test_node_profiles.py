"""Files of profiles: those that come along, and each way in which one of one's own can be wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from pinfold.config.node_profiles import (
    BUILT_IN,
    ConfigError,
    kubelet_facts,
    load_profile,
    profile_text,
)
from pinfold.core.profile.check import Fact

ROW = """\
  - name: x
    what: It is so
    read: /proc/sys/kernel/x
    expect: {is: [0]}
    why: It matters
    source: x.rst
    change: echo 0
"""
HEAD = "kind: NodeProfile\nversion: 1\nname: own\nabout: Our own\n"


def write(tmp_path: Path, text: str) -> str:
    path = tmp_path / "own.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_each_includes_the_one_before() -> None:
    names: set[str] = set()
    for name in BUILT_IN:
        profile = load_profile(name)
        assert profile.name == name
        found = {row.name for row in profile.rows}
        assert names < found
        names = found


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_copy_is_the_same_profile(name: str, tmp_path: Path) -> None:
    assert load_profile(write(tmp_path, profile_text(name))) == load_profile(name)


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    own = load_profile(write(tmp_path, f"{HEAD}includes: standard\nleaveOut: [swap]\nrows:\n{ROW}"))
    names = [row.name for row in own.rows]
    assert names == ["cpu-manager", "reserved-cpus", "transparent-hugepages", "x"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "must hold one mapping; it starts with kind: NodeProfile"),
        ("[1]", "must hold one mapping"),
        ("a: [", "not YAML"),
        ("kind: Pod\n", "kind: must be NodeProfile, not 'Pod'"),
        (HEAD.replace("1", "2"), "version: Invalid enum value 2"),
        ("kind: NodeProfile\nversion: 1\nname: own\n", "missing required field `about`"),
        (f"{HEAD}rowz: []\n", "unknown field `rowz`"),
        (f"{HEAD}name: again\n", "line 5"),
        (f"{HEAD}includes: other\n", "includes: must be one of standard, tuned, hyper-tuned"),
        (f"{HEAD}includes: /etc/passwd\n", "includes: must be one of"),
        (f"{HEAD}leaveOut: [swap]\n", "leaveOut[0]: no row 'swap' is included"),
        (f"{HEAD}rows:\n{ROW}{ROW}", "rows[1].name: x is there twice"),
        (f"{HEAD}rows:\n{ROW.replace('name: x', 'name: X Y')}", "rows[0].name (X Y): "),
        (
            f"{HEAD}rows:\n{ROW.replace('/proc/sys/kernel/x', '/etc/shadow')}",
            "rows[0] (x): a path is below /proc/sys, /proc/irq or /sys",
        ),
        (
            f"{HEAD}rows:\n{ROW.replace('{is: [0]}', '{}')}",
            "rows[0].expect (x): must have one of is, atLeast, atMost, hasCpus and lacksCpus",
        ),
        (
            f"{HEAD}rows:\n{ROW.replace('{is: [0]}', '{is: [0], atMost: 1}')}",
            "rows[0].expect (x): must have one of",
        ),
        (
            f"{HEAD}rows:\n{ROW.replace('{is: [0]}', '{is: [off]}')}",
            "rows[0].expect.is[0] (x): Expected `int | str`, got `bool`",
        ),
        (
            f"{HEAD}rows:\n{ROW.replace('{is: [0]}', '{hasCpus: exclusive}')}",
            "rows[0] (x): hasCpus and lacksCpus need form: list or form: mask",
        ),
        (
            f"{HEAD}rows:\n{ROW.replace('echo 0', 'echo {cpus}')}",
            "rows[0] (x): change: there is no {cpus} to fill in",
        ),
        (
            f"{HEAD}rows:\n{ROW}    severity: bad\n",
            "rows[0].severity (x): Invalid enum value 'bad'",
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path: Path, text: str, problem: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_profile(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert problem in str(caught.value)


def test_files_that_are_none(tmp_path: Path) -> None:
    for path in (str(tmp_path / "none.yaml"), str(tmp_path), "a\0b"):
        with pytest.raises(ConfigError):
            load_profile(path)
    with pytest.raises(ConfigError, match="there is no profile 'fast'; there are standard"):
        profile_text("fast")
    binary = tmp_path / "b"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_profile(str(binary))


def test_fields_of_the_kubelet() -> None:
    options = {"full-pcpus-only": "true"}
    fields = {"cpuManagerPolicyOptions": options, "failSwapOn": False, "reservedSystemCPUs": ""}
    asked = [
        "kubelet cpuManagerPolicyOptions.full-pcpus-only",
        "kubelet cpuManagerPolicyOptions.align-by-socket",
        "kubelet failSwapOn",
        "kubelet cpuManagerPolicy",
        "kubelet reservedSystemCPUs",
        "/proc/sys/kernel/x",
    ]
    assert kubelet_facts(asked, fields) == {
        asked[0]: Fact({-1: "true"}),
        asked[1]: Fact(absent=True),
        asked[2]: Fact({-1: "false"}),
        asked[3]: Fact({-1: "none"}),
        asked[4]: Fact(absent=True),
    }
    assert all(one.unknown for one in kubelet_facts(asked, None).values())
