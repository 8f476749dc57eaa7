"""The feature gates that bear on the resource managers, with their defaults in kubelet 1.34."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pinfold.core.policy_options import Maturity


@dataclass(frozen=True, slots=True)
class FeatureGate:
    """One row of the table; ``effect`` is what it does to a placement."""

    name: str
    default: bool
    maturity: Maturity
    effect: str


FEATURE_GATES: Final = (
    FeatureGate(
        "CPUManagerPolicyAlphaOptions",
        default=False,
        maturity=Maturity.ALPHA,
        effect="Allows the alpha options of the CPU manager.",
    ),
    FeatureGate(
        "CPUManagerPolicyBetaOptions",
        default=True,
        maturity=Maturity.BETA,
        effect="Allows the beta options of the CPU manager.",
    ),
    FeatureGate(
        "TopologyManagerPolicyAlphaOptions",
        default=False,
        maturity=Maturity.ALPHA,
        effect="Allows the alpha options of the topology manager.",
    ),
    FeatureGate(
        "TopologyManagerPolicyBetaOptions",
        default=True,
        maturity=Maturity.BETA,
        effect="Allows the beta options of the topology manager.",
    ),
    FeatureGate(
        "DisableCPUQuotaWithExclusiveCPUs",
        default=True,
        maturity=Maturity.BETA,
        effect="Leaves containers with exclusive CPUs without a CPU quota.",
    ),
    FeatureGate(
        "PodLevelResources",
        default=True,
        maturity=Maturity.BETA,
        effect="Lets a pod ask for resources as a whole.",
    ),
)
"""Other gates are accepted and have no effect on a placement."""
