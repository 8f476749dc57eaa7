"""What ``plan`` says of volumes in memory, which a kubelet places nowhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pinfold.cli import main

ALIGNED = """
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cpuManagerPolicy: static
memoryManagerPolicy: Static
topologyManagerPolicy: single-numa-node
reservedSystemCPUs: "0"
systemReserved: {memory: 1Gi}
evictionHard: {memory.available: 100Mi}
reservedMemory: [{numaNode: 0, limits: {memory: 1124Mi}}]
"""


def notes(
    folder: Path, *, config: str = ALIGNED, medium: str = "Memory", **fields: Any
) -> list[str]:
    """What a plan of a pod with a volume says of volumes."""
    settings = {"machine": "2s4c2t", "limits": {"cpu": 2, "memory": "1Gi"}, **fields}
    container = {"name": "app", "resources": {"limits": settings["limits"]}}
    volume = {"name": "fast", "emptyDir": {"medium": medium}}
    spec = {"containers": [container], "volumes": [volume]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "feed"}, "spec": spec}
    (folder / "pod.json").write_text(json.dumps(pod))
    (folder / "kubelet.yaml").write_text(config)
    words = ["plan", "--machine", settings["machine"], "-o", "json", str(folder / "pod.json")]
    done = CliRunner().invoke(main, [*words, "--kubelet-config", str(folder / "kubelet.yaml")])
    assert done.exit_code == 0, done.output
    return [one for one in json.loads(done.stdout).get("notes", ()) if "volume" in one]


def test_a_kubelet_leaves_it_to_whoever_touches_it(tmp_path: Path) -> None:
    (told,) = notes(tmp_path)
    assert told.startswith("pod default/feed: volume fast is in memory: a page is on the NUMA")
    assert notes(tmp_path, config=f"{ALIGNED}pinfold: {{runtime: nri}}\n")


@pytest.mark.parametrize(
    "fields",
    [
        {"medium": ""},
        {"machine": "1s8c2t"},
        {"limits": {"cpu": 2}},
        {"config": ALIGNED.replace("memoryManagerPolicy: Static\n", "").replace("reservedM", "#")},
        # An agent that runs pods itself binds it.
        {"config": f"{ALIGNED}pinfold: {{runtime: process}}\n"},
    ],
)
def test_where_nothing_is_left_to_chance_or_nothing_is_aligned(
    tmp_path: Path, fields: dict[str, Any]
) -> None:
    assert notes(tmp_path, **fields) == []
