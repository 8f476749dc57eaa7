"""How a KubeletConfiguration is written: drop-ins over a file, and what else is in the file."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pinfold.config.kubelet import ConfigError, LoadedConfig, load_kubelet_config
from pinfold.config.written import read_config
from pinfold.core.kubelet.eviction import DEFAULT_EVICTION_HARD
from pinfold.core.values.quantity import Quantity

HEADER = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
KUBEADM = f"""
apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
---
{HEADER}maxPods: 7
---
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
"""

Load = Callable[..., LoadedConfig]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Write a file, and its drop-ins by name; load all."""

    def from_texts(main: str | None, drop_ins: Mapping[str, str] | None = None) -> LoadedConfig:
        path = tmp_path / "kubelet.yaml"
        if main is not None:
            path.write_text(HEADER + main)
        folder = tmp_path / "conf.d"
        folder.mkdir(exist_ok=True)
        for name, text in (drop_ins or {}).items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(HEADER + text)
        return load_kubelet_config(str(path), config_dir=str(folder))

    return from_texts


def test_drop_ins_are_laid_over_the_file_by_name(load: Load) -> None:
    loaded = load(
        "cpuManagerPolicy: none\nmaxPods: 1\nkubeReserved: {cpu: 500m, memory: 1Gi}\n"
        "reservedMemory: [{numaNode: 0, limits: {memory: 1Gi}}]\n",
        {
            "20-b.conf": "maxPods: 3\n",
            "10-a.conf": "maxPods: 2\ncpuManagerPolicy: static\nkubeReserved: {cpu: '1'}\n",
            "15-z/b.conf": "podsPerCore: 5\nmaxPods: 9\n",
            "15-z/a.conf": "podsPerCore: 4\n",
            "9.conf": "reservedMemory: [{numaNode: 1, limits: {memory: 2Gi}}]\n",
        },
    )
    config = loaded.config
    # 10-a.conf, 15-z/a.conf, 15-z/b.conf, 20-b.conf, 9.conf
    assert (config.cpu_manager_policy, config.max_pods, config.pods_per_core) == ("static", 3, 5)
    assert config.kube_reserved == {"cpu": Quantity.parse("1"), "memory": Quantity.parse("1Gi")}
    assert [one["numaNode"] for one in config.reserved_memory] == [1]
    assert loaded.notes == ()


def test_only_conf_files_count(load: Load) -> None:
    others = {"10.yaml": "maxPods: 1", "10.conf.bak": "maxPods: 2", "README": "maxPods: 3"}
    loaded = load("maxPods: 7\n", others)
    assert loaded.config.max_pods == 7
    [note] = loaded.notes
    assert note.endswith("conf.d: no file *.conf in it")
    # The extension is what counts, and not that there is a name before it.
    assert load("maxPods: 7\n", {".conf": "maxPods: 8\n"}).config.max_pods == 8


def test_drop_ins_do_without_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.conf").write_text(f"{HEADER}maxPods: 12\n")
    written = read_config(None, str(tmp_path))
    assert written.name == str(tmp_path)
    assert written.fields["maxPods"] == 12
    assert written.fields["evictionHard"] == DEFAULT_EVICTION_HARD


def test_null_takes_back_and_zero_is_the_default(load: Load) -> None:
    main = "maxPods: 7\nkubeReserved: {cpu: 1000m, memory: 1Gi}\n"
    config = load(main, {"a.conf": "maxPods: null\nkubeReserved: {cpu: null}\n"}).config
    assert config.max_pods == 110
    assert list(config.kube_reserved) == ["memory"]
    assert load(main, {"a.conf": "maxPods: 0\n"}).config.max_pods == 110


