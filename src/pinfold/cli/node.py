"""What ``plan``, ``explain`` and ``rebalance`` are asked: a node, and what runs on it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from pinfold.adapters.kubernetes.manifests import ManifestError, read_manifests
from pinfold.adapters.machines.source import open_machine
from pinfold.admission.model import NodeError
from pinfold.cli.claim_options import claim_rules
from pinfold.cli.output import input_errors
from pinfold.config.kubelet import ConfigError, config_notes, load_kubelet_config
from pinfold.config.settings import SettingError, override
from pinfold.core.devices.classes import NO_CLASSES, DeviceClasses
from pinfold.core.devices.devices import DeviceInventory
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.kubelet.versions import NamedVersion, VersionSource
from pinfold.core.machine.kernel import Kernel
from pinfold.core.machine.machine import Machine, MachineError
from pinfold.core.moves.resize_wish import ResizeError, ResizeWish
from pinfold.core.pod.pod import Pod
from pinfold.planning.planner import Plan, Planner
from pinfold.planning.quotas import PlannedQuotas
from pinfold.planning.resource_notes import class_notes


class Request(Struct, frozen=True):
    """What was asked: a node to plan on, the pods, and notes on what was passed over."""

    planner: Planner
    pods: tuple[Pod, ...]
    notes: tuple[str, ...]
    config_name: str

    @property
    def title(self) -> str:
        """The machine's name."""
        return self.planner.machine.name


def load_request(manifests: tuple[str, ...], options: Mapping[str, Any]) -> Request:
    """Read machine, configuration and manifests; exits with one clear line if they are bad."""
    config_file = options.get("kubelet_config")
    config, notes = load_config(config_file, options)
    with input_errors(MachineError, ManifestError, NodeError):
        machine = open_machine(options.get("machine"))
        devices, device_notes = load_devices(options.get("devices"), machine)
        kernel = Kernel() if config.own is None else kernel_of(options.get("machine"))
        claims = claim_rules(options)
        read = read_manifests(manifests, own=config.own is not None, claims=claims)
        planner = Planner(
            machine,
            config,
            devices=devices,
            classes=DeviceClasses.on_node(read.classes, read.compute_resources, machine.name),
            kernel=kernel,
            quotas=PlannedQuotas.of(
                read.quotas, read.counted, read.claims, read.templates, claims.capacity
            ),
        )
    name = Path(config_file).name if config_file else "as configured"
    notes = (*notes, *device_notes, *read.notes, *_class_notes(planner, read.pods))
    if read.nodes:
        count = len(read.nodes)
        notes = (*notes, f"{count} Node{'s' * (count != 1)}: left out without plan --node")
    return Request(planner, read.pods, notes, name)


def _class_notes(planner: Planner, pods: tuple[Pod, ...]) -> tuple[str, ...]:
    if planner.classes is NO_CLASSES:
        return ()
    return tuple(class_notes(planner, pods))


def kernel_of(machine: str | None) -> Kernel:
    """What is known of the kernel of a machine, from where ``--machine`` says."""
    from pinfold.adapters.machines.node_facts import (  # noqa: PLC0415 - 5 ms: many ask no agent
        open_settings,
        read_kernel,
    )

    return read_kernel(open_settings(machine))


def placed_pods(planner: Planner, pods: Iterable[Pod], resizes: Iterable[str]) -> Plan:
    """The pods placed, and resized as ``--resize`` says; exits with one line if that is bad."""
    with input_errors(ResizeError, prefix="--resize: "):
        wishes = [ResizeWish.parse(text) for text in resizes]
        placed = planner.plan(pods)
        for wish in wishes:
            placed = planner.resize(placed, wish)
    return placed


def load_devices(
    file: str | None, machine: Machine
) -> tuple[DeviceInventory | None, tuple[str, ...]]:
    """The devices of ``--devices``, and notes on them; exits with one line if the file is bad."""
    if file is None:
        return None, ()
    from pinfold.config.devices_file import ConfigError, load_devices  # noqa: PLC0415 - 5.1 ms

    with input_errors(MachineError, ConfigError):
        loaded = load_devices(file, machine)
    return loaded.inventory, tuple(f"{file}: {note}" for note in loaded.notes)


def load_config(file: str | None, options: Mapping[str, Any]) -> tuple[NodeConfig, tuple[str, ...]]:
    """Read a configuration file, if any, and apply the flags."""
    asked: NamedVersion | None = options.get("kubelet_version")
    base = NodeConfig()
    said: tuple[str, ...] = ()
    if asked is not None:
        base = replace(base, kubelet_version=asked.version, kubelet_version_from=VersionSource.FLAG)
        said = (asked.remark,) if asked.remark else ()
    with input_errors(MachineError, ConfigError, SettingError):
        if file is None:
            config = override(base, options)
            return config, (*said, *config_notes(config))
        loaded = load_kubelet_config(file, base)
        config = override(loaded.config, options)
        return config, (*said, *loaded.notes, *config_notes(config, loaded.config))
