"""Resizes of running containers: what is asked for, and what is answered."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from pinfold.admission.moves import move_plan_document
from pinfold.core.pod.pod import CPU
from pinfold.core.values.quantity import Quantity, QuantityError
from pinfold.documents.api import ContainerResize, Resize, ResizeAnswer
from pinfold.documents.move_plan import MovePlan
from pinfold.node.moves.resizing import Answered
from pinfold.web.answers import Refusal

_PLACE = "spec.containers[0].resources"


def asked(body: Resize) -> tuple[str | None, int]:
    """The container, and how many CPUs it is to have; 0 for what is no whole number.

    Raises:
        Refusal: it asks for something else, or for two numbers of CPUs.
    """
    (one,) = body.spec.containers
    return one.name, _cpus(one)


def _cpus(one: ContainerResize) -> int:
    found: dict[str, Quantity] = {}
    for where, amounts in (("requests", one.resources.requests), ("limits", one.resources.limits)):
        for resource, amount in amounts.items():
            place = f"{_PLACE}.{where}.{resource}"
            if resource != CPU:
                raise Refusal(400, f"{place}: only cpu can be changed", "leave it out")
            try:
                found[where] = Quantity.parse(str(amount))
            except QuantityError as error:
                raise Refusal(400, f"{place}: {error}", "write a number of CPUs") from None
    numbers = set(found.values())
    if len(numbers) != 1:
        raise Refusal(
            400,
            f"{_PLACE}: " + ("two numbers of CPUs" if numbers else "no number of CPUs"),
            "exclusive CPUs are asked for with the same number in requests and limits",
        )
    (number,) = numbers
    whole, rest = divmod(number.milli_value(), 1000)
    return 0 if rest else whole


def answered(answer: Answered) -> ResizeAnswer:
    """The document of an answer."""
    decision, moving = answer.decision, answer.moving
    owner = decision.owner
    plan: MovePlan | UnsetType = UNSET
    if moving is not None:
        plan = move_plan_document(moving.plan, "resize", {owner.pod_uid: answer.pod})
    return ResizeAnswer(
        pod=answer.pod,
        container=owner.container,
        cpus=answer.cpus,
        feasible=decision.feasible,
        reason=decision.reason,
        message=decision.message,
        before=str(decision.before),
        after=str(decision.after),
        moves=plan,
    )