def test_thresholds_are_laid_over_the_defaults_which_a_file_replaces(load: Load) -> None:
    drop_in = {"a.conf": "evictionHard: {memory.available: 1Gi}\n"}
    merged = {**DEFAULT_EVICTION_HARD, "memory.available": "1Gi"}
    assert load("", drop_in).config.eviction_hard == merged
    there = load("evictionHard: {nodefs.available: 5%}\n", drop_in).config.eviction_hard
    assert there == {"nodefs.available": "5%", "memory.available": "1Gi"}
    with_defaults = "evictionHard: {nodefs.available: 5%}\nmergeDefaultEvictionSettings: true\n"
    assert load(with_defaults, drop_in).config.eviction_hard == {
        **merged,
        "nodefs.available": "5%",
    }
    # A drop-in that says so comes too late for the kubelet.
    late = {"a.conf": "mergeDefaultEvictionSettings: true\n"}
    only = load("evictionHard: {nodefs.available: 5%}\n", late).config.eviction_hard
    assert only == {"nodefs.available": "5%"}
    gone = load("evictionHard: {nodefs.available: 5%}\n", {"a.conf": "evictionHard: null\n"})
    assert gone.config.eviction_hard == {}


@pytest.mark.parametrize(
    ("main", "drop_ins", "at_fault"),
    [
        ("maxPods: -1\n", {"a.conf": "podsPerCore: 1\n"}, "kubelet.yaml: maxPods"),
        ("", {"a.conf": "", "b.conf": "maxPods: many\n"}, "conf.d/b.conf: maxPods"),
        (
            "",
            {"a.conf": "kubeReserved: {cpu: 1X}\n", "b.conf": "kubeReserved: {memory: 1Gi}\n"},
            "conf.d/a.conf: kubeReserved",
        ),
        (
            "",
            {"a.conf": "featureGates: {CPUManagerPolicyAlphaOption: true}\n"},
            "conf.d/a.conf: featureGates",
        ),
        ("", {"a.conf": "pinfold: {stateDir: here}\n"}, "conf.d/a.conf: pinfold"),
        # Neither is wrong by itself.
        (
            "reservedSystemCPUs: '0'\n",
            {"a.conf": "kubeReservedCgroup: /kube\n"},
            "kubelet.yaml with .*conf.d: invalid configuration: can't use reservedSystemCPUs",
        ),
    ],
)
def test_the_file_at_fault_is_named(
    load: Load, main: str, drop_ins: dict[str, str], at_fault: str
) -> None:
    with pytest.raises(ConfigError, match=at_fault) as caught:
        load(main, drop_ins)
    error = caught.value
    assert f"{error.where}: {error.problem}" == str(error)
    assert pickle.loads(pickle.dumps(error)).where == error.where  # noqa: S301 - our own bytes


def test_two_files_with_one_name_in_a_message_are_told_apart(load: Load) -> None:
    """What a file is called says nothing of what is wrong in it."""
    drop_ins = {"maxPods: .conf": "", "z.conf": "maxPods: many\n"}
    with pytest.raises(ConfigError) as caught:
        load("", drop_ins)
    assert caught.value.where.endswith("/z.conf")
    assert caught.value.problem.startswith("maxPods: ")


def test_what_is_unknown_is_noted_with_its_file(load: Load) -> None:
    loaded = load("maxPodz: 1\n", {"a.conf": "cpuManagerPolcy: static\n"})
    first, second = loaded.notes
    assert "kubelet.yaml: unknown field maxPodz" in first
    assert "conf.d/a.conf: unknown field cpuManagerPolcy" in second


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("maxPods: 1\n", "a.conf: no KubeletConfiguration"),
        ("apiVersion: v1\nkind: KubeletConfiguration\n", "a.conf: no KubeletConfiguration"),
        ("", "a.conf: .*nothing"),
        ("a: [\n", "a.conf: line"),
        (json.dumps({"kubeletconfig": {}}), "a.conf: no KubeletConfiguration"),
    ],
)
def test_a_drop_in_that_is_none_stops(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "a.conf").write_text(text)
    with pytest.raises(ConfigError, match=problem):
        read_config(None, str(tmp_path))


