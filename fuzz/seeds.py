"""Where the valid inputs come from: the examples, the tests' data, a few written here."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
MAX_SEED_BYTES: Final = 40_000
"""Large inputs are slow and are mutated in places that say nothing new."""


def files(*patterns: str, limit: int = 40) -> list[bytes]:
    """The small files below the repository that match, smallest first."""
    found = [path for pattern in patterns for path in ROOT.glob(pattern) if path.is_file()]
    small = sorted(
        (path for path in found if path.stat().st_size <= MAX_SEED_BYTES),
        key=lambda path: (path.stat().st_size, path.name),
    )
    return [path.read_bytes() for path in small[:limit]]


def regressions(target: str) -> list[bytes]:
    """What was found before."""
    return files(f"tests/data/regressions/{target}/*")


def trees(*patterns: str, limit: int = 6) -> list[bytes]:
    """Captured trees as text archives (see :func:`text_archive`), smallest first."""
    found = sorted(
        (path for pattern in patterns for path in ROOT.glob(pattern)),
        key=lambda path: path.stat().st_size,
    )
    return [text_archive(path) for path in found[:limit]]


def text_archive(path: Path) -> bytes:
    """A tar archive of small text files as one text that can be mutated by lines.

    A file is a line ``== PATH`` and its content; a symbolic link is ``-> PATH TARGET``.
    """
    return b"".join(_entries(path))[:MAX_SEED_BYTES]


def _entries(path: Path) -> Iterator[bytes]:
    with tarfile.open(path) as archive:
        for member in archive:
            name = member.name.partition("/")[2].encode()
            if member.issym():
                yield b"-> " + name + b" " + member.linkname.encode() + b"\n"
            elif member.isfile():
                file = archive.extractfile(member)
                content = b"" if file is None else file.read()
                yield b"== " + name + b"\n" + content + (b"" if content.endswith(b"\n") else b"\n")


HWLOC_XML: Final = b"""<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0">
  <object type="Machine" os_index="0" cpuset="0x0000000f" complete_cpuset="0x0000000f"
          allowed_cpuset="0x0000000f" nodeset="0x00000001" complete_nodeset="0x00000001"
          allowed_nodeset="0x00000001" gp_index="1">
    <info name="CPUModel" value="Example"/>
    <object type="Package" os_index="0" cpuset="0x0000000f" complete_cpuset="0x0000000f"
            nodeset="0x00000001" complete_nodeset="0x00000001" gp_index="2">
      <object type="NUMANode" os_index="0" cpuset="0x0000000f" complete_cpuset="0x0000000f"
              nodeset="0x00000001" complete_nodeset="0x00000001" gp_index="3"
              local_memory="4294967296">
        <page_type size="4096" count="1048576"/>
        <page_type size="2097152" count="8"/>
      </object>
      <object type="L3Cache" cpuset="0x0000000f" complete_cpuset="0x0000000f" nodeset="0x00000001"
              complete_nodeset="0x00000001" gp_index="4" cache_size="8388608" depth="3"
              cache_linesize="64" cache_associativity="16" cache_type="0">
        <object type="Core" os_index="0" cpuset="0x00000003" complete_cpuset="0x00000003"
                nodeset="0x00000001" complete_nodeset="0x00000001" gp_index="5">
          <object type="PU" os_index="0" cpuset="0x00000001" complete_cpuset="0x00000001"
                  nodeset="0x00000001" complete_nodeset="0x00000001" gp_index="6"/>
          <object type="PU" os_index="1" cpuset="0x00000002" complete_cpuset="0x00000002"
                  nodeset="0x00000001" complete_nodeset="0x00000001" gp_index="7"/>
        </object>
        <object type="Core" os_index="1" cpuset="0x0000000c" complete_cpuset="0x0000000c"
                nodeset="0x00000001" complete_nodeset="0x00000001" gp_index="8">
          <object type="PU" os_index="2" cpuset="0x00000004" complete_cpuset="0x00000004"
                  nodeset="0x00000001" complete_nodeset="0x00000001" gp_index="9"/>
          <object type="PU" os_index="3" cpuset="0x00000008" complete_cpuset="0x00000008"
                  nodeset="0x00000001" complete_nodeset="0x00000001" gp_index="10"/>
        </object>
      </object>
    </object>
  </object>
  <distances2 type="NUMANode" nbobjs="2" kind="5" name="NUMALatency" indexing="os">
    <indexes length="4">0 1 </indexes><u64values length="12">10 20 20 10 </u64values>
  </distances2>
  <cpukind cpuset="0x00000003" forced_efficiency="0">
    <info name="CoreType" value="IntelAtom"/></cpukind>
