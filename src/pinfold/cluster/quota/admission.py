"""What the webhook answers: a review's request is charged, or refused."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Protocol

from pinfold.cluster.quota.review import (
    Asked,
    ClaimAsked,
    Denied,
    NothingAsked,
    PodAsked,
    review,
)
from pinfold.core.quota.charge import Charged, Refused, Request
from pinfold.core.quota.claims import ClaimedCPUs, ClaimRules
from pinfold.core.quota.resource_list import as_text
from pinfold.documents.admission_review import (
    MOST_WARNING,
    AdmissionRequest,
    AdmissionResponse,
    Status,
)


class Charging(Protocol):
    """Charges the quotas of a namespace, all of them or none.

    A charge is written down, and holds for a while also without the object that it is for, which
    another admission plugin may yet refuse.  With ``dry_run`` nothing is written.  Each method
    raises :class:`pinfold.ports.errors.PortError` where that cannot be done now.
    """

    async def charge(self, namespace: str, request: Request, *, dry_run: bool) -> Charged | Refused:
        """Charge a pod, or what it asks for more than it is counted for; by its uid."""

    async def charge_claim(
        self, namespace: str, uid: str, name: str, claimed: ClaimedCPUs, *, dry_run: bool
    ) -> Charged | Refused:
        """Charge a claim."""

    def problems(self) -> Sequence[str]:
        """Why no charge can be made, such as what is not known yet; none where all is well."""


class Admission:
    """Decides about admission requests.

    Args:
        charging: charges quotas.
        rules: which claims are for CPUs.
        heeds_opt_out: whether ``exclusive-cpus: "false"`` counts 0.
    """

    def __init__(
        self, charging: Charging, rules: ClaimRules, *, heeds_opt_out: bool = True
    ) -> None:
        self._charging = charging
        self._rules = rules
        self._heeds_opt_out = heeds_opt_out

    def decide(self, request: AdmissionRequest) -> Awaitable[AdmissionResponse]:
        """The answer; the request itself is needed no more once this has returned.

        What is awaited raises PortError where no decision can be made.
        """
        asked = review(request, self._rules, heeds_opt_out=self._heeds_opt_out)
        dry_run = bool(request.dry_run)
        return self._answer(request.uid, request.namespace or "default", asked, dry_run=dry_run)

    async def _answer(
        self, uid: str, namespace: str, asked: Asked, *, dry_run: bool
    ) -> AdmissionResponse:
        match asked:
            case NothingAsked():
                return AdmissionResponse(uid=uid, allowed=True)
            case Denied(code, reason, message):
                return _denied(uid, Status(code=code, reason=reason, message=message))
            case PodAsked(request):
                found = await self._charging.charge(namespace, request, dry_run=dry_run)
            case ClaimAsked(its, name, claimed, is_template):
                found = await self._charging.charge_claim(
                    namespace, its, name, claimed, dry_run=dry_run or is_template
                )
                if is_template:
                    return _noted(uid, found)
        if isinstance(found, Refused):
            status = Status(code=403, reason="Forbidden", message=found.message)
            return _denied(uid, status, found.quota)
        return _allowed(uid, found)


def _allowed(uid: str, charged: Charged) -> AdmissionResponse:
    listed = "; ".join(f"{name}: {as_text(more)}" for name, more in sorted(charged.charged.items()))
    if not listed:
        return AdmissionResponse(uid=uid, allowed=True)
    return AdmissionResponse(uid=uid, allowed=True, audit_annotations={"charged": listed})


def _denied(uid: str, status: Status, quota: str = "") -> AdmissionResponse:
    if not quota:
        return AdmissionResponse(uid=uid, allowed=False, status=status)
    audit = {"refused-by": quota}
    return AdmissionResponse(uid=uid, allowed=False, status=status, audit_annotations=audit)


def _noted(uid: str, found: Charged | Refused) -> AdmissionResponse:
    """A template takes nothing by itself; that its claims would be refused now is told."""
    if isinstance(found, Charged):
        return AdmissionResponse(uid=uid, allowed=True)
    warning = f"a claim of this template would be refused now: {found.message}"
    return AdmissionResponse(uid=uid, allowed=True, warnings=[warning[:MOST_WARNING]])
