"""The file of devices for a plan: whatever is read can be planned with."""

from __future__ import annotations

import tempfile
from typing import Final

from msgspec.structs import replace

from fuzz import seeds
from fuzz.engine import Target
from pinfold.config.devices_file import ConfigError, load_devices
from pinfold.core.devices.devices import Device, DeviceResource
from pinfold.core.devices.state import DeviceState
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.machine.machine import Machine, PCIFunction
from pinfold.core.machine.short_form import parse_short_form
from pinfold.core.pod.pod import Container, Pod
from pinfold.core.values.quantity import Quantity
from pinfold.planning.plan_document import plan_document
from pinfold.planning.planner import Planner
from pinfold.state.device_checkpoint import checkpoint_of

_WORDS: Final = (
    b"kind: Devices",
    b"version: 1",
    b"resources:",
    b"count",
    b"numa",
    b"near",
    b"unhealthy",
    b"devices",
    b"health",
    b"Unhealthy",
    b"eth0",
    b"3b:00.0",
    b"null",
    b"{0: 2, 1: 1}",
    b"example.com/gpu",
    b"RegisteredDevices",
    b"PodDeviceEntries",
)
_SMALL: Final = 500
"""More devices are read, but not planned with: one input must not take seconds."""


def _machine() -> Machine:
    plain = parse_short_form("2s2c1t")
    return replace(
        plain,
        pci=(
            PCIFunction("0000:3b:00.0", "0x020000", 0, None, ("eth0",)),
            PCIFunction("0000:af:00.0", "0x020000", -1, None, ("eth1",)),
        ),
    )


_MACHINE: Final = _machine()


def run_devices(data: bytes) -> None:
    """Files of kind Devices and kubelet_internal_checkpoint."""
    with tempfile.NamedTemporaryFile(suffix=".yaml") as file:
        file.write(data)
        file.flush()
        try:
            loaded = load_devices(file.name, _MACHINE)
        except ConfigError as error:
            _hold(str(error).startswith(file.name), "an error that does not name the file")
            _hold(str(error).isprintable(), "an error that moves the cursor")
            return
    inventory = loaded.inventory
    if sum(len(resource.devices) for resource in inventory.values()) > _SMALL:
        return
    one = dict.fromkeys(inventory, Quantity(1))
    pod = Pod(uid="u", name="p", containers=(Container("c", one, one),))
    config = NodeConfig(topology_manager_policy="restricted")
    plan = Planner(_MACHINE, config, devices=inventory).plan([pod])
    document = plan_document(plan)
    _hold(document.devices.keys() == inventory.keys(), "a resource that is not counted")
    [container] = plan.pods[0].containers
    if plan.pods[0].admitted:
        _hold(container.devices.keys() == inventory.keys(), "a resource that is not given")


def _hold(fact: object, text: str) -> None:
    if not fact:
        raise AssertionError(text)


def _files() -> list[bytes]:
    listed = {"a.b/c": DeviceResource("a.b/c", {"x": Device("x"), "y": Device("y")})}
    return [
        *seeds.files("examples/gpu-node/devices.yaml"),
        checkpoint_of(DeviceState(listed), {}).encode(),
        (
            b"kind: Devices\nversion: 1\nresources:\n"
            b"  a.b/gpu: {count: 3, numa: [0, null, [0, 1]]}\n"
            b"  a.b/nic: {numa: {0: 2, 1: 1}, unhealthy: [nic-0]}\n  a.b/loose: 2\n"
            b"  a.b/vf:\n    devices: [x, {id: y, near: eth1, health: Unhealthy}]\n"
        ),
        b'{"kind": "Devices", "version": 1, "resources": {"a.b/c": {"near": ["eth0", "3b:00.0"]}}}',
    ]


DEVICES_TARGET: Final = Target("devices", run_devices, _files, _WORDS)