</topology>
"""

MACHINE_INFO: Final = b"""{"num_cores": 4, "num_physical_cores": 2, "num_sockets": 1,
"memory_capacity": 4294967296, "hugepages": [{"page_size": 2048, "num_pages": 0}],
"topology": [{"node_id": 0, "memory": 4294967296,
"hugepages": [{"page_size": 2048, "num_pages": 0}], "distances": [10], "cores": [
{"core_id": 0, "thread_ids": [0, 2], "socket_id": 0, "caches": [], "uncore_caches":
[{"id": 0, "size": 8388608, "type": "Unified", "level": 3}]},
{"core_id": 1, "thread_ids": [1, 3], "socket_id": 0, "caches": []}],
"caches": [{"id": 0, "size": 8388608, "type": "Unified", "level": 3}]}]}
"""

LSCPU: Final = (
    b"""{"lscpu": [{"field": "Architecture:", "data": "x86_64"}, {"field": "CPU(s):", "data": "4"},
{"field": "On-line CPU(s) list:", "data": "0-3"}, {"field": "Thread(s) per core:", "data": "2"},
{"field": "Core(s) per socket:", "data": "2"}, {"field": "Socket(s):", "data": "1"},
{"field": "NUMA node(s):", "data": "1"}, {"field": "NUMA node0 CPU(s):", "data": "0-3"}]}
""",
    b"""{"cpus": [{"cpu": 0, "node": 0, "socket": 0, "core": 0, "l1d:l1i:l2:l3": "0:0:0:0",
"online": true}, {"cpu": 1, "node": 0, "socket": 0, "core": 0, "l1d:l1i:l2:l3": "0:0:0:0",
"online": true}, {"cpu": 2, "node": null, "socket": null, "core": null, "l1d:l1i:l2:l3": "-",
"online": false}]}
""",
)

_BESIDE_PODS: Final = b"""
kind: ResourceClaimTemplate
apiVersion: resource.k8s.io/v1
metadata: {name: two}
spec:
  spec:
    devices:
      requests:
      - {name: cpus, exactly: {deviceClassName: dra.cpu, capacity: {requests: {dra.cpu/cpu: 2}}}}
---
kind: ResourceQuota
apiVersion: v1
metadata: {name: q}
spec:
  hard: {pods: 2, pinfold.dev/exclusive-cpus: "4", requests.cpu: 8}
  scopeSelector:
    matchExpressions:
    - {scopeName: PriorityClass, operator: In, values: [high]}
---
{kind: PriorityClass, apiVersion: scheduling.k8s.io/v1, metadata: {name: high}, value: 9}
---
{kind: Namespace, metadata: {name: team}}
---
kind: Pod
metadata: {name: a}
spec:
  priorityClassName: high
  nodeSelector: {a: b}
  tolerations: [{key: k, operator: Exists}]
  resourceClaims: [{name: c, resourceClaimTemplateName: two}]
  containers:
  - {name: c, resources: {limits: {cpu: 2, memory: 1Gi}, claims: [{name: c}]}}
"""
MANIFESTS: Final = (
    _BESIDE_PODS,
    b"""apiVersion: v1
kind: Pod
metadata: {name: a, namespace: b, uid: c, labels: {x: y}}
spec:
  priority: 5
  overhead: {cpu: 10m}
  initContainers:
  - {name: i, image: x, restartPolicy: Always, resources: {requests: {cpu: 1}}}
  containers:
  - name: c
    image: x
    resources:
      requests: {cpu: "2", memory: 1Gi, hugepages-2Mi: 4Mi, example.com/nic: 1}
      limits: {cpu: "2", memory: 1Gi, hugepages-2Mi: 4Mi, example.com/nic: 1}
---
apiVersion: apps/v1
kind: Deployment
metadata: &m
  name: d
spec:
  replicas: 3
  template:
    metadata: *m
    spec: {containers: [{name: c, image: x}]}
""",
    b"""{"apiVersion": "v1", "kind": "List", "items": [
{"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "cj"}, "spec": {"jobTemplate":
{"spec": {"parallelism": 2, "template": {"spec": {"resources": {"requests": {"cpu": 1.5}},
"containers": [{"name": "c", "resources": {"limits": {"cpu": "1e3m"}}}]}}}}}}]}
""",
)

KUBELET_CONFIG: Final = b"""apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cpuManagerPolicy: static
cpuManagerPolicyOptions: {full-pcpus-only: "true", distribute-cpus-across-numa: "false"}
cpuManagerReconcilePeriod: 10s
reservedSystemCPUs: 0-1,32
kubeReserved: {cpu: 500m, memory: 1Gi}
systemReserved: {cpu: "1", ephemeral-storage: 1Gi}
evictionHard: {memory.available: 100Mi, nodefs.available: 10%}
topologyManagerPolicy: restricted
topologyManagerScope: pod
topologyManagerPolicyOptions: {prefer-closest-numa-nodes: "true", max-allowable-numa-nodes: "16"}
memoryManagerPolicy: Static
reservedMemory:
- numaNode: 0
  limits: {memory: 1124Mi, hugepages-2Mi: 4Mi}
featureGates: {CPUManagerPolicyAlphaOptions: true}
cpuCFSQuotaPeriod: 100ms
maxPods: 110
podsPerCore: 10
"""
