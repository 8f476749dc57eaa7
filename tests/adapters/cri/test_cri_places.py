"""Where a container runtime listens, which cgroups it makes, and how sizes are named."""

from __future__ import annotations

import socket
import tempfile
from pathlib import Path

import pytest

from pinfold.adapters.cri import (
    CgroupDriver,
    container_cgroup_path,
    find_endpoint,
    pod_cgroup_parent,
    read_endpoint,
)
from pinfold.adapters.cri.resources import from_wire, page_size_name, to_wire
from pinfold.adapters.cri.status import oom_score_floor
from pinfold.logs.layout import file_name
from pinfold.ports.errors import RuntimeFailedError
from pinfold.ports.nri import Resources

CRICTL = "runtime-endpoint: unix:///run/from-crictl.sock\ntimeout: 4\n"


def none(_: str) -> bool:
    return False


def test_a_pod_of_the_longest_name_has_a_folder_for_its_logs(tmp_path: Path) -> None:
    """Namespace, name and uid together are longer than a file name may be."""
    names = [file_name(f"{'n' * 63}_{'x' * 252}{last}_{'u' * 36}") for last in "ab"]
    assert len(set(names)) == 2
    for name in names:
        (tmp_path / name).mkdir()
    assert file_name("default_web_uid") == "default_web_uid"


def test_the_setting_comes_before_everything() -> None:
    environ = {"CONTAINER_RUNTIME_ENDPOINT": "unix:///run/env.sock"}
    found = find_endpoint(environ, CRICTL, none, setting="/run/own.sock")
    assert (found.address, found.path) == ("unix:///run/own.sock", "/run/own.sock")
    assert (found.source, found.timeout) == ("the configuration", 4.0)


def test_then_the_environment_then_crictl_then_the_usual_places() -> None:
    environ = {"CONTAINER_RUNTIME_ENDPOINT": "unix:///run/env.sock"}
    assert find_endpoint(environ, CRICTL, none).address == "unix:///run/env.sock"
    assert find_endpoint({}, CRICTL, none).address == "unix:///run/from-crictl.sock"
    crio = find_endpoint({}, "timeout: 2", lambda path: "crio" in path)
    assert (crio.address, crio.timeout) == ("unix:///run/crio/crio.sock", 2.0)
    both = find_endpoint({}, None, lambda _: True)
    assert both.address == "unix:///run/containerd/containerd.sock"


def test_what_was_looked_for_is_named() -> None:
    with pytest.raises(RuntimeFailedError) as raised:
        find_endpoint({}, None, none)
    for place in ("CONTAINER_RUNTIME_ENDPOINT", "/etc/crictl.yaml", "/run/crio/crio.sock"):
        assert place in raised.value.problem


@pytest.mark.parametrize(
    ("environ", "crictl", "place"),
    [
        ({"CONTAINER_RUNTIME_ENDPOINT": "tcp://1.2.3.4:5"}, None, "CONTAINER_RUNTIME_ENDPOINT"),
        ({"CONTAINER_RUNTIME_ENDPOINT": "run/x.sock"}, None, "CONTAINER_RUNTIME_ENDPOINT"),
        ({}, "runtime-endpoint: 5", "crictl.yaml"),
        ({}, "- a", "crictl.yaml"),
        ({}, "a: [", "crictl.yaml"),
    ],
)
def test_what_cannot_be_used_is_refused(
    environ: dict[str, str], crictl: str | None, place: str
) -> None:
    with pytest.raises(RuntimeFailedError, match=place):
        find_endpoint(environ, crictl, lambda _: True)


def test_a_file_that_cannot_be_read_matters_only_where_it_is_needed(tmp_path: Path) -> None:
    assert read_endpoint("/run/own.sock", crictl_file=tmp_path).path == "/run/own.sock"
    with pytest.raises(RuntimeFailedError, match=str(tmp_path)):
        read_endpoint(crictl_file=tmp_path)


def test_cgroups_of_both_drivers() -> None:
    plain, slices = CgroupDriver.CGROUPFS, CgroupDriver.SYSTEMD
    assert pod_cgroup_parent("pinfold", "a-b", plain) == "/pinfold/poda-b"
    parent = pod_cgroup_parent("pinfold", "a-b", slices)
    assert parent == "/pinfold.slice/pinfold-poda_b.slice"
    assert pod_cgroup_parent("pinfold", "default/web", plain) == "/pinfold/poddefault_web"
    assert container_cgroup_path("/pinfold/poda", "1", plain) == "/pinfold/poda/1"
    assert container_cgroup_path(parent, "1", slices) == f"{parent}/cri-containerd-1.scope"
    assert container_cgroup_path(parent, "1", slices, "cri-o") == f"{parent}/crio-1.scope"


def test_resources_there_and_back() -> None:
    resources = Resources(
        cpu_shares=2, cpu_quota=-1, cpu_period=100000, cpus="0-1", mems="0", memory=1 << 30,
        hugepages={"2MB": 4 << 20}, unified={"cpu.idle": "1"},
    )  # fmt: skip
    assert from_wire(to_wire(resources)) == resources
    assert from_wire(to_wire(Resources())) == Resources()


def test_page_sizes_have_the_kernels_names() -> None:
    assert [page_size_name(size) for size in (64 << 10, 2 << 20, 1 << 30)] == ["64KB", "2MB", "1GB"]
    with pytest.raises(RuntimeFailedError):
        page_size_name(1000)


def test_the_floor_of_oom_scores_is_that_of_who_listens() -> None:
    own = oom_score_floor("/nowhere/at/all.sock")
    with (
        tempfile.TemporaryDirectory(prefix="cri-") as folder,
        socket.socket(socket.AF_UNIX) as listener,
    ):
        listener.bind(f"{folder}/s")
        listener.listen()
        assert oom_score_floor(f"{folder}/s") == own
    assert own in (-1000, int(Path("/proc/self/oom_score_adj").read_text()))
