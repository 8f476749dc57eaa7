"""The parsers under test, and what has to hold of their results."""

from __future__ import annotations

import re
import tempfile
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from fuzz import seeds
from fuzz.cache_target import CACHE_TARGET
from fuzz.devices_target import DEVICES_TARGET
from fuzz.dra_target import DRA_TARGET
from fuzz.engine import Target
from fuzz.experiment_target import EXPERIMENT_TARGET
from fuzz.jsonpath_target import JSONPATH_TARGET
from fuzz.linux_target import LINUX_TARGET
from fuzz.machine_targets import MACHINE_TARGETS
from fuzz.nri_target import NRI_TARGET
from fuzz.profile_target import PROFILE_TARGET
from fuzz.state_target import run_state_versions
from fuzz.store_target import STORE_TARGET
from fuzz.traces_target import TRACES_TARGETS
from pinfold.adapters.kubernetes.manifests import ManifestError, read_manifests
from pinfold.adapters.statefile.files import StateFileError
from pinfold.adapters.statefile.references import read_container_ids, read_pod_uids
from pinfold.config.kubelet import ConfigError, load_kubelet_config
from pinfold.core.pod.api import PodError
from pinfold.core.pod.manifest.workload_api import workload_from_api
from pinfold.core.pod.manifest.workload_fields import CRI, PROCESS, check_fields
from pinfold.core.pod.pod import pod_requests
from pinfold.core.values.cpuset import CPUSet, CPUSetError
from pinfold.core.values.names import subdomain_problems
from pinfold.core.values.quantity import Quantity, QuantityError
from pinfold.formats.yaml_documents import YAMLError, yaml_documents
from pinfold.state.cpu_manager_state import CheckpointError, parse_kubelet_cpuset
from pinfold.state.go_json import GoJSONError, parse
from pinfold.state.show import describe, describe_text
from pinfold.state.state_file import StateFile, UnusableFileError

_IN_NO_FORCE: Final = re.compile(r"^\S+: (not in force here: .|is carried out with runtime .)")
_LOSSLESS_DIGITS: Final = 21
"""Beyond its largest suffix (E) the kubelet prints multiples of 1000 without any: 1000000E is 1."""


class BrokenPropertyError(Exception):
    """A parser accepted its input and gave a result that cannot be."""


def hold(fact: object, text: str) -> None:
    """Insist on a property (a plain assert would vanish under ``-O``)."""
    if not fact:
        raise BrokenPropertyError(text)


def run_cpulist(data: bytes) -> None:
    """CPU lists, hexadecimal masks, and lists as the kubelet reads them."""
    text = data.decode("utf-8", "replace")
    try:
        cpus = CPUSet.parse(text)
        hold(CPUSet.parse(str(cpus)) == cpus, "the list does not read back")
        hold(len(cpus) == cpus.mask.bit_count(), "length and mask differ")
    except CPUSetError:
        pass
    try:
        mask = CPUSet.parse_hex(text)
        hold(CPUSet.parse_hex(mask.hex()) == mask, "the mask does not read back")
    except CPUSetError:
        pass
    with suppress(CPUSetError, CheckpointError):
        parse_kubelet_cpuset(text)


def run_quantity(data: bytes) -> None:
    """Quantities: what is printed reads back as the same number, arithmetic included."""
    text = data.decode("utf-8", "replace")
    try:
        quantity = Quantity.parse(text)
    except QuantityError:
        return
    number, power = quantity.dec
    if len(str(abs(number))) + power <= _LOSSLESS_DIGITS:
        canonical = Quantity.parse(quantity.canonical())
        hold(canonical == quantity, "the canonical form is another number")
        hold(hash(canonical) == hash(quantity), "equal, but another hash")
        hold(Quantity.parse(str(quantity)) == quantity, "the text is another number")
    hold((quantity - quantity).is_zero, "x - x is not zero")
    hold(quantity + quantity == quantity * 2, "x + x is not 2 x")
    quantity.value()
    quantity.milli_value()
    quantity.as_int64()


def run_yaml(data: bytes) -> None:
    """YAML as manifests and configurations use it."""
    try:
        for document in yaml_documents(data.decode("utf-8", "replace")):
            hold(document.line >= 1, "a line below 1")
    except YAMLError as error:
        hold(str(error), "an error without a text")


