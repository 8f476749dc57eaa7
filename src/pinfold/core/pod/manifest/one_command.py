"""One command as a pod: what is wished for it, and the manifest that says so.

What is wrong is named by the option of ``pinfold run`` that gave it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct, field

from pinfold.core.machine.locality import Localities, Locality, LocalityError
from pinfold.core.machine.machine import Machine
from pinfold.core.pod.annotations import MEMORY_LIMIT, NEAR, NEAR_POLICY, REQUIRED
from pinfold.core.pod.api import PodError, quantity_from_api
from pinfold.core.values.names import invalid, subdomain_problems, variable_problems

CONTAINER: Final = "main"
_COUNTED_MEMORY: Final = "1Mi"
"""A Guaranteed pod has to ask for memory; this is what counts where no limit is wished."""


class Wishes(Struct, frozen=True):
    """What is wished for one command."""

    name: str
    command: tuple[str, ...]
    cpus: str | None = None
    memory: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    working_dir: str = "/"
    restart: str = "Never"
    near: tuple[str, ...] = ()
    near_required: bool = False


def run_manifest(wishes: Wishes) -> dict[str, Any]:
    """A Pod with one container; it has no uid yet.

    Raises:
        PodError: no pod can have this name, a variable cannot have its, or a size is none.
    """
    for option, text, problems in (
        ("--name", wishes.name, subdomain_problems(wishes.name)),
        *(("--env", name, variable_problems(name)) for name in wishes.env),
    ):
        for problem in problems:
            raise PodError(option, invalid(text, problem))
    limits = {}
    annotations = {}
    if wishes.cpus is not None:
        limits["cpu"] = _quantity("--cpus", wishes.cpus)
        limits["memory"] = _COUNTED_MEMORY
        annotations[MEMORY_LIMIT.key()] = "none"
    if wishes.memory is not None:
        limits["memory"] = _quantity("--memory", wishes.memory)
        annotations.clear()
    if wishes.near:
        annotations[NEAR.key()] = ",".join(wishes.near)
        if wishes.near_required:
            annotations[NEAR_POLICY.key()] = REQUIRED
    container = {
        "name": CONTAINER,
        "command": [_literal(word) for word in wishes.command],
        "workingDir": wishes.working_dir,
        "env": [{"name": name, "value": _literal(value)} for name, value in wishes.env.items()],
        "resources": {"limits": limits, "requests": limits},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": wishes.name, "annotations": annotations},
        "spec": {
            "restartPolicy": wishes.restart,
            "terminationGracePeriodSeconds": 10,
            "containers": [container],
        },
    }


def place_near(wishes: Wishes, machine: Machine) -> Locality:
    """Where the devices are that the command is to be near to, as far as the firmware says.

    Raises:
        PodError: there is no such device; nobody knows where it is, and that is required; or the
            command is to have no CPUs of its own.
    """
    cpus = None if wishes.cpus is None else quantity_from_api(wishes.cpus, "--cpus")
    if cpus is None or cpus.milli_value() % 1000:
        raise PodError(
            "--near",
            "places CPUs that belong to the command alone; say how many, a whole number: --cpus 2",
        )
    try:
        place = Localities.of(machine).resolve_all(wishes.near)
    except LocalityError as error:
        raise PodError("--near", str(error)) from None
    if place.unknown is not None and wishes.near_required:
        raise PodError("--near-required", place.unknown)
    return place


def _literal(text: str) -> str:
    """As a manifest has it: ``$`` would begin a reference."""
    return text.replace("$", "$$")


def _quantity(option: str, text: str) -> str:
    if quantity_from_api(text, option).sign <= 0:
        raise PodError(f"{option} {text}", "must be more than nothing")
    return text
