"""The policy options of the CPU manager and the topology manager, in one table.

Names, maturity by version and texts are the kubelet's (``cpumanager/policy_options.go`` and
``topologymanager/policy_options.go``, 1.34 to 1.36).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Final

from msgspec import Struct

from pinfold.core.kubelet.versions import DEFAULT_VERSION, ByVersion, KubeletVersion
from pinfold.core.machine.topology import CPUTopology

FULL_PCPUS_ONLY: Final = "full-pcpus-only"
DISTRIBUTE_CPUS_ACROSS_NUMA: Final = "distribute-cpus-across-numa"
ALIGN_BY_SOCKET: Final = "align-by-socket"
DISTRIBUTE_CPUS_ACROSS_CORES: Final = "distribute-cpus-across-cores"
STRICT_CPU_RESERVATION: Final = "strict-cpu-reservation"
PREFER_ALIGN_CPUS_BY_UNCORECACHE: Final = "prefer-align-cpus-by-uncorecache"
PREFER_CLOSEST_NUMA_NODES: Final = "prefer-closest-numa-nodes"
MAX_ALLOWABLE_NUMA_NODES: Final = "max-allowable-numa-nodes"

DEFAULT_MAX_ALLOWABLE_NUMA_NODES: Final = 8
"""The kubelet refuses to start the topology manager on machines with more NUMA nodes."""


class PolicyOptionError(ValueError):
    """An option that would stop a kubelet; the message is the kubelet's."""


class Maturity(Enum):
    """How far an option has come; alpha ones need a feature gate, as upstream has it."""

    ALPHA = "alpha"
    BETA = "beta"
    STABLE = "stable"
    DEPRECATED = "deprecated"


class PolicyOption(Struct, frozen=True):
    """One row of the table.

    ``conflicts`` are the options that cannot be on at the same time; the pair is named in the
    order in which the kubelet's text names it (this option first).
    """

    name: str
    maturity: ByVersion[Maturity]
    help: str
    conflicts: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    kind: type[bool | int] = bool


class OptionFamily(Struct, frozen=True):
    """The options of one manager, with the words that its texts use."""

    manager: str
    alpha_gate: str
    beta_gate: str
    options: tuple[PolicyOption, ...]

    def find(self, name: str) -> PolicyOption | None:
        """The option called ``name`` or one of its aliases."""
        return next((o for o in self.options if name == o.name or name in o.aliases), None)

    def check_available(
        self,
        name: str,
        feature_gates: Mapping[str, bool],
        version: KubeletVersion = DEFAULT_VERSION,
    ) -> PolicyOption:
        """Find an option that may be used under these gates (alpha default off, beta on).

        Raises:
            PolicyOptionError: unknown, or of a maturity that is not enabled.
        """
        option = self.find(name)
        if option is None:
            raise PolicyOptionError(f'unknown {self.manager} Policy option: "{name}"')
        for maturity, gate, default in (
            (Maturity.ALPHA, self.alpha_gate, False),
            (Maturity.BETA, self.beta_gate, True),
        ):
            if option.maturity.at(version) is maturity and not feature_gates.get(gate, default):
                level = maturity.value.capitalize()
                raise PolicyOptionError(
                    f"{self.manager} Policy {level}-level Options not enabled, "
                    f'but option "{name}" provided'
                )
        return option


def _maturity(history: Mapping[int, Maturity]) -> ByVersion[Maturity]:
    """How mature an option is from a minor version on."""
    return ByVersion(tuple((KubeletVersion(minor), one) for minor, one in history.items()))


_STABLE: Final = _maturity({34: Maturity.STABLE})
_STABLE_1_35: Final = _maturity({34: Maturity.BETA, 35: Maturity.STABLE})
_STABLE_1_36: Final = _maturity({34: Maturity.BETA, 36: Maturity.STABLE})
_BETA: Final = _maturity({34: Maturity.BETA})
_ALPHA: Final = _maturity({34: Maturity.ALPHA})

