"""Which layouts of the state files kubelets read and write, by version and feature gate.

One table for each file.  A kubelet tries one layout after the other, and takes the first that can
be decoded and has a checksum that fits; what it prints is the error of the last.  ``pod_level`` is
the gate PodLevelResourceManagers, with which pods have an own set (``podEntries``).

Sources: answers of 1.34.9, 1.35.6 and 1.36.2; 1.37 from kubernetes/kubernetes#139102 (CPUs) and
#139626 (memory), not recorded.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from msgspec import Struct

from pinfold.core.kubelet.feature_gates import POD_LEVEL_RESOURCE_MANAGERS
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.kubelet.versions import (
    DEFAULT_VERSION,
    RELEASES,
    ByVersion,
    KubeletVersion,
)


class Layout(Enum):
    """A layout of a state file; the two files count theirs each by itself."""

    V1 = "v1"
    V2 = "v2"
    V3 = "v3"
    V4 = "v4"


class StateForm(Struct, frozen=True):
    """How kubelets of one kind read and write one of the files."""

    layouts: tuple[Layout, ...]
    """In the order in which they are tried."""
    writes: Layout
    zero_passes: frozenset[Layout] = frozenset()
    """In which of them a checksum of 0, or none, is let pass."""
    own_name_passes: frozenset[Layout] = frozenset()
    """Which of them are let pass with a checksum over the layout's own type name, too."""
    has_pods: bool = False
    """Whether the pods' own sets are taken from the file; they are written then, too."""
    keeps_half_read: bool = False
    """Whether what the first attempt could decode stays, where an older layout is migrated."""
    migration: str = ""
    """The words before an error of the migration from the oldest layout."""


class StateForms(Struct, frozen=True):
    """The table of one file: from a version on, without and with the gate."""

    history: ByVersion[tuple[StateForm, StateForm]]
    anything: StateForm
    """Of a reader that takes what any kubelet takes."""
    with_pods: frozenset[Layout]
    """The layouts that have a place for what pods have as a whole."""

    def at(
        self, version: KubeletVersion = DEFAULT_VERSION, *, pod_level: bool = False
    ) -> StateForm:
        """The form of a kubelet; a version without the gate has the same with and without."""
        return self.history.at(version)[pod_level]

    def of(self, config: NodeConfig) -> StateForm:
        """The form of the kubelet that is configured so."""
        pod_level = config.gate(POD_LEVEL_RESOURCE_MANAGERS)
        return self.at(config.kubelet_version, pod_level=pod_level)

    def layout_for(self, config: NodeConfig, *, has_pods: bool) -> Layout:
        """In which layout to write for others who know the kubelet that is configured so.

        With ``has_pods`` some pods have something as a whole, which the file has to hold.
        """
        own = self.of(config)
        forms = [own, self.at(config.kubelet_version, pod_level=True), self.at(pod_level=True)]
        return next((one for one in forms if one.has_pods or not has_pods), own).writes

    def writer(self, layout: Layout) -> tuple[KubeletVersion, bool]:
        """The kubelet that writes in ``layout``: version and gate; the default where none does."""
        versions = [DEFAULT_VERSION, *(one.version for one in reversed(RELEASES))]
        for version in versions:
            for pod_level in (False, True):
                if self.at(version, pod_level=pod_level).writes is layout:
                    return version, pod_level
        return DEFAULT_VERSION, False


_OLD: Final = frozenset({Layout.V1, Layout.V2})
_CPU_34: Final = StateForm(
    (Layout.V1, Layout.V2),
    Layout.V2,
    zero_passes=_OLD,
    migration="error migrating v1 checkpoint state to v2 checkpoint state",
)
_CPU_36: Final = StateForm(
    (Layout.V2, Layout.V1),
    Layout.V2,
    zero_passes=_OLD,
    migration="failed to migrate checkpoint from v1 to v2",
)
_CPU_36_PODS: Final = StateForm(
    (Layout.V3, *_CPU_36.layouts),
    Layout.V3,
    zero_passes=_OLD,
    has_pods=True,
    keeps_half_read=True,
    migration=_CPU_36.migration,
)


def _cpu_37(*, has_pods: bool) -> StateForm:
    return StateForm(
        (Layout.V4, Layout.V3, Layout.V2),
        Layout.V4,
        zero_passes=frozenset({Layout.V2}),
        own_name_passes=frozenset({Layout.V3}),
        has_pods=has_pods,
    )


CPU_STATE: Final = StateForms(
    ByVersion(
        (
            (KubeletVersion(34), (_CPU_34, _CPU_34)),
            (KubeletVersion(36), (_CPU_36, _CPU_36_PODS)),
            (KubeletVersion(37), (_cpu_37(has_pods=False), _cpu_37(has_pods=True))),
        )
    ),
    StateForm(
        tuple(Layout),
        Layout.V4,
        zero_passes=_OLD,
        own_name_passes=frozenset({Layout.V3}),
        has_pods=True,
    ),
    frozenset({Layout.V3, Layout.V4}),
)
"""``cpu_manager_state``."""

_FIRST: Final = frozenset({Layout.V1})
_MEMORY_34: Final = StateForm((Layout.V1,), Layout.V1)
_MEMORY_36: Final = StateForm((Layout.V1,), Layout.V1, zero_passes=_FIRST)
_MEMORY_36_PODS: Final = StateForm(
    (Layout.V2, Layout.V1), Layout.V2, zero_passes=_FIRST, has_pods=True, keeps_half_read=True
)


def _memory_37(*, has_pods: bool) -> StateForm:
    layouts = (Layout.V3, Layout.V2, Layout.V1)
    return StateForm(layouts, Layout.V3, zero_passes=_FIRST, has_pods=has_pods)


MEMORY_STATE: Final = StateForms(
    ByVersion(
        (
            (KubeletVersion(34), (_MEMORY_34, _MEMORY_34)),
            (KubeletVersion(36), (_MEMORY_36, _MEMORY_36_PODS)),
            (KubeletVersion(37), (_memory_37(has_pods=False), _memory_37(has_pods=True))),
        )
    ),
    StateForm((Layout.V1, Layout.V2, Layout.V3), Layout.V3, zero_passes=_FIRST, has_pods=True),
    frozenset({Layout.V2, Layout.V3}),
)
"""``memory_manager_state``."""
