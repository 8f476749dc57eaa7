"""Rows of a profile against what was found: what cannot be told never fits."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinfold.core.profile.check import (
    DIFFERS,
    FITS,
    UNKNOWN,
    WHICH_CPUS,
    Fact,
    Finding,
    NodeCPUs,
    check,
    counted,
)
from pinfold.core.profile.profile import Expect, Profile, ProfileFile, Read, Row, whole_profile
from pinfold.core.values.cpuset import CPUSet

CPUS = NodeCPUs(CPUSet.parse("0-7"), CPUSet.parse("2-7"))


def row(expect: Expect, read: str = "/proc/sys/kernel/x", **more: Any) -> Row:
    texts = {"what": "it is so", "why": "it matters", "source": "x.rst", "change": "echo 1"}
    return Row(**{"name": "x", "read": read, "expect": expect, **texts, **more})


def found(one: Row, fact: Fact | None, cpus: NodeCPUs = CPUS) -> Finding:
    facts = {} if fact is None else {one.read: fact}
    (finding,) = check(Profile("p", "about", (one,)), facts, cpus)
    return finding


def said(text: str) -> Fact:
    return Fact({-1: text})


@pytest.mark.parametrize(
    ("one", "text", "state"),
    [
        (row(Expect(is_=(0,))), "0\n", FITS),
        (row(Expect(is_=("0",))), "1\n", DIFFERS),
        (row(Expect(is_=("never", "madvise")), form="choice"), "always [madvise] never\n", FITS),
        (row(Expect(is_=("never",)), form="choice"), "always [madvise] never\n", DIFFERS),
        (row(Expect(is_=("never",)), form="choice"), "never\n", UNKNOWN),
        (row(Expect(at_most=50)), "50\n", FITS),
        (row(Expect(at_most=50)), "51\n", DIFFERS),
        (row(Expect(at_least=1)), "0\n", DIFFERS),
        (row(Expect(at_least=1)), "1\n", FITS),
        (row(Expect(at_least=1)), "many\n", UNKNOWN),
        (row(Expect(has_cpus="exclusive"), form="list"), "1-7\n", FITS),
        (row(Expect(has_cpus="exclusive"), form="list"), "managed_irq,domain,2-7\n", FITS),
        (row(Expect(has_cpus="exclusive"), form="list"), "all\n", FITS),
        (row(Expect(has_cpus="exclusive"), form="list"), "2-N\n", FITS),
        (row(Expect(has_cpus="exclusive"), form="list"), "2-6\n", DIFFERS),
        (row(Expect(has_cpus="exclusive"), form="list"), "some\n", UNKNOWN),
        (row(Expect(has_cpus="reserved"), form="list"), "0-1\n", FITS),
        (row(Expect(lacks_cpus="exclusive"), form="mask"), "3\n", FITS),
        (row(Expect(lacks_cpus="exclusive"), form="mask"), "00000000,00000007\n", DIFFERS),
        (row(Expect(lacks_cpus="exclusive"), form="mask"), "xyz\n", UNKNOWN),
    ],
)
def test_a_value_against_what_is_expected(one: Row, text: str, state: str) -> None:
    assert found(one, said(text)).state == state


def test_what_is_said_of_it() -> None:
    one = row(
        Expect(lacks_cpus="exclusive"),
        form="mask",
        change="echo {reserved-mask} # {reserved}, not {exclusive}",
    )
    finding = found(one, said("ff\n"))
    assert (finding.found, str(one.expect)) == ("ff", "no exclusive CPU")
    assert finding.change == "echo 3 # 0-1, not 2-7"
    untold = found(one, said("ff\n"), NodeCPUs(CPUSet.parse("0-7")))
    assert (untold.state, untold.found, untold.remark) == (UNKNOWN, "ff", WHICH_CPUS)
    assert untold.change == "echo MASK-OF-OTHER-CPUS # OTHER-CPUS, not EXCLUSIVE-CPUS"


def test_cpus_of_which_some_differ_are_named() -> None:
    one = row(Expect(is_=("performance",)), read="/sys/cpu{exclusive}/governor")
    texts = {2: "performance", 3: "powersave\n", 5: "powersave\n", 7: "ondemand\n"}
    finding = found(one, Fact(texts))
    assert (finding.state, finding.found) == (
        DIFFERS,
        "powersave on CPUs 3,5, ondemand on CPU 7",
    )
    fits = found(one, Fact(dict.fromkeys(texts, "performance")))
    assert (fits.state, fits.found) == (FITS, "performance on CPUs 2-3,5,7")


@pytest.mark.parametrize(
    ("absent", "state"), [("unknown", UNKNOWN), ("fits", FITS), ("differs", DIFFERS)]
)
def test_what_it_means_that_there_is_nothing(absent: str, state: str) -> None:
    one = row(Expect(is_=(0,)), absent=absent)
    assert found(one, Fact(absent=True)).state == state
    assert found(one, Fact()).state == state
    for untold in (Fact(unknown="may not be read"), None):
        finding = found(one, untold)
        assert finding.state == UNKNOWN
        assert finding.remark


@given(
    st.sampled_from(
        [
            row(Expect(is_=("0",))),
            row(Expect(at_least=3)),
            row(Expect(has_cpus="exclusive"), form="list"),
            row(Expect(lacks_cpus="exclusive"), form="mask"),
            row(Expect(is_=("a",)), form="choice"),
        ]
    ),
    st.one_of(st.text(max_size=12), st.from_regex(r"[0-9a-f,\[\] -]{0,9}")),
)
def test_whatever_is_there_is_compared_or_unknown(one: Row, text: str) -> None:
    finding = found(one, said(text))
    assert finding.state in {FITS, DIFFERS, UNKNOWN}
    assert (finding.state == UNKNOWN) == bool(finding.remark)
    assert finding.counts(strict=True) == (finding.state != FITS)


def test_infos_count_only_if_it_is_strict() -> None:
    one = found(row(Expect(is_=(0,)), severity="info"), said("1"))
    assert (one.counts(strict=False), one.counts(strict=True)) == (False, True)
    assert dict(counted([one])) == {FITS: 0, DIFFERS: 1, UNKNOWN: 0}


@pytest.mark.parametrize(
    "text",
    [
        "/proc/sys/kernel/timer_migration",
        "/sys/devices/system/cpu/cpu{exclusive}/cpufreq/scaling_governor",
        "/proc/irq/default_smp_affinity",
        "parameter intel_idle.max_cstate",
        "kubelet cpuManagerPolicyOptions.full-pcpus-only",
        "program irqbalance",
        "swap devices",
        "idle latency",
    ],
)
def test_what_a_row_may_read(text: str) -> None:
    assert Read.parse(text).name in text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/etc/passwd",
        "/proc/kmsg",
        "/proc/sys/../kmsg",
        "/proc/sys/kernel/..",
        "/sys/kernel/debug/tracing/trace_pipe",
        "/sys/kernel/tracing/trace_pipe",
        "/sys",
        "/sys//x",
        "/sys/cpu{all}/x",
        "parameter",
        "parameter a b",
        "program /bin/sh",
        "swap files",
        "shell rm",
    ],
)
def test_what_it_may_not(text: str) -> None:
    with pytest.raises(ValueError, match=r"must be|a path is"):
        Read.parse(text)


def test_a_file_goes_on_from_another() -> None:
    first, second = row(Expect(is_=(0,))), row(Expect(is_=(1,)), name="y")
    base = Profile("base", "about", (first, second))
    mine = row(Expect(is_=(2,)))
    file = ProfileFile(kind="NodeProfile", version=1, name="own", about="own", rows=(mine,))
    assert whole_profile(file, None).rows == (mine,)
    assert whole_profile(file, base).rows == (mine, second)
    twice = ProfileFile(kind="NodeProfile", version=1, name="own", about="o", rows=(mine, mine))
    with pytest.raises(ValueError, match=r"rows\[1\].name: x is there twice"):
        whole_profile(twice, None)
    for leave_out, problem in ((("z",), "no row 'z'"), (("x",), "left out and there is")):
        wrong = ProfileFile(
            kind="NodeProfile", version=1, name="o", about="o", rows=(mine,), leave_out=leave_out
        )
        with pytest.raises(ValueError, match=problem):
            whole_profile(wrong, base)
    less = ProfileFile(kind="NodeProfile", version=1, name="o", about="o", leave_out=("y",))
    assert whole_profile(less, base).rows == (first,)
