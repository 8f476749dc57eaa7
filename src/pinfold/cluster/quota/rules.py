"""What a replica for quotas is told."""

from __future__ import annotations

from msgspec import Struct

from pinfold.core.quota.claims import ClaimRules


class QuotaRules(Struct, frozen=True, kw_only=True):
    """What is counted, and how old what is known may be.

    Attributes:
        claims: which claims of DRA are for CPUs; None: there are none in this cluster.
        heeds_opt_out: whether ``exclusive-cpus: "false"`` counts 0.
        patience: seconds for which what a watch has told is taken for what is.
    """

    claims: ClaimRules | None
    heeds_opt_out: bool
    patience: float