def test_folders_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere: No such file or directory; --config-dir takes"):
        read_config(None, str(tmp_path / "nowhere"))
    file = tmp_path / "a.conf"
    file.write_text(HEADER)
    with pytest.raises(ConfigError, match=r"a.conf: not a folder; --config-dir takes"):
        read_config(None, str(file))


def test_links_are_followed_as_by_the_kubelet(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (real / "a.conf").write_text(f"{HEADER}maxPods: 5\n")
    link = tmp_path / "link"
    link.symlink_to(real)
    unread = read_config(None, str(link))
    assert "maxPods" not in unread.fields
    assert "a symbolic link, which a kubelet does not follow" in unread.notes[0]
    assert read_config(None, f"{link}{os.sep}").fields["maxPods"] == 5
    inside = tmp_path / "conf.d"
    inside.mkdir()
    (inside / "below").symlink_to(real)
    assert "maxPods" not in read_config(None, str(inside)).fields
    (inside / "b.conf").symlink_to(real / "a.conf")
    assert read_config(None, str(inside)).fields["maxPods"] == 5
    (inside / "c.conf").symlink_to(real)
    with pytest.raises(ConfigError, match=r"c.conf: Is a directory"):
        read_config(None, str(inside))


def test_of_several_documents_the_configuration_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "kubeadm.yaml"
    path.write_text(KUBEADM)
    loaded = load_kubelet_config(str(path))
    assert loaded.config.max_pods == 7
    [note] = loaded.notes
    assert note.endswith(
        "left out beside the KubeletConfiguration: InitConfiguration (line 2), "
        "ClusterConfiguration (line 5), KubeProxyConfiguration (line 12)"
    )
    path.write_text(KUBEADM.replace("KubeletConfiguration", "Kubelet"))
    with pytest.raises(ConfigError, match="no KubeletConfiguration in it, but 'InitConfiguration'"):
        load_kubelet_config(str(path))
    path.write_text(f"{KUBEADM}---\n{HEADER}")
    with pytest.raises(ConfigError, match=r"2 documents of kind .*line 8 and line 15.*config-dir"):
        load_kubelet_config(str(path))


def test_a_config_map_without_it_says_where_it_is(tmp_path: Path) -> None:
    path = tmp_path / "cm.yaml"
    path.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "b"}}))
    with pytest.raises(ConfigError, match="kubectl -n kube-system get configmap kubelet-config"):
        load_kubelet_config(str(path))


_NAMES = st.sampled_from(["a", "b", "c"])
_FIELDS = st.recursive(
    st.none() | st.integers(0, 3) | st.lists(st.integers(0, 3), max_size=2),
    lambda below: st.dictionaries(_NAMES, below, max_size=3),
    max_leaves=6,
)
_PATCHES = st.dictionaries(_NAMES, _FIELDS, max_size=3)


def _without_nulls(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {name: _without_nulls(held) for name, held in value.items() if held is not None}


@given(first=_PATCHES, second=_PATCHES)
def test_the_last_drop_in_wins_in_everything_that_it_sets(
    tmp_path_factory: pytest.TempPathFactory, first: dict[str, Any], second: dict[str, Any]
) -> None:
    folder = tmp_path_factory.mktemp("conf.d")
    head = yaml.safe_load(HEADER)
    for name, fields in (("1.conf", first), ("2.conf", second)):
        (folder / name).write_text(json.dumps({**head, **fields}))
    merged = read_config(None, str(folder)).fields

    def holds(there: Any, patch: Any) -> None:
        """What of a merge patch has to be seen in what it was laid over."""
        for name, value in patch.items():
            if value is None:
                assert name not in there
            elif isinstance(value, dict):
                holds(there[name], value)
            else:
                assert there[name] == value

    holds(merged, second)
    untouched = {name: one for name, one in first.items() if name not in second}
    assert {name: merged[name] for name in untouched if name in merged} == _without_nulls(untouched)


def test_a_pipe_among_the_drop_ins_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "10.conf")
    with pytest.raises(ConfigError, match=r"10\.conf: not a regular file"):
        read_config(None, str(tmp_path))
