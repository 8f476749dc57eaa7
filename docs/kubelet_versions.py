"""The page of what differs between versions of the kubelet, made of the tables of the code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from pinfold.config.settings import SETTINGS
from pinfold.core.kubelet.feature_gates import FEATURE_GATES, FeatureGate
from pinfold.core.kubelet.policy_options import (
    CPU_MANAGER_OPTIONS,
    TOPOLOGY_MANAGER_OPTIONS,
    PolicyOption,
)
from pinfold.core.kubelet.version_rules import VERSION_RULES
from pinfold.core.kubelet.versions import DEFAULT_VERSION, RELEASES, KubeletVersion
from pinfold.state.layouts import CPU_STATE, MEMORY_STATE, StateForm, StateForms

VERSIONS = tuple(one.version for one in RELEASES)

_INTRODUCTION = """\
`pinfold plan`, `explain` and `state` answer as the kubelet of `--kubelet-version`; without it as
the one that a Node or a capture tells, else as {default}. `pinfold plan
--compare-kubelet-version` shows [what an upgrade
changes](../how-to/compare-two-configurations.md#another-kubelet) for some pods. An agent decides
as the kubelet of its setting [`kubeletVersion`](agent-configuration.md).

The answers of {recorded} were recorded from the kubelets' own code. **{proposed} is read from
proposals and release notes, and not recorded.** A version that is newer than all of these is
answered for by the newest; an older one is refused as an option, and where a Node tells it the
oldest answers, with a note. A version without a patch means {patches}. What is not on this
page is the same in all of them.
"""

_PROPOSED = """\
Of 1.37: the proposal (KEP-5526, kubernetes/kubernetes#140573) has PodLevelResourceManagers on by
default; kubernetes/kubernetes#141209 switched it off again before the release, because of faults
such as kubernetes/kubernetes#140989. MemoryQoS is on by default (KEP-2570,
kubernetes/kubernetes#140007) and changes nothing by itself: `memoryReservationPolicy` is `None`,
and without a `memoryThrottlingFactor` there is no `memory.high`.
"""

_GATES = """\
*on* and *off* are what the gate is unless it is set. A kubelet refuses to start with a *locked*
one set otherwise, and with one that is *not there* (`unrecognized feature gate: NAME`). Gates
that are not listed are the same in all versions, such as PodLevelResources and
InPlacePodVerticalScalingExclusiveCPUs, or have no effect on a placement.
"""

_OPTIONS = """\
An alpha option is refused unless the gate of alpha options is on, a beta one where the gate of
beta options is off (`CPU Manager Policy Beta-level Options not enabled, but option "NAME"
provided`).
"""

_STATE = """\
A kubelet tries one layout after the other, takes the first whose text and checksum fit, and
starts with none if no layout does. *pods* are the CPUs or the memory of pods as a whole
(`podEntries`), with the gate PodLevelResourceManagers. `pinfold state` says which kubelets accept
a file, and what an upgrade or a downgrade does to it.
"""


def page() -> str:
    """The page without the notice."""
    recorded = [str(one.version) for one in RELEASES if one.is_recorded]
    proposed = [str(one.version) for one in RELEASES if not one.is_recorded]
    parts = [
        "# What differs between versions of the kubelet\n",
        _INTRODUCTION.format(
            default=DEFAULT_VERSION,
            recorded=", ".join(recorded),
            patches=", ".join(one.version.full for one in RELEASES),
            proposed=", ".join(proposed),
        ),
        "## Decisions\n",
        "\n".join(_rules()) + "\n",
        "## Feature gates\n",
        _GATES,
        "\n".join(_table("Gate", _gates())) + "\n",
        _PROPOSED,
        "## Policy options\n",
        _OPTIONS,
        "\n".join(_table("Option", _options())) + "\n",
        "## State files\n",
        _STATE,
        "\n".join(_state_files()) + "\n",
        "Before an error of the migration from the oldest layout a kubelet says:\n",
        "\n".join(_table("File", _migrations())) + "\n",
        *_fields(),
    ]
    return "\n".join(parts)


def _head(first: str, last: str = "") -> Iterator[str]:
    names = [f"{one.version}{' (proposed)' * (not one.is_recorded)}" for one in RELEASES]
    columns = [first, *names, *filter(None, (last,))]
    yield f"| {' | '.join(columns)} |"
    yield "|---" * len(columns) + "|"


def _table(
    first: str, rows: Iterable[tuple[str, Callable[[KubeletVersion], str]]]
) -> Iterator[str]:
    """One row for each thing that is not the same in all versions."""
    yield from _head(first)
    for name, at in rows:
        cells = [at(version) for version in VERSIONS]
        if len(set(cells)) > 1:
            yield f"| `{name}` | {' | '.join(cells)} |"


def _rules() -> Iterator[str]:
    yield from _head("What", "Source")
    for rule in VERSION_RULES:
        cells = []
        for release in RELEASES:
            version = release.version
            first = KubeletVersion(version.minor)
            holds = rule.at(version)
            since = f" since {version.full}" if holds and not rule.at(first) else ""
            cells.append(("yes" if holds else "no") + since)
        yield f"| {rule.text} | {' | '.join(cells)} | {rule.source} |"


def _gates() -> Iterator[tuple[str, Callable[[KubeletVersion], str]]]:
    for gate in FEATURE_GATES:
        yield gate.name, partial(_gate, gate)


def _gate(gate: FeatureGate, version: KubeletVersion) -> str:
    spec = gate.at(version)
    if spec is None:
        return "not there"
    return f"{spec.maturity.value}, {'on' if spec.default else 'off'}{', locked' * spec.locked}"


def _options() -> Iterator[tuple[str, Callable[[KubeletVersion], str]]]:
    for family in (CPU_MANAGER_OPTIONS, TOPOLOGY_MANAGER_OPTIONS):
        for option in family.options:
            yield option.name, partial(_maturity, option)


def _maturity(option: PolicyOption, version: KubeletVersion) -> str:
    return option.maturity.at(version).value


def _state_files() -> Iterator[str]:
    yield from _head("File, gate PodLevelResourceManagers")
    for name, forms in (("cpu_manager_state", CPU_STATE), ("memory_manager_state", MEMORY_STATE)):
        for on in (False, True):
            cells = [_form(forms, version, on=on) for version in VERSIONS]
            yield f"| `{name}`, {'on' if on else 'off'} | {' | '.join(cells)} |"


def _form(forms: StateForms, version: KubeletVersion, *, on: bool) -> str:
    form: StateForm = forms.at(version, pod_level=on)
    if on and form == forms.at(version, pod_level=False):
        return "as without"
    reads = ", ".join(layout.value for layout in form.layouts)
    return f"reads {reads}; writes {form.writes.value}{' with pods' * form.has_pods}"


def _migrations() -> Iterator[tuple[str, Callable[[KubeletVersion], str]]]:
    for name, forms in (("cpu_manager_state", CPU_STATE), ("memory_manager_state", MEMORY_STATE)):
        yield name, partial(_migration, forms)


def _migration(forms: StateForms, version: KubeletVersion) -> str:
    words = forms.at(version, pod_level=False).migration
    return f"`{words}`" if words else "nothing"


def _fields() -> Iterator[str]:
    """The fields of a KubeletConfiguration that came later than the oldest version."""
    rows = [
        f"| `{setting.field}` | {setting.help} |"
        for setting in SETTINGS
        if setting.known_with is not None
    ]
    if rows:
        yield "## Fields of the configuration\n"
        yield "Kubelets that do not have them pass them over.\n"
        yield "\n".join(["| Field | |", "|---|---|", *rows]) + "\n"
