"""The options that say which claims of Dynamic Resource Allocation are for CPUs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from pinfold.cli.output import F
from pinfold.core.quota.claims import DEFAULT_DRIVER, ClaimRules


def claim_options(command: F) -> F:
    """``--claim-driver``, ``--claim-class``, ``--claim-capacity``, ``--claim-devices-are-cpus``."""
    command = click.option(
        "--claim-devices-are-cpus",
        is_flag=True,
        help="Each device of the driver is one CPU, and a claim asks for a number of them.",
    )(command)
    command = click.option(
        "--claim-capacity",
        metavar="NAME",
        help="What a CPU is called in a device's capacity.  [default: DRIVER/cpu]",
    )(command)
    command = click.option(
        "--claim-class",
        "claim_classes",
        metavar="CLASS",
        multiple=True,
        help="A DeviceClass of its devices; may be given several times.  "
        "[default: the driver's name]",
    )(command)
    return click.option(
        "--claim-driver",
        metavar="NAME",
        default=DEFAULT_DRIVER,
        show_default=True,
        help="The driver that gives CPUs to claims, as quotas count them.",
    )(command)


def claim_rules(options: Mapping[str, Any]) -> ClaimRules:
    """What the options say; the official driver's where a command has none."""
    driver = options.get("claim_driver") or DEFAULT_DRIVER
    return ClaimRules(
        driver,
        tuple(options.get("claim_classes") or ()) or (driver,),
        options.get("claim_capacity") or f"{driver}/cpu",
        bool(options.get("claim_devices_are_cpus")),
    )