def run_workloads(data: bytes) -> None:
    """Pods for an agent: what they run, as whom, and which of their fields are in force."""
    with suppress(YAMLError):
        for document in yaml_documents(data.decode("utf-8", "replace")):
            if not isinstance(document.content, dict):
                continue
            for runtime in (PROCESS, CRI):
                with suppress(PodError):
                    notes = check_fields(document.content, runtime)
                    hold(all(_IN_NO_FORCE.search(note) for note in notes), "an empty note")
            try:
                workload = workload_from_api(document.content)
            except PodError as error:
                hold(error.path, "an error that does not name the field")
                continue
            pod = workload.pod
            names = [container.name for container in pod.all_containers]
            hold(sorted(workload.processes) == sorted(names), "a container that runs nothing")
            hold(not any(subdomain_problems(pod.name)), "a name that nobody can call it by")


def run_manifests(data: bytes) -> None:
    """Whole manifest files, and the sums that admission makes of their pods."""
    with tempfile.NamedTemporaryFile(suffix=".yaml", dir=_fast_folder()) as file:
        file.write(data)
        file.flush()
        try:
            found = read_manifests([file.name])
        except ManifestError as error:
            hold(str(error).startswith(file.name), "an error that does not name the file")
            return
    for pod in found.pods[:50]:
        pod_requests(pod)
        hold(pod.name, "a pod without a name")


def run_kubelet_config(data: bytes) -> None:
    """KubeletConfiguration files."""
    with tempfile.NamedTemporaryFile(suffix=".yaml", dir=_fast_folder()) as file:
        file.write(data)
        file.flush()
        try:
            load_kubelet_config(file.name)
        except ConfigError as error:
            hold(str(error).startswith(file.name), "an error that does not name the file")


def run_state_file(data: bytes) -> None:
    """The kubelet's state files: read, describe, verify."""
    try:
        state = StateFile.read(data)
        _ = state.checksum_fits
        describe(state, "file")
        describe_text(state)
    except (UnusableFileError, CheckpointError, CPUSetError, GoJSONError):
        pass


def run_go_json(data: bytes) -> None:
    """JSON as Go's decoder takes it."""
    with suppress(GoJSONError):
        parse(data)


def run_references(data: bytes) -> None:
    """Lists of pods and containers for ``pinfold state``."""
    with tempfile.NamedTemporaryFile(dir=_fast_folder()) as file:
        file.write(data)
        file.flush()
        for read in (
            partial(read_pod_uids, file.name),
            partial(read_container_ids, Path(file.name)),
        ):
            with suppress(StateFileError):
                read()


def _fast_folder() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 - names are random


_WORDS: Final = tuple(
    b"""apiVersion kind Pod List Deployment metadata name namespace uid spec containers
    initContainers restartPolicy Always resources requests limits cpu memory hugepages-2Mi replicas
    template &a *a <<: !!binary !!python/object | > --- ... # ~ yes 0o7 1.0e3 2001-01-01 500m 1Gi
    1e3 -1""".split()
)
_WORKLOAD_WORDS: Final = (
    *_WORDS,
    *b"""generateName labels annotations a/b command args env valueFrom fieldRef fieldPath value
    volumes emptyDir hostPath path medium sizeLimit volumeMounts mountPath readOnly securityContext
    runAsUser runAsNonRoot supplementalGroups fsGroup capabilities drop add ALL CAP_NET_ADMIN
    allowPrivilegeEscalation seccompProfile type RuntimeDefault livenessProbe comand null true 65534
    terminationGracePeriodSeconds""".split(),
)
_RESTRICTED: Final = b"""
metadata: {name: a, uid: u, labels: {app: a}, annotations: {k: v}}
spec:
  securityContext: {runAsNonRoot: true, supplementalGroups: [1], fsGroup: 2}
  volumes: [{name: v, emptyDir: {medium: Memory}}, {name: h, hostPath: {path: /srv}}]
  containers:
  - name: a
    command: [x, $(A)]
    env: [{name: A, value: b}, {name: B, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]
    volumeMounts: [{name: v, mountPath: /v}, {name: h, mountPath: /srv}]
    securityContext: {runAsUser: 1, allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
"""
_SETTINGS: Final = tuple(
    b"""cpuManagerPolicy static none cpuManagerPolicyOptions full-pcpus-only reservedSystemCPUs 0-3
    kubeReserved systemReserved evictionHard memory.available 10% topologyManagerPolicy restricted
    topologyManagerScope pod memoryManagerPolicy Static reservedMemory numaNode limits featureGates
    cpuCFSQuotaPeriod 100ms 1h2m3.5s maxPods podsPerCore "true" true --- kind:""".split()
)
_UNITS: Final = tuple(
    b"n u m k M G T P E Ki Mi Gi Ti Pi Ei e3 E-9 e+18 . + - 999999999999999999".split()
)
_STATE: Final = tuple(
    b"""policyName defaultCpuSet defaultCPUSet entries checksum machineState data PodDeviceEntries
    static none 0-3,8 numaAffinity type size podEntries cpuSet memoryBlocks dataChecksum""".split()
)


