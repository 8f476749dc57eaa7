"""The pod that ``pinfold run`` asks for."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from typing import Any, Final

import click
from msgspec import Struct, field

from pinfold.cli.output import InputError
from pinfold.core.machine.locality import Localities, Locality, LocalityError
from pinfold.core.machine.machine import Machine
from pinfold.core.pod.api import PodError, quantity_from_api
from pinfold.core.pod.near_wishes import NEAR, NEAR_POLICY, POD, REQUIRED
from pinfold.core.values.names import invalid, subdomain_problems, variable_problems
from pinfold.node.pods.containers import MEMORY_LIMIT

CONTAINER: Final = "main"
_COUNTED_MEMORY: Final = "1Mi"
"""A Guaranteed pod has to ask for memory; this is what counts where no limit is wished."""


class Wishes(Struct, frozen=True):
    """What was given on the command line."""

    name: str
    command: tuple[str, ...]
    cpus: str | None = None
    memory: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    working_dir: str = "/"
    restart: str = "Never"
    whole_environment: bool = True
    """The command inherits the caller's environment (it is the caller's child)."""
    near: tuple[str, ...] = ()
    near_required: bool = False


def run_manifest(wishes: Wishes) -> dict[str, Any]:
    """A Pod with one container.

    Raises:
        InputError: no pod can have this name, or a variable cannot have its.
    """
    for option, text, problems in (
        ("--name", wishes.name, subdomain_problems(wishes.name)),
        *(("--env", name, variable_problems(name)) for name in wishes.env),
    ):
        for problem in problems:
            raise InputError(f"{option}: {invalid(text, problem)}")
    limits = {}
    annotations = {}
    if wishes.cpus is not None:
        limits["cpu"] = _quantity("--cpus", wishes.cpus)
        limits["memory"] = _COUNTED_MEMORY
        annotations[MEMORY_LIMIT] = "none"
    if wishes.memory is not None:
        limits["memory"] = _quantity("--memory", wishes.memory)
        annotations.clear()
    if wishes.near:
        annotations[NEAR + POD] = ",".join(wishes.near)
        if wishes.near_required:
            annotations[NEAR_POLICY + POD] = REQUIRED
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": wishes.name,
            "uid": str(uuid.uuid4()),
            "annotations": annotations,
        },
        "spec": {
            "restartPolicy": wishes.restart,
            "terminationGracePeriodSeconds": 10,
            "containers": [
                {
                    "name": CONTAINER,
                    "command": [word.replace("$", "$$") for word in wishes.command],
                    "workingDir": wishes.working_dir,
                    "env": [
                        {"name": name, "value": value.replace("$", "$$")}
                        for name, value in _environment(wishes).items()
                    ],
                    "resources": {"limits": limits, "requests": limits},
                }
            ],
        },
    }


def near_locality(wishes: Wishes, machine: Machine) -> Locality | None:
    """Where the devices are that ``--near`` names; None, and said, where nobody knows.

    Raises:
        InputError: there is no such device; nobody knows, and ``--near-required`` was given; or
            the command is to have no CPUs of its own.
    """
    cpus = None if wishes.cpus is None else quantity_from_api(wishes.cpus, "--cpus")
    if cpus is None or cpus.milli_value() % 1000:
        raise InputError(
            "--near places CPUs that belong to the command alone; say how many, a whole number: "
            "--cpus 2"
        )
    try:
        place = Localities.of(machine).resolve_all(wishes.near)
    except LocalityError as error:
        raise InputError(f"--near: {error}") from None
    if place.unknown is None:
        return place
    if wishes.near_required:
        raise InputError(f"--near-required: {place.unknown}")
    click.echo(f"pinfold: --near has no effect: {place.unknown}", err=True)
    return None


def _environment(wishes: Wishes) -> Mapping[str, str]:
    """What a detached command is given of the caller's environment: its search path and home."""
    if wishes.whole_environment:
        return wishes.env
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return {**kept, **wishes.env}


def _quantity(option: str, text: str) -> str:
    try:
        if quantity_from_api(text, option).sign <= 0:
            raise InputError(f"{option} {text}: must be more than nothing")
    except PodError as error:
        raise InputError(str(error)) from None
    return text
