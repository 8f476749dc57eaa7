"""Whatever is in the ConfigMap of a node, ``plan`` answers or says in one line what is wrong."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pinfold.cli import main
from tests.scenes.kube_api_peer import KubeApiPeer, make_certificates, serving
from tests.scenes.live_cluster import LiveCluster, live_pod, published_map

_NAMES = st.sampled_from(
    ["version", "node", "program", "configuration", "reserved", "shared", "assignments", "pinfold",
     "bubbles", "offline", "cpuManagerPolicy", "kind", "apiVersion", "uid-of-a", "main", "cpus",
     "numa", "online", "kubeletVersion", "runtime", "maxPods"]
)  # fmt: skip
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 1 << 70) | st.sampled_from(["", "0-3", "x", "99-"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_NAMES, inner, max_size=4),
    max_leaves=12,
)


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeApiPeer]:
    with serving(make_certificates(tmp_path_factory.mktemp("tls"))) as peer:
        yield peer


def _over(whole: Any, part: Any) -> Any:
    """A document with something else somewhere in it."""
    if not (isinstance(whole, dict) and isinstance(part, dict)):
        return part
    return {**whole, **{key: _over(whole.get(key), one) for key, one in part.items()}}


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(_JSON, st.sampled_from(["node.json", "machine.json.gz"]))
def test_any_json_is_planned_or_one_line(
    peer: KubeApiPeer, tmp_path_factory: pytest.TempPathFactory, other: Any, key: str
) -> None:
    told = published_map("n1", "1s4c2t", {"uid-of-a": {"main": "2-3"}})
    if key == "node.json":
        text = json.dumps(_over(json.loads(told["data"][key]), other))
        told["data"][key] = text
    else:
        packed = base64.b64decode(told["binaryData"][key])
        text = json.dumps(_over(json.loads(gzip.decompress(packed)), other))
        told["binaryData"][key] = base64.b64encode(gzip.compress(text.encode())).decode()
    cluster = LiveCluster(published={"n1": told}).behind(peer)
    cluster.node("n1", live_pod("a", "n1"), cpus=8)
    file = peer.kubeconfig(tmp_path_factory.getbasetemp() / "kubeconfig")
    done = CliRunner().invoke(main, ["plan", "--node", "n1", "--kubeconfig", str(file)])
    assert done.exit_code in {0, 1, 2}, text
    assert done.exception is None or isinstance(done.exception, SystemExit), text
    if done.exit_code:
        assert done.output.startswith("Error: "), text
        assert done.output.count("\n") == 1, text
