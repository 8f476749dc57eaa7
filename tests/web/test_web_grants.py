"""Memory and devices of containers in the status, and in the picture that is made of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from pinfold.cli import main
from pinfold.core.devices.devices import Device
from pinfold.core.machine.kubelet_view import kubelet_view
from pinfold.core.machine.short_form import parse_short_form
from pinfold.documents.node import Node
from pinfold.documents.status import Status
from pinfold.render.terminal import Style
from pinfold.render.text import render_plan
from pinfold.views.status import Hardware, status_view
from tests.scenes.manager_harness import ALL_MANAGERS, manifest
from tests.scenes.published_schemas import machine_document
from tests.scenes.waiting import wait_until
from tests.scenes.web_world import Served, phase, served

GPU = "example.com/gpu"
USB = "example.com/usb"
MIB = 1 << 20


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "s", machine="2s4c1t", config=ALL_MANAGERS) as server:
        plugins = server.node.plugins
        gpus = [Device(f"g{n}", healthy=n != 3, numa_nodes=(n // 2,)) for n in range(4)]
        server.do(lambda: plugins.put_devices(GPU, *gpus))
        server.do(lambda: plugins.put_devices(USB, Device("u1"), Device("u2")))
        server.call(server.node.health.take(plugins.inventory()))
        yield server


def container(api: Served, pod: str) -> dict[str, Any]:
    found: dict[str, Any] = api.ask("GET", f"/v1/pods/default/{pod}").json["containers"][0]
    return found


def given(found: dict[str, Any]) -> tuple[Any, Any, Any]:
    return found["numa_nodes"], found["memory"], found["devices"]


def test_a_container_with_memory_and_devices(api: Served) -> None:
    api.ask("POST", "/v1/pods", manifest("app", "2", more={GPU: "2", USB: "1"}))
    wait_until(lambda: phase(api, "app") == "Running")
    assert given(container(api, "app")) == (
        [0],
        [{"type": "memory", "size": 64 * MIB, "numa_nodes": [0]}],
        {GPU: ["g0", "g1"], USB: ["u1"]},
    )
    listed = api.ask("GET", "/v1/status").json["pods"][0]["containers"][0]
    assert listed == container(api, "app")


def test_one_without_and_one_that_has_ended_have_none(api: Served) -> None:
    api.ask("POST", "/v1/pods", manifest("plain", ""))
    api.ask("POST", "/v1/pods", manifest("wide", "99", more={GPU: "1"}))
    wait_until(lambda: phase(api, "plain") == "Running")
    assert given(container(api, "plain")) == ([], [], {})
    assert given(container(api, "wide")) == ([], [], {})


def test_an_init_container_that_is_done_has_handed_on_what_it_had(api: Served) -> None:
    document = manifest("app", "1", init=("1",), more={GPU: "1"})
    api.ask("POST", "/v1/pods", document)

    def init_runs() -> bool:
        return bool(container(api, "app")["pid"])

    wait_until(init_runs)
    assert container(api, "app")["devices"] == {GPU: ["g0"]}
    (status,) = api.do(api.node.runtime.known)
    api.do(lambda: api.node.runtime.exit(status.id, 0))
    wait_until(lambda: api.ask("GET", "/v1/pods/default/app").json["containers"][1]["pid"])
    assert given(container(api, "app")) == ([], [], {})
    main = api.ask("GET", "/v1/pods/default/app").json["containers"][1]
    assert main["devices"] == {GPU: ["g0"]}


def picture(api: Served, *, connected: bool = True) -> str:
    machine = parse_short_form(api.node.machine)
    status = api.ask("GET", "/v1/status").json
    allocatable = 2 if connected else 0
    plugins = {
        USB: {"capacity": 2, "allocatable": allocatable, "in_use": 1, "connected": connected}
    }
    status["agent"]["devicePlugins"] = {"folder": None, "resources": plugins}
    view = status_view(
        msgspec.convert(status, Status),
        Hardware.told(machine_document(machine, kubelet_view(machine))),
        msgspec.convert(api.ask("GET", "/v1/node").json, Node),
    )
    return render_plan(view, Style(width=100))


def test_the_picture_has_them(api: Served) -> None:
    api.ask("POST", "/v1/pods", manifest("app", "2", more={GPU: "2", USB: "1"}))
    wait_until(lambda: phase(api, "app") == "Running")
    text = picture(api)
    assert "topology manager restricted · memory manager Static" in text
    assert "memory 64 MiB on NUMA node 0" in text
    assert f"{GPU}: g0, g1" in text
    assert f"{USB}: u1" in text
    assert "2 of 2" in text
    assert "0 of 1, 1 unhealthy" in text
    assert "1 of 2" in text, "devices that are nowhere"


def test_a_node_without_any_of_it_has_no_panel(tmp_path: Path) -> None:
    with served(tmp_path / "plain") as server:
        status = server.ask("GET", "/v1/status").json
        machine = parse_short_form(server.node.machine)
        hardware = Hardware.told(machine_document(machine, kubelet_view(machine)))
        node = msgspec.convert(server.ask("GET", "/v1/node").json, Node)
        assert status_view(msgspec.convert(status, Status), hardware, node).numa == ()


def test_devices_without_their_plugin_are_told_as_used(api: Served) -> None:
    api.ask("POST", "/v1/pods", manifest("app", "2", more={GPU: "2", USB: "1"}))
    wait_until(lambda: phase(api, "app") == "Running")
    assert api.ask("GET", "/v1/status").json["unhealthy_in_use"] == {}
    for resource in (GPU, USB):
        api.do(partial(api.node.plugins.disconnect, resource))
    api.call(api.node.health.take(api.node.plugins.inventory()))
    assert phase(api, "app") == "Running"
    assert api.ask("GET", "/v1/status").json["unhealthy_in_use"] == {
        GPU: {"0": 2},
        USB: {"none": 1},
    }
    text = picture(api, connected=False)
    assert text.count("0 of 0, 2 unhealthy (2 used)") == 1
    assert text.count("0 of 0, 2 unhealthy (1 used)") == 1
    # Of the GPUs of the other node, too; and on the map.
    assert text.count("0 of 0, 2 unhealthy") == 5


def explain(api: Served, pod: str, *options: str) -> str:
    result = CliRunner().invoke(main, ["explain", pod, "--socket", str(api.path), *options])
    assert result.exit_code == 0, result.output
    return result.output


def test_a_pod_whose_device_failed_was_not_rejected(api: Served) -> None:
    api.ask("POST", "/v1/pods", manifest("app", "2", more={GPU: "2"}))
    api.ask("POST", "/v1/pods", manifest("wide", "99", more={GPU: "1"}))
    api.ask("POST", "/v1/pods", manifest("well", ""))
    wait_until(lambda: phase(api, "app") == "Running")
    assert "ended" not in explain(api, "pod/app")
    assert "ended" not in json.loads(explain(api, "pod/app", "-o", "json"))

    plugins = api.node.plugins
    gpus = [Device(f"g{n}", healthy=n > 1, numa_nodes=(n // 2,)) for n in range(4)]
    api.do(lambda: plugins.put_devices(GPU, *gpus))
    api.call(api.node.health.take(plugins.inventory()))
    wait_until(lambda: phase(api, "app") == "Failed")
    text = explain(api, "pod/app")
    assert text.startswith("✗ default/app\n  admitted  Guaranteed\n")
    assert f"  ended: UnhealthyDevice: device g0 of {GPU} is unhealthy\n" in text
    assert json.loads(explain(api, "pod/app", "-o", "json"))["ended"] == {
        "phase": "Failed",
        "reason": "UnhealthyDevice",
        "message": f"device g0 of {GPU} is unhealthy",
    }
    assert "Pods  1 admitted, 1 failed, 1 rejected" in picture(api)
