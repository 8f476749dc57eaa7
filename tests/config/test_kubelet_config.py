"""KubeletConfiguration files and the flags that win over them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pinfold.config.kubelet import ConfigError, LoadedConfig, load_kubelet_config
from pinfold.config.settings import SETTINGS, override
from pinfold.config.values import SettingError, duration
from pinfold.core.kubelet.eviction import DEFAULT_EVICTION_HARD
from pinfold.core.kubelet.feature_gates import FEATURE_GATES, gate_enabled, spell_out
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.kubelet.policy_options import StaticPolicyOptions
from pinfold.core.kubelet.versions import RELEASES, V1_35
from pinfold.core.values.cpuset import CPUSet
from pinfold.core.values.quantity import Quantity

HEADER = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
FULL = (
    HEADER
    + """
address: 0.0.0.0
authentication: {anonymous: {enabled: false}, webhook: {cacheTTL: 2m0s, enabled: true}}
cgroupDriver: systemd
clusterDNS: [10.96.0.10]
cpuManagerPolicy: static
cpuManagerPolicyOptions: {full-pcpus-only: "true", strict-cpu-reservation: "true"}
cpuManagerReconcilePeriod: 5s
reservedSystemCPUs: "0,32"
kubeReserved: {cpu: 500m, memory: 1Gi, ephemeral-storage: 1Gi, pid: "1000"}
systemReserved: {cpu: "1", memory: 512Mi}
evictionHard: {memory.available: 5%, nodefs.available: 10%}
topologyManagerPolicy: restricted
topologyManagerScope: pod
topologyManagerPolicyOptions: {prefer-closest-numa-nodes: "true"}
memoryManagerPolicy: Static
reservedMemory:
  - {numaNode: 0, limits: {memory: 1100Mi, hugepages-1Gi: 2Gi}}
  - {numaNode: 1, limits: {memory: 512Mi}}
