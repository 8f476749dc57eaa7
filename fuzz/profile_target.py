"""Profiles of nodes and the settings that they are compared with, damaged: never a traceback."""

from __future__ import annotations

import tempfile
from typing import Final

from fuzz import seeds
from fuzz.engine import Target
from pinfold.adapters.machines.archive import ArchiveTree
from pinfold.adapters.machines.node_facts import read_facts
from pinfold.config.node_profiles import ConfigError, kubelet_facts, load_profile
from pinfold.core.profile.check import FITS, UNKNOWN, Fact, NodeCPUs, check
from pinfold.core.values.cpuset import CPUSet

_WORDS: Final = (
    b"read: ",
    b"/sys/x{exclusive}/",
    b"parameter ",
    b"kubelet ",
    b"idle latency",
    b"expect: {is: []}",
    b"atLeast: 1e999",
    b"hasCpus: reserved",
    b"form: mask",
    b"absent: fits",
    b"includes: tuned",
    b"leaveOut: [swap]",
    b"{reserved-mask}",
)
_CPUS: Final = NodeCPUs(CPUSet(range(4)), CPUSet([2, 3]))


def run_profile(data: bytes) -> None:
    """A file of a profile; and the bytes as every setting that profiles read."""
    with tempfile.NamedTemporaryFile(suffix=".yaml") as file:
        file.write(data)
        file.flush()
        try:
            profile = load_profile(file.name)
        except ConfigError as error:
            _hold(str(error).startswith(file.name), "an error that does not name the file")
            _hold(str(error).isprintable(), "an error that moves the cursor")
            profile = load_profile("hyper-tuned")
    reads = [row.read for row in profile.rows]
    kubelet = kubelet_facts(reads, {"cpuManagerPolicyOptions": data.decode("utf-8", "replace")})
    facts = read_facts(_tree(data), reads, _CPUS.online, _CPUS.exclusive) | kubelet
    _hold(all(one.counts(strict=True) for one in check(profile, {}, _CPUS)), "nothing fits")
    for one in check(profile, facts, _CPUS):
        _hold((one.state == UNKNOWN) == bool(one.remark), "unknown, and not why")
    unknown = dict.fromkeys(reads, Fact(unknown="so"))
    _hold(all(one.state != FITS for one in check(profile, unknown, _CPUS)), "unknown fits")


def _tree(data: bytes) -> ArchiveTree:
    """A machine all of whose settings are these bytes."""
    paths = ["proc/cmdline", "proc/swaps", "proc/pinfold-node-facts"]
    for cpu in _CPUS.online:
        folder = f"sys/devices/system/cpu/cpu{cpu}"
        paths += [f"{folder}/cpuidle/state0/{name}" for name in ("latency", "disable")]
        paths += [f"{folder}/cpufreq/scaling_governor", f"{folder}/power/pm_qos_resume_latency_us"]
    paths += ["proc/irq/default_smp_affinity", "sys/devices/virtual/workqueue/cpumask"]
    folders: dict[str, set[str]] = {"": set()}
    for path in paths:
        below = path
        while below:
            parent, _, last = below.rpartition("/")
            folders.setdefault(parent, set()).add(last)
            below = parent
    return ArchiveTree("fuzz", dict.fromkeys(paths, data), {}, folders)


def _hold(fact: object, text: str) -> None:
    if not fact:
        raise AssertionError(text)


def _files() -> list[bytes]:
    built_in = seeds.files("src/pinfold/config/profiles/*.yaml", "examples/profile/*.yaml")
    return [*built_in, b"node-facts: 1\nirqbalance: absent\n", b"nohz_full=2-3 isolcpus=domain,2"]


PROFILE_TARGET: Final = Target("profile", run_profile, _files, _WORDS)
