"""The modes of the benchmark of the effect: which agents, which pods, what they say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

RESERVED: Final = {"reservedSystemCPUs": "", "kubeReserved": {"cpu": "100m"}}
"""One CPU is never owned, and nearly all of it is there for pods that share."""
LENDS: Final = "lending"
FAST: Final = {"observationPeriod": "200ms"}
LENDING: Final = {"lending": {"use": True}, **FAST}
LOAD_DRIVEN: Final = {
    "loadDriven": {
        "use": True,
        "promoteUsage": "40%",
        "demoteUsage": "15%",
        "promoteAfter": "1s",
        "minShared": "1s",
    },
    "dynamic": {"movesPerHour": 3600},
    **FAST,
}


@dataclass(frozen=True, slots=True)
class Mode:
    """One way to run the server: which agent, with which neighbours, what its pod says.

    ``warm`` are the seconds that are not measured, until the agent has done what it does by load.
    """

    agent: str
    about: str
    neighbours: bool = True
    warm: float = 1.0
    annotations: Mapping[str, str] = field(default_factory=dict)


MODES: Final = {
    "alone": Mode("static", "policy static, no neighbours", neighbours=False),
    "none": Mode("none", "policy none"),
    "static": Mode("static", "policy static: the server owns a CPU"),
    "lending": Mode(
        "lending",
        "as static, idle time of its CPU lent to best-effort pods",
        warm=2.5,
        annotations={"lend-cpus.pinfold.dev/pod": "true"},
    ),
    "load-driven": Mode(
        "load-driven",
        "policy dynamic: it owns a CPU while its load asks for one",
        warm=3.5,
        annotations={"load-driven.pinfold.dev/pod": "true"},
    ),
}
AGENTS: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "none": ("none", {}),
    "static": ("static", {}),
    "lending": ("static", LENDING),
    "load-driven": ("dynamic", LOAD_DRIVEN),
}

BEST_EFFORT: Final = ("best-effort-1", "best-effort-2")
NEIGHBOURS: Final[Mapping[str, tuple[tuple[str, ...], Mapping[str, Any]]]] = {
    **dict.fromkeys(BEST_EFFORT, (("churn", "20", "0"), {})),
    # Busy half of the time, with a request and no limit; and with a fraction of a CPU.
    "burstable": (("churn", "20", "20"), {"requests": {"cpu": "300m", "memory": "64Mi"}}),
    "fraction": (
        ("churn", "10", "20"),
        {
            "requests": {"cpu": "400m", "memory": "64Mi"},
            "limits": {"cpu": "400m", "memory": "64Mi"},
        },
    ),
}
_OWNED: Final = {"cpu": "1", "memory": "64Mi"}
OWNER: Final = {"requests": _OWNED, "limits": _OWNED}