featureGates: {CPUManagerPolicyAlphaOptions: true}
cpuCFSQuota: false
maxPods: 250
podsPerCore: 10
staticPodPath: /etc/kubernetes/manifests
"""
)

Load = Callable[..., LoadedConfig]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def from_text(text: str, base: NodeConfig | None = None) -> LoadedConfig:
        path = tmp_path / "kubelet.yaml"
        path.write_text(text, encoding="utf-8")
        return load_kubelet_config(str(path), base)

    return from_text


def test_every_field_is_read(load: Load) -> None:
    loaded = load(FULL)
    config = loaded.config
    assert loaded.notes == ()
    assert config.cpu_manager_policy == "static"
    assert config.cpu_manager_policy_options["full-pcpus-only"] == "true"
    assert config.cpu_manager_reconcile_period == 5
    assert config.reserved_system_cpus == CPUSet([0, 32])
    assert config.kube_reserved["cpu"] == Quantity.parse("500m")
    assert config.system_reserved["memory"] == Quantity.parse("512Mi")
    assert config.eviction_hard == {"memory.available": "5%", "nodefs.available": "10%"}
    assert (config.topology_manager_policy, config.topology_manager_scope) == ("restricted", "pod")
    assert config.topology_manager_policy_options == {"prefer-closest-numa-nodes": "true"}
    assert config.memory_manager_policy == "Static"
    assert config.reserved_memory[0]["limits"]["hugepages-1Gi"] == Quantity.parse("2Gi")
    assert config.reserved_memory[1]["numaNode"] == 1
    assert config.feature_gates == {"CPUManagerPolicyAlphaOptions": True}
    assert (config.cpu_cfs_quota, config.max_pods, config.pods_per_core) == (False, 250, 10)


def test_json_is_the_same(load: Load) -> None:
    fields = yaml.safe_load(FULL)
    assert load(json.dumps(fields)) == load(json.dumps(fields, indent="\t")) == load(FULL)


def test_what_a_kubelet_serves_and_kubeadm_keeps(load: Load) -> None:
    fields = yaml.safe_load(FULL)
    bare = {k: v for k, v in fields.items() if k not in ("kind", "apiVersion")}
    assert load(json.dumps({"kubeletconfig": bare})) == load(FULL)
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"kubelet": FULL}}
    assert load(yaml.safe_dump(config_map)) == load(FULL)
    config_map["data"] = {"kubelet": HEADER + "maxPods: -1\nmaxPods: 2\n"}
    with pytest.raises(ConfigError, match=r"kubelet.yaml: data.kubelet: line 4, column 1"):
        load(yaml.safe_dump(config_map))
    config_map["data"] = {"other": FULL}
    with pytest.raises(ConfigError, match=r"no KubeletConfiguration \(kind: 'ConfigMap'"):
        load(yaml.safe_dump(config_map))


@pytest.mark.parametrize(
    "lines",
    [
        "enforceNodeAllocatable: [pods]",
        "enforceNodeAllocatable: []\ncgroupsPerQOS: false",
        "enforceNodeAllocatable: [none]",
        "enforceNodeAllocatable: [pods, system-reserved]\nsystemReservedCgroup: /system",
        "enforceNodeAllocatable: [kube-reserved-compressible]\nkubeReservedCgroup: /kube",
        "containerLogMaxSize: 1Gi\ncontainerLogMaxFiles: 2",
        'containerLogMaxSize: ""',
        'containerLogMaxSize: "-1"',
    ],
)
def test_what_is_enforced_has_no_bearing_on_a_placement(load: Load, lines: str) -> None:
    assert load(f"{HEADER}{lines}\n") == LoadedConfig(NodeConfig(), ())


def test_memory_qos_and_process_ids(load: Load) -> None:
    gate = "featureGates: {MemoryQoS: true}\n"
    tiers = "memoryReservationPolicy: TieredReservation\n"
    config = load(f"{HEADER}{gate}{tiers}memoryThrottlingFactor: 1\npodPidsLimit: 100\n").config
    assert config.memory_reservation_policy == "TieredReservation"
    assert (config.memory_throttling_factor, config.pod_pids_limit) == (1.0, 100)
    assert load(f"{HEADER}podPidsLimit: -1\n").config == NodeConfig()
    for wrong, problem in (
        (tiers, "requires feature gate MemoryQoS"),
        ("memoryReservationPolicy: Tiered\n", "must be one of"),
        ("podPidsLimit: -2\n", "must not be a negative number"),
    ):
        with pytest.raises(ConfigError, match=problem):
            load(HEADER + wrong)


def test_a_field_that_came_later_is_unknown_to_older_kubelets(load: Load) -> None:
    text = f"{HEADER}memoryReservationPolicy: TieredReservation\nmemoryThrottlingFactor: 0.5\n"
    old = load(text, NodeConfig(kubelet_version=V1_35))
    assert old.config.memory_reservation_policy == "None"
    (note,) = old.notes
    assert note.endswith(": unknown field memoryReservationPolicy of a kubelet 1.35, passed over")
    with pytest.raises(ConfigError, match="requires feature gate MemoryQoS"):
        load(text, NodeConfig())


def test_defaults(load: Load) -> None:
    empty = 'cpuManagerPolicy: ""\ntopologyManagerScope: ""\nmaxPods: 0\nkubeReserved: null\n'
    for text in (HEADER, HEADER + empty, HEADER + "cpuManagerReconcilePeriod: 0s\n"):
        assert load(text) == LoadedConfig(NodeConfig(), ())
    assert NodeConfig().eviction_hard == DEFAULT_EVICTION_HARD


def test_the_reconcile_period_is_else_that_of_node_status(load: Load) -> None:
    status = HEADER + "nodeStatusUpdateFrequency: 3s\n"
    assert load(status).config.cpu_manager_reconcile_period == 3
    assert load(status + "cpuManagerReconcilePeriod: 0s\n").config == load(status).config
    own = status + "cpuManagerReconcilePeriod: 7s\n"
    assert load(own).config.cpu_manager_reconcile_period == 7
    zero = HEADER + "nodeStatusUpdateFrequency: 0s\n"
    assert load(zero).config.cpu_manager_reconcile_period == 10
    with pytest.raises(ConfigError, match=r"kubelet.yaml: nodeStatusUpdateFrequency: time: "):
        load(HEADER + "nodeStatusUpdateFrequency: often\n")


def test_eviction_defaults_are_replaced_or_merged(load: Load) -> None:
    text = HEADER + "evictionHard: {memory.available: 1Gi}\n"
    assert load(text).config.eviction_hard == {"memory.available": "1Gi"}
    merged = load(text + "mergeDefaultEvictionSettings: true\n").config.eviction_hard
    assert merged == {**DEFAULT_EVICTION_HARD, "memory.available": "1Gi"}
    assert load(HEADER + "evictionHard: {}\n").config.eviction_hard == {}


def test_base_is_kept_where_the_file_is_silent(tmp_path: Path) -> None:
    path = tmp_path / "kubelet.yaml"
    path.write_text(HEADER + "maxPods: 20\n", encoding="utf-8")
    config = load_kubelet_config(str(path), NodeConfig(cpu_manager_policy="static")).config
    assert (config.cpu_manager_policy, config.max_pods) == ("static", 20)


@pytest.mark.parametrize(
    ("line", "note"),
    [
        (
            "cpuManagerPolcy: static",
            "unknown field cpuManagerPolcy (did you mean cpuManagerPolicy?",
        ),
        ("CPUManagerPolicy: static", "did you mean cpuManagerPolicy?"),
        ("reservedCpus: 0-1", "unknown field reservedCpus"),
        ("zzzz: 1", "unknown field zzzz, passed over"),
        ("featureGates: {GracefulNodeShutdown: true}", "GracefulNodeShutdown"),
    ],
)
def test_what_is_unknown_is_noted(load: Load, line: str, note: str) -> None:
    loaded = load(f"{HEADER}{line}\n")
    assert len(loaded.notes) == 1
    assert note in loaded.notes[0]
    assert "kubelet.yaml" in loaded.notes[0]
    assert loaded.config.cpu_manager_policy == "none"


REFUSED = [
    ("cpuManagerPolicy: dynamic", 'cpuManagerPolicy: unknown policy: "dynamic"'),
    ("cpuManagerPolicy: true", 'put it in quotes: "true"'),
    ("cpuManagerPolicyOptions: {full-pcpus-only: true}", "full-pcpus-only: cannot unmarshal bool"),
    ("cpuManagerPolicyOptions: [full-pcpus-only]", "must be a mapping, not a list"),
    ("cpuManagerReconcilePeriod: 10", "cannot unmarshal number"),
    ('cpuManagerReconcilePeriod: "10"', 'time: missing unit in duration "10"'),
    ("cpuManagerReconcilePeriod: soon", 'time: invalid duration "soon"'),
    ("cpuManagerReconcilePeriod: 10d", 'time: unknown unit "d" in duration "10d"'),
    ("reservedSystemCPUs: 0-", "unable to parse reservedSystemCPUs (--reserved-cpus) 0-, error"),
    ("reservedSystemCPUs: 0", "put it in quotes"),
    ("kubeReserved: {cpu: 1}", "kubeReserved: cpu: cannot unmarshal number"),
    ("kubeReserved: {pods: '10'}", 'cannot reserve "pods" resource'),
    ("kubeReserved: {hugepages-2Mi: 10Mi}", 'cannot reserve "hugepages-2Mi" resource'),
    ("systemReserved: {cpu: '-1'}", 'resource quantity for "cpu" cannot be negative: -1'),
    ("systemReserved: {memory: 1Gb}", 'failed to parse quantity "1Gb" for "memory" resource'),
    ("evictionHard: {memory: 1Gi}", "unsupported eviction signal memory"),
    ("evictionHard: {memory.available: 120%}", "must be <= 100%: 120%"),
    ("evictionHard: {memory.available: -1Gi}", "must be positive: -1Gi"),
    ("evictionHard: {memory.available: 5 %}", 'strconv.ParseFloat: parsing "5 "'),
    (
        "topologyManagerPolicy: strict",
        '"strict" must be one of: ["none" "best-effort" "restricted" "single-numa-node"]',
    ),
    (
        "topologyManagerScope: node",
        '(--topology-manager-scope) "node" must be one of: "container", or "pod"',
    ),
    ("memoryManagerPolicy: static", 'unknown policy: "static"; it is None or Static'),
    ("reservedMemory: {numaNode: 0}", "must be a list"),
    ("reservedMemory: [{numaNode: 0, limits: {cpu: 1}}]", 'the limit type "cpu" for NUMA node 0'),
    ("reservedMemory: [{numaNode: 2, limits: {memory: 0}}]", "may not be zero for NUMA node 2"),
    ("reservedMemory: [{numaNode: -1, limits: {memory: 1}}]", "numaNode"),
    (
        "reservedMemory: [{numaNode: 0, limits: {memory: 1}}, {limits: {memory: 1}}]",
        'duplicate value for NUMA node 0 and resource "memory"',
    ),
    (
        "featureGates: {CPUManagerPolicyAlphaOption: true}",
        "AlphaOption; did you mean CPUManagerPolicyAlphaOptions?",
    ),
    ("featureGates: {cpumanagerpolicybetaoptions: true}", "unrecognized feature gate"),
    ("featureGates: {CPUManagerPolicyOptions: false}", "feature is locked to true"),
    ("featureGates: {MemoryQoS: 'true'}", "must be true or false without quotes"),
    (
        "featureGates: {CustomCPUCFSQuotaPeriod: false}\ncpuCFSQuotaPeriod: 50ms",
        "requires feature gate CustomCPUCFSQuotaPeriod",
    ),
    (
        "cpuCFSQuotaPeriod: 2s\nfeatureGates: {CustomCPUCFSQuotaPeriod: true}",
        "must be between 1ms and 1sec",
    ),
    ("maxPods: -1", "must not be a negative number"),
    ("maxPods: many", "must be a whole number"),
    ("cpuCFSQuota: 1", "must be true or false"),
    ("reservedSystemCPUs: '0'\nkubeReservedCgroup: /kube", "can't use reservedSystemCPUs"),
    ("cgroupsPerQOS: false", "is not supported unless cgroupsPerQOS (--cgroups-per-qos) is set"),
    ("cgroupsPerQOS: 0", "cgroupsPerQOS: must be true or false"),
    ("enforceNodeAllocatable: pods", "enforceNodeAllocatable: must be a list, not 'pods'"),
    ("enforceNodeAllocatable: [1]", "enforceNodeAllocatable: cannot unmarshal number"),
    (
        "enforceNodeAllocatable: [node]",
        (
            'option "node" specified for enforceNodeAllocatable (--enforce-node-allocatable). '
            'Valid options are "pods", "system-reserved", "system-reserved-compressible", '
            '"kube-reserved", "kube-reserved-compressible" or "none"'
        ),
    ),
    (
        "enforceNodeAllocatable: [pods, none]",
        'may not contain additional enforcements when "none" is specified',
    ),
    (
        "enforceNodeAllocatable: [kube-reserved]",
        (
            'kubeReservedCgroup (--kube-reserved-cgroup) must be specified when "kube-reserved" or '
            '"kube-reserved-compressible" contained in enforceNodeAllocatable'
        ),
    ),
    (
        "enforceNodeAllocatable: [system-reserved-compressible, system-reserved]",
        'both "system-reserved" and "system-reserved-compressible" cannot be specified together',
    ),
    ("memoryThrottlingFactor: 1.5", "memoryThrottlingFactor 1.5 must be greater than 0"),
    ("memoryThrottlingFactor: much", "memoryThrottlingFactor: must be a number"),
    ("containerLogMaxFiles: 1", "containerLogMaxFiles: invalid MaxFiles 1, must be > 1"),
    ("containerLogMaxFiles: many", "containerLogMaxFiles: must be a whole number"),
    ("containerLogMaxSize: large", "failed to parse container log max size 'large'"),
    ('containerLogMaxSize: "1.5"', "invalid max log size"),
    ('topologyManagerPolicy: "\\e[2J\\n"', "\\x1b[2J\\n"),
    ("maxPods: 1\nmaxPods: 2", "line 4, column 1: not YAML: key 'maxPods' is already set"),
]


@pytest.mark.parametrize(("line", "words"), REFUSED)
def test_what_would_stop_a_kubelet(load: Load, line: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(f"{HEADER}{line}\n")
    message = str(caught.value)
    assert words in message
    assert "kubelet.yaml: " in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "must hold one KubeletConfiguration, not nothing"),
        (HEADER + "---\n" + HEADER, "(line 1 and line 4)"),
        ("- 1\n", "must be a mapping, not a list"),
        ("kind: Pod\napiVersion: v1\n", "no KubeletConfiguration (kind: 'Pod', apiVersion: 'v1')"),
        ("kind: KubeletConfiguration\n", "apiVersion: nothing"),
        (HEADER.replace("v1beta1", "v1"), 'registered for version "kubelet.config.k8s.io/v1"'),
        ("a: [\n", "line 2, column 1: not YAML"),
    ],
)
def test_what_is_no_kubelet_configuration(load: Load, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(text)
    assert words in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00")
    for path, words in (
        (str(tmp_path / "none.yaml"), "No such file"),
        (str(tmp_path), "Is a directory"),
        (str(binary), "not UTF-8"),
        ("a\0b", "no name that a file can have"),
    ):
        with pytest.raises(ConfigError, match=words):
            load_kubelet_config(path)


def test_flags_win_over_the_file() -> None:
    base = NodeConfig(
        cpu_manager_policy_options={"align-by-socket": "true"},
        feature_gates={"CPUManagerPolicyAlphaOptions": True, "MemoryQoS": False},
        max_pods=20,
    )
    config = override(
        base,
        {
            "cpu_manager_policy": "static",
            "cpu_manager_policy_options": ("reject-non-smt-aligned=true",),
            "reserved_system_cpus": "0-1",
            "kube_reserved": ("cpu=1,memory=1Gi",),
            "system_reserved": ("cpu=500m", "pid=100"),
            "topology_manager_policy": "best-effort",
            "topology_manager_scope": "pod",
            "topology_manager_policy_options": ("max-allowable-numa-nodes=9",),
            "feature_gates": ("MemoryQoS=true",),
        },
    )
    assert StaticPolicyOptions.parse(config.cpu_manager_policy_options).full_pcpus_only
    assert "align-by-socket" not in config.cpu_manager_policy_options
    assert config.reserved_system_cpus == CPUSet([0, 1])
    assert config.kube_reserved["memory"] == Quantity.parse("1Gi")
    assert set(config.system_reserved) == {"cpu", "pid"}
    assert config.topology_manager_policy_options == {"max-allowable-numa-nodes": "9"}
    assert config.feature_gates == {"CPUManagerPolicyAlphaOptions": True, "MemoryQoS": True}
    assert config.max_pods == 20
    assert override(base, {"cpu_manager_policy": None, "kube_reserved": ()}) is base


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"cpu_manager_policy": "dynamic"}, '--policy: unknown policy: "dynamic"'),
        (
            {"cpu_manager_policy_options": ("full-pcpus-only",)},
            "--policy-option: 'full-pcpus-only'",
        ),
        ({"cpu_manager_policy_options": ("=true",)}, "is no KEY=VALUE"),
        ({"kube_reserved": ("cpu=1", "cpu=2")}, "--kube-reserved: cpu is given twice"),
        ({"kube_reserved": ("cpu=1 000",)}, "--kube-reserved: failed to parse quantity"),
        ({"system_reserved": ("disk=1",)}, '--system-reserved: cannot reserve "disk" resource'),
        ({"reserved_system_cpus": "a"}, "--reserved-cpus: invalid configuration"),
        ({"topology_manager_policy": "x"}, "--topology-manager-policy: invalid configuration"),
        ({"topology_manager_scope": "x"}, "--topology-manager-scope: invalid configuration"),
        ({"feature_gates": ("MemoryQoS=perhaps",)}, "--feature-gate: invalid value"),
        ({"feature_gates": ("CPUManagerPolicyOptions=false",)}, "feature is locked"),
    ],
)
def test_bad_flags_are_named(flags: dict[str, str | tuple[str, ...]], words: str) -> None:
    with pytest.raises(SettingError) as caught:
        override(NodeConfig(), flags)
    assert words in str(caught.value)
    assert isinstance(caught.value, ConfigError)


def test_groups_of_gates_are_spelt_out() -> None:
    gates = spell_out({"AllAlpha": True, "MemoryQoS": False, "AllBeta": False})
    assert gates["CPUManagerPolicyAlphaOptions"]
    assert not gates["MemoryQoS"]
    assert not gates["CPUManagerPolicyBetaOptions"]
    assert "MemoryManager" not in gates
    assert spell_out({"AllAlpha": True}, V1_35)["MemoryManager"]
    options = {"align-by-socket": "true"}
    assert StaticPolicyOptions.parse(options, gates).align_by_socket
    for gate in FEATURE_GATES:
        for release in RELEASES:
            spec = gate.at(release.version)
            assert gate_enabled(gate.name, {}, release.version) is (
                spec is not None and spec.default
            )


def test_the_table_is_sound() -> None:
    config = NodeConfig()
    for setting in SETTINGS:
        assert hasattr(config, setting.attribute)
        if setting.field not in {"memoryReservationPolicy", "memoryThrottlingFactor"}:
            assert setting.kubelet_flag.startswith("--")
        assert setting.help.endswith(".")
    for key in ("field", "attribute", "kubelet_flag"):
        values = [value for setting in SETTINGS if (value := getattr(setting, key))]
        assert len(set(values)) == len(values)


@given(st.integers(0, 10**6), st.sampled_from(["ns", "us", "ms", "s", "m", "h"]))
def test_durations(number: int, unit: str) -> None:
    seconds = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "h": 3600}[unit]
    assert duration(f"{number}{unit}") == pytest.approx(number * seconds)
    assert duration(f"-1h{number}{unit}") == pytest.approx(-3600 - number * seconds)


@pytest.mark.parametrize("text", ["", "s", ".s", "1", "1s1", "1 s", "--1s", "1e3s", "9" * 30 + "h"])
def test_durations_that_are_none(text: str) -> None:
    with pytest.raises(SettingError):
        duration(text)


@given(
    st.dictionaries(
        st.sampled_from(
            [
                *(setting.field for setting in SETTINGS),
                "enforceNodeAllocatable",
                "cgroupsPerQOS",
                "containerLogMaxFiles",
                "containerLogMaxSize",
            ]
        ),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(st.text(max_size=8) | st.integers(), inner, max_size=3)
            ),
            max_leaves=6,
        ),
        max_size=4,
    )
)
def test_any_value_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, fields: dict[str, object]
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_text(HEADER + yaml.safe_dump(fields), encoding="utf-8")
    try:
        loaded = load_kubelet_config(str(path))
    except ConfigError as error:
        said = str(error)
    else:
        said = str(loaded.config)
    assert said
