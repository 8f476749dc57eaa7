"""The pod that ``pinfold run`` asks for."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pinfold.cli.output import InputError
from pinfold.core.pod_api import PodError, quantity_from_api
from pinfold.node.containers import MEMORY_LIMIT

CONTAINER: Final = "main"
_COUNTED_MEMORY: Final = "1Mi"
"""A Guaranteed pod has to ask for memory; this is what counts where no limit is wished."""


@dataclass(frozen=True, slots=True)
class Wishes:
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


def run_manifest(wishes: Wishes) -> dict[str, Any]:
    """A Pod with one container."""
    limits = {}
    annotations = {}
    if wishes.cpus is not None:
        limits["cpu"] = _quantity("--cpus", wishes.cpus)
        limits["memory"] = _COUNTED_MEMORY
        annotations[MEMORY_LIMIT] = "none"
    if wishes.memory is not None:
        limits["memory"] = _quantity("--memory", wishes.memory)
        annotations.clear()
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