_STATE_FILES: Final = (
    b'{"policyName":"static","defaultCpuSet":"0-1","checksum":1636926438}',
    b'{"policyName":"static","defaultCpuSet":"0-1","entries":{"u":{"c":"2-3"}},"checksum":1}',
    b'{"policyName":"static","defaultCpuSet":"0-1","entries":{"id":"2-3"},"checksum":1}',
    b"""{"policyName":"Static","machineState":{"0":{"numberOfAssignments":0,"memoryMap":{"memory":
    {"total":1,"systemReserved":0,"allocatable":1,"reserved":0,"free":1}},"cells":[0]}},
    "entries":{"u":{"c":[{"numaAffinity":[0],"type":"memory","size":1}]}},"checksum":1}""",
    b"""{"Data":{"PodDeviceEntries":[{"PodUID":"u","ContainerName":"c","ResourceName":"r",
    "DeviceIDs":{"0":["d"]},"AllocResp":"CgA="}],"RegisteredDevices":{"r":["d"]}},"Checksum":1}""",
)
_REFERENCES: Final = (
    b"u1,u2\n",
    b"u1 c1 id1\nu1 c2 id2\n",
    b'{"items":[{"metadata":{"uid":"u1","name":"p"}}]}',
    b"""{"containers":[{"id":"i","labels":{"io.kubernetes.pod.uid":"u",
    "io.kubernetes.container.name":"c"}}]}""",
)


def _cpulists() -> list[bytes]:
    return [b"0-3,8", b"0-30:2", b"0-31:1/4", b"", b"1", b"00000000,ffffffff", b"ff", b"0x3"]


def _quantities() -> list[bytes]:
    return [b"1", b"500m", b"1.5Gi", b"-0.1", b"1e3", b"12E", b"0.000000001", b"+7Ki", b"100n"]


def _workloads() -> list[bytes]:
    return [*_manifests(), _RESTRICTED]


def _manifests() -> list[bytes]:
    return [*seeds.MANIFESTS, *seeds.files("examples/**/*.yaml", "examples/**/*.json")]


def _kubelet_configs() -> list[bytes]:
    return [seeds.KUBELET_CONFIG, *seeds.files("examples/*kubelet*.yaml")]


def _state_files() -> list[bytes]:
    return [*_STATE_FILES, *seeds.files("examples/state/*"), *_recorded_state_files()]


def _recorded_state_files() -> list[bytes]:
    from tests.vectors.runner import SAMPLES, read_vector_file  # noqa: PLC0415 - only when fuzzing

    found: list[bytes] = []
    for path in sorted(SAMPLES.glob("*.sample.jsonl")):
        for _, case in read_vector_file(path).cases:
            file = case.get("file") or (case.get("want") or {}).get("file")
            if isinstance(file, str) and len(file) < 4000:
                found.append(file.encode())
    return found[:60]


def _references() -> list[bytes]:
    return list(_REFERENCES)


def _all() -> dict[str, Target]:
    listed = [
        Target("cpulist", run_cpulist, _cpulists, (b"-", b",", b":", b"/", b"0-3", b"all")),
        Target("quantity", run_quantity, _quantities, _UNITS),
        Target("yaml", run_yaml, _manifests, _WORDS),
        Target("manifests", run_manifests, _manifests, _WORDS),
        Target("workloads", run_workloads, _workloads, _WORKLOAD_WORDS),
        Target("kubeletconfig", run_kubelet_config, _kubelet_configs, _SETTINGS),
        Target("statefile", run_state_file, _state_files, _STATE),
        Target("stateversions", run_state_versions, _state_files, _STATE),
        Target("gojson", run_go_json, _state_files, _STATE),
        Target("references", run_references, _references, _STATE),
        *MACHINE_TARGETS,
        DEVICES_TARGET,
        EXPERIMENT_TARGET,
        DRA_TARGET,
        JSONPATH_TARGET,
        LINUX_TARGET,
        NRI_TARGET,
        PROFILE_TARGET,
        STORE_TARGET,
        CACHE_TARGET,
        *TRACES_TARGETS,
    ]
    return {target.name: target for target in listed}


TARGETS: Final = _all()
