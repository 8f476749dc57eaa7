"""As which kubelet an agent decides: configured, of the node, as recorded, or the newest."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from pinfold.adapters.store import DATABASE, SQLiteStore, recorded_kubelet_version
from pinfold.adapters.store.version import BEFORE
from pinfold.admission.model import NodeError
from pinfold.agent import live_kubelet
from pinfold.config.agent import AgentConfig, load_agent_config
from pinfold.config.kubelet import ConfigError
from pinfold.core.kubelet.versions import V1_34, V1_35, V1_36, V1_37, VersionSource
from tests.scenes.agent_process import AgentProcess, an_agent
from tests.scenes.kube_api_peer import Certificates, KubeApiPeer, make_certificates, serving
from tests.scenes.store_contract import form_1

node = pytest.fixture(an_agent)


def of(file: Path, recorded: str = "", *, gates: str = "{}", **section: object) -> AgentConfig:
    document = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "featureGates": yaml.safe_load(gates),
        "pinfold": {"stateDir": str(file.parent / "state"), **section},
    }
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    return load_agent_config(file, lambda _: recorded)


def test_who_is_heard_about_the_version(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    for recorded, configured, version, source in (
        ("", None, V1_36, VersionSource.DEFAULT),
        ("1.34", None, V1_34, VersionSource.RECORD),
        ("1.35.6", None, V1_35, VersionSource.RECORD),
        ("1.34", "1.36", V1_36, VersionSource.CONFIGURATION),
        ("", "v1.35.6", V1_35, VersionSource.CONFIGURATION),
    ):
        section = {} if configured is None else {"kubeletVersion": configured}
        loaded = of(file, recorded, **section)
        assert (loaded.node.kubelet_version, loaded.node.kubelet_version_from) == (version, source)
        assert not loaded.node.version_is_explicit, "an agent resizes as Pinfold does"
        assert loaded.notes == ()


def test_a_proposed_and_an_unknown_version_are_said(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    assert of(file, kubeletVersion="1.37").notes == (
        "what is known of kubelet 1.37 was read from proposals, not recorded",
    )
    newer = of(file, kubeletVersion="1.44")
    assert newer.node.kubelet_version == V1_37
    assert len(newer.notes) == 1
    assert "kubelet 1.44 is not known yet" in newer.notes[0]


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("1.33", "older than all that are known"),
        ("next", 'must be the version of a kubelet in quotes, such as "1.36"'),
        (1.36, 'must be the version of a kubelet in quotes, such as "1.36", not 1.36'),
    ],
)
def test_what_is_no_version_is_refused(tmp_path: Path, version: object, words: str) -> None:
    with pytest.raises(ConfigError, match="kubeletVersion: ") as refused:
        of(tmp_path / "config.yaml", kubeletVersion=version)
    assert words in str(refused.value)


def test_a_new_agent_starts_with_what_the_old_one_was_configured(tmp_path: Path) -> None:
    """A gate that is gone since does not end a node that still decides as the old kubelet."""
    file, gates = tmp_path / "config.yaml", "{MemoryManager: true}"
    assert of(file, "1.34", gates=gates).node.kubelet_version == V1_34
    with pytest.raises(ConfigError, match=r"kubelet 1\.36 has no such gate"):
        of(file, gates=gates)


def test_a_gate_that_the_version_of_the_record_lacks_names_the_way_out(tmp_path: Path) -> None:
    """Nobody here has written 1.34, so it is said where it is from, and what names another."""
    file, gates = tmp_path / "config.yaml", "{PodLevelResourceManagers: true}"
    with pytest.raises(ConfigError) as refused:
        of(file, "1.34", gates=gates)
    assert 'the agent\'s record was begun as 1.34; kubeletVersion: "1.36"' in str(refused.value)
    assert of(file, "1.34", gates=gates, kubeletVersion="1.36").node.kubelet_version == V1_36
    with pytest.raises(ConfigError) as refused:
        of(file, gates=gates, kubeletVersion="1.35")
    assert "record" not in str(refused.value)


def test_the_version_of_a_record(tmp_path: Path) -> None:
    assert recorded_kubelet_version(tmp_path) == "", "there is none"
    database = tmp_path / DATABASE
    form_1(database)
    assert recorded_kubelet_version(tmp_path) == BEFORE == "1.34"
    asyncio.run(SQLiteStore.open(database).close())
    assert recorded_kubelet_version(tmp_path) == "1.34", "the same once it is brought up to date"
    with closing(sqlite3.connect(database)) as record:
        record.execute("UPDATE node SET kubelet_version = '1.36.2'")
        record.commit()
    assert recorded_kubelet_version(tmp_path) == "1.36.2"
    with closing(sqlite3.connect(database)) as record:
        record.execute("DELETE FROM node")
        record.commit()
    assert recorded_kubelet_version(tmp_path) == "", "nothing was ever decided"
    database.write_bytes(b"no database, but as long as one begins" * 40)
    assert recorded_kubelet_version(tmp_path) == "", "opening it says what is wrong"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def peer(certificates: Certificates) -> Iterator[KubeApiPeer]:
    with serving(certificates) as found:
        yield found


def with_nri(file: Path, peer: KubeApiPeer, recorded: str = "", **settings: object) -> AgentConfig:
    kubeconfig = str(peer.kubeconfig(file.parent / "kubeconfig"))
    section = {"runtime": "nri", "kubeconfig": kubeconfig, "nodeName": "node-1", **settings}
    gates = str(section.pop("gates", "{}"))
    return of(file, recorded, gates=gates, **section)


def tell(peer: KubeApiPeer, version: str) -> None:
    peer.objects["/api/v1/nodes/node-1"] = {
        "kind": "Node",
        "metadata": {"name": "node-1", "uid": "u"},
        "status": {"nodeInfo": {"kubeletVersion": version}},
    }


def test_the_version_of_the_kubelet_that_is_there(tmp_path: Path, peer: KubeApiPeer) -> None:
    tell(peer, "v1.35.6+k3s1")
    file = tmp_path / "config.yaml"
    found = asyncio.run(live_kubelet.as_the_kubelet(with_nri(file, peer, "1.34")))
    assert found.node.kubelet_version == V1_35
    assert found.node.kubelet_version_from is VersionSource.NODE
    assert found.notes == ()
    configured = with_nri(file, peer, kubeletVersion="1.36")
    assert asyncio.run(live_kubelet.as_the_kubelet(configured)) is configured
    alone = of(file)
    assert asyncio.run(live_kubelet.as_the_kubelet(alone)) is alone
    tell(peer, "v1.31.2")
    old = asyncio.run(live_kubelet.as_the_kubelet(with_nri(file, peer)))
    assert old.node.kubelet_version == V1_34
    assert "older than all that are known" in old.notes[0]


def test_a_kubelet_that_would_not_start_with_the_configuration(
    tmp_path: Path, peer: KubeApiPeer
) -> None:
    tell(peer, "v1.35.6")
    config = with_nri(tmp_path / "config.yaml", peer, gates="{PodLevelResourceManagers: true}")
    with pytest.raises(NodeError, match=r"kubelet v1\.35\.6 of node node-1 would not start"):
        asyncio.run(live_kubelet.as_the_kubelet(config))


def test_a_node_that_tells_nothing(
    tmp_path: Path, peer: KubeApiPeer, capfd: pytest.CaptureFixture[str]
) -> None:
    config = with_nri(tmp_path / "config.yaml", peer, "1.34")
    assert asyncio.run(live_kubelet.as_the_kubelet(config)) is config, "there is no such Node"
    told = capfd.readouterr()
    assert "decided as kubelet 1.34" in told.out + told.err
    peer.objects["/api/v1/nodes/node-1"] = {"kind": "Node", "metadata": {"name": "node-1"}}
    assert asyncio.run(live_kubelet.as_the_kubelet(config)) is config


def test_an_agent_keeps_the_version_of_its_record(node: AgentProcess) -> None:
    node.config["pinfold"]["kubeletVersion"] = "1.34"
    node.start()
    told = node.client.get("/v1/status")["agent"]["kubelet"]
    assert (told["version"], told["source"]) == ("1.34.9", "configuration")
    assert told["newest"] == "1.36.2"
    assert any(one.startswith("Devices make hints only") for one in told["differences"])
    node.kill()
    assert recorded_kubelet_version(node.state) == "1.34.9"
    del node.config["pinfold"]["kubeletVersion"]
    node.start()
    told = node.client.get("/v1/status")["agent"]["kubelet"]
    assert (told["version"], told["source"]) == ("1.34.9", "record")
    status = node.run("status").stdout
    assert "kubelet 1.34 · CPU manager static" in status
    assert (
        "kubelet 1.34, with which the record was begun; 1.36 (kubeletVersion) differs in"
        in " ".join(status.split())
    )
    node.kill()
    node.config["pinfold"]["kubeletVersion"] = "1.36"
    node.start()
    told = node.client.get("/v1/status")["agent"]["kubelet"]
    assert (told["version"], told["source"]) == ("1.36.2", "configuration")
    assert told["differences"] == []
    (entry,) = node.client.get("/v1/history?kind=configured")["entries"]
    assert entry["document"]["start"] == (
        "decided as kubelet 1.36.2 from now on, and as kubelet 1.34.9 before"
    )
    assert "decided as kubelet 1.36.2 from now on" in node.run("history").stdout
    node.kill()
    del node.config["pinfold"]["kubeletVersion"]
    node.start()
    assert node.client.get("/v1/status")["agent"]["kubelet"]["source"] == "record"
    assert len(node.client.get("/v1/history?kind=configured")["entries"]) == 1
