"""Resizes of running containers: what is asked for, and what is answered."""

from __future__ import annotations

from pinfold.admission.moves import resize_document
from pinfold.core.moves.resize_wish import MOST_CPUS
from pinfold.core.pod.pod import CPU
from pinfold.core.values.quantity import Quantity, QuantityError
from pinfold.documents.api import ContainerResize, Resize, ResizeAnswer
from pinfold.node.moves.resizing import Answered
from pinfold.web.answers import Refusal

_PLACE = "spec.containers[0].resources"
_REMEDY = f"write a number of CPUs, {MOST_CPUS} at most"


def asked(body: Resize) -> tuple[str | None, float]:
    """The container, and how many CPUs it is to have, in steps of 0.001.

    Raises:
        Refusal: it asks for something else, or for two numbers of CPUs.
    """
    (one,) = body.spec.containers
    return one.name, _cpus(one)


def _cpus(one: ContainerResize) -> float:
    found: dict[str, Quantity] = {}
    for where, amounts in (("requests", one.resources.requests), ("limits", one.resources.limits)):
        for resource, amount in amounts.items():
            place = f"{_PLACE}.{where}.{resource}"
            if resource != CPU:
                raise Refusal(400, f"{place}: only cpu can be changed", "leave it out")
            try:
                found[where] = Quantity.parse(str(amount))
            except QuantityError as error:
                raise Refusal(400, f"{place}: {error}", _REMEDY) from None
            if not 0 < found[where].milli_value() <= 1000 * MOST_CPUS:
                raise Refusal(400, f"{place}: nobody can have {str(amount)[:40]} CPUs", _REMEDY)
    numbers = set(found.values())
    if len(numbers) != 1:
        raise Refusal(
            400,
            f"{_PLACE}: " + ("two numbers of CPUs" if numbers else "no number of CPUs"),
            "exclusive CPUs are asked for with the same number in requests and limits",
        )
    (number,) = numbers
    whole, rest = divmod(number.milli_value(), 1000)
    return number.milli_value() / 1000 if rest else whole


def answered(answer: Answered) -> ResizeAnswer:
    """The document of an answer."""
    plan = None if answer.moving is None else answer.moving.plan
    return resize_document(ResizeAnswer, answer.pod, answer.cpus, answer.decision, plan)