CPU_MANAGER_OPTIONS: Final = OptionFamily(
    manager="CPU Manager",
    alpha_gate="CPUManagerPolicyAlphaOptions",
    beta_gate="CPUManagerPolicyBetaOptions",
    options=(
        PolicyOption(
            FULL_PCPUS_ONLY,
            _STABLE,
            "Give whole cores only; a request that is no multiple of the threads per core is "
            "rejected with SMTAlignmentError.",
            conflicts=(DISTRIBUTE_CPUS_ACROSS_CORES,),
            aliases=("reject-non-smt-aligned",),
        ),
        PolicyOption(
            DISTRIBUTE_CPUS_ACROSS_NUMA,
            _BETA,
            "Spread CPUs evenly over the NUMA nodes where one node is not enough.",
            conflicts=(DISTRIBUTE_CPUS_ACROSS_CORES,),
        ),
        PolicyOption(
            ALIGN_BY_SOCKET,
            _ALPHA,
            "Align CPUs with the socket instead of the NUMA node.",
        ),
        PolicyOption(
            DISTRIBUTE_CPUS_ACROSS_CORES,
            _ALPHA,
            "Spread CPUs over cores, one thread of each first.",
        ),
        PolicyOption(
            STRICT_CPU_RESERVATION,
            _STABLE_1_35,
            "Keep shared containers off the reserved CPUs too.",
        ),
        PolicyOption(
            PREFER_ALIGN_CPUS_BY_UNCORECACHE,
            _STABLE_1_36,
            "Prefer CPUs of as few uncore (L3) caches as possible.",
            conflicts=(DISTRIBUTE_CPUS_ACROSS_CORES, DISTRIBUTE_CPUS_ACROSS_NUMA),
        ),
    ),
)
"""``cpuManagerPolicyOptions``."""

TOPOLOGY_MANAGER_OPTIONS: Final = OptionFamily(
    manager="Topology Manager",
    alpha_gate="TopologyManagerPolicyAlphaOptions",
    beta_gate="TopologyManagerPolicyBetaOptions",
    options=(
        PolicyOption(
            PREFER_CLOSEST_NUMA_NODES,
            _STABLE,
            "Among equally wide NUMA affinities prefer the one with the shortest distances.",
        ),
        PolicyOption(
            MAX_ALLOWABLE_NUMA_NODES,
            _STABLE_1_35,
            "Largest number of NUMA nodes on which the topology manager may run (default 8).",
            kind=int,
        ),
    ),
)
"""``topologyManagerPolicyOptions``."""


class StaticPolicyOptions(Struct, frozen=True):
    """The static policy's options, parsed."""

    full_pcpus_only: bool = False
    distribute_cpus_across_numa: bool = False
    align_by_socket: bool = False
    distribute_cpus_across_cores: bool = False
    strict_cpu_reservation: bool = False
    prefer_align_cpus_by_uncorecache: bool = False

    @classmethod
    def parse(
        cls,
        options: Mapping[str, str],
        feature_gates: Mapping[str, bool] | None = None,
        version: KubeletVersion = DEFAULT_VERSION,
    ) -> StaticPolicyOptions:
        """Read ``cpuManagerPolicyOptions`` (strings, as the configuration has them).

        Raises:
            PolicyOptionError: unknown, not enabled, no boolean, or conflicting options.
        """
        values: dict[str, bool] = {}
        for name, text in options.items():
            option = CPU_MANAGER_OPTIONS.check_available(name, feature_gates or {}, version)
            values[option.name] = parse_go_bool(name, text)
        check_conflicts(CPU_MANAGER_OPTIONS.options, (n for n, on in values.items() if on))
        return cls(**{name.replace("-", "_"): on for name, on in values.items()})

    def check(self, topology: CPUTopology, topology_manager_policy: str) -> None:
        """Check the options against the machine and the topology manager's policy.

        Raises:
            PolicyOptionError: ``align-by-socket`` where it cannot work.
        """
        if not self.align_by_socket:
            return
        if topology_manager_policy == "single-numa-node":
            # The kubelet's own spelling.
            raise PolicyOptionError(
                "Topolgy manager single-numa-node policy is incompatible with "
                "CPUManager align-by-socket policy option"
            )
        if topology.num_sockets > topology.num_numa_nodes:
            raise PolicyOptionError(
                "Align by socket is not compatible with hardware where number of sockets "
                "are more than number of NUMA"
            )


def check_conflicts(options: Iterable[PolicyOption], enabled: Iterable[str]) -> None:
    """Refuse pairs of options that exclude each other.

    Raises:
        PolicyOptionError: naming the first such pair of the table.
    """
    on = set(enabled)
    for option in options:
        for other in option.conflicts:
            if option.name in on and other in on:
                raise PolicyOptionError(
                    f"static policy options {option.name} and {other} "
                    "can not be used at the same time"
                )


def parse_go_bool(name: str, text: str) -> bool:
    """Read a boolean as Go's ``strconv.ParseBool`` does; ``name`` is the option, for the text.

    Raises:
        PolicyOptionError: any other spelling.
    """
    if text in ("1", "t", "T", "true", "TRUE", "True"):
        return True
    if text in ("0", "f", "F", "false", "FALSE", "False"):
        return False
    raise PolicyOptionError(
        f'bad value for option "{name}": strconv.ParseBool: parsing "{text}": invalid syntax'
    )
