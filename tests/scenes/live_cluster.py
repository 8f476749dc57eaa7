"""Nodes of a cluster in the form in which Kubernetes 1.36 tells them, behind a real TLS socket."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec

from pinfold.core.machine.short_form import parse_short_form
from pinfold.planning.machine_document import machine_document
from tests.scenes.kube_api_peer import Answer, KubeApiPeer, Request

BEGAN = "2026-03-01T08:00:00Z"


def live_pod(
    name: str,
    node: str,
    cpu: str = "2",
    *,
    started: str = BEGAN,
    created: str = "2026-03-01T07:59:58Z",
    phase: str = "Running",
    uid: str = "",
    guaranteed: bool = True,
    owner: str = "",
    annotations: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """A pod as ``GET /api/v1/pods`` of an API server 1.36 has it in its items."""
    uid = uid or f"uid-of-{name}"
    amounts = {"cpu": cpu, "memory": "1Gi"}
    resources = {"requests": amounts} | ({"limits": amounts} if guaranteed else {})
    state = {"running": {"startedAt": started}} if phase == "Running" else {}
    owners = [
        {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "name": owner,
            "uid": f"uid-of-{owner}",
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]
    times = {"lastProbeTime": None, "lastTransitionTime": started, "status": "True"}
    status: dict[str, Any] = {
        "observedGeneration": 1,
        "phase": phase,
        "qosClass": "Guaranteed" if guaranteed else "Burstable",
        "conditions": [
            {"type": kind, "observedGeneration": 1, **times}
            for kind in (
                "PodReadyToStartContainers",
                "Initialized",
                "Ready",
                "ContainersReady",
                "PodScheduled",
            )
        ],
    }
    if started:
        status |= {
            "startTime": started,
            "hostIP": "192.0.2.10",
            "hostIPs": [{"ip": "192.0.2.10"}],
            "podIP": "10.1.0.5",
            "podIPs": [{"ip": "10.1.0.5"}],
            "containerStatuses": [
                {
                    "name": "main",
                    "image": "registry.example/app:1",
                    "imageID": "registry.example/app@sha256:0011",
                    "containerID": "containerd://0011",
                    "allocatedResources": amounts,
                    "resources": resources,
                    "lastState": {},
                    "ready": phase == "Running",
                    "restartCount": 0,
                    "started": phase == "Running",
                    "state": state,
                    "user": {"linux": {"uid": 0, "gid": 0, "supplementalGroups": [0]}},
                    "volumeMounts": [
                        {
                            "name": "kube-api-access-x",
                            "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
                            "readOnly": True,
                            "recursiveReadOnly": "Disabled",
                        }
                    ],
                }
            ],
        }
    metadata: dict[str, Any] = {
        "name": name,
        "generateName": f"{owner}-" if owner else None,
        "namespace": "default",
        "uid": uid,
        "resourceVersion": "4711",
        "generation": 1,
        "creationTimestamp": created,
        "labels": {"app": name, "pod-template-hash": "6d4b"},
        "annotations": annotations,
        "ownerReferences": owners if owner else None,
        "managedFields": [
            {
                "manager": "kubelet",
                "operation": "Update",
                "apiVersion": "v1",
                "time": started or created,
                "fieldsType": "FieldsV1",
                "fieldsV1": {"f:status": {"f:phase": {}}},
                "subresource": "status",
            }
        ],
    }
    spec = {
        "volumes": [
            {
                "name": "kube-api-access-x",
                "projected": {
                    "defaultMode": 420,
                    "sources": [
                        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
                        {
                            "configMap": {
                                "name": "kube-root-ca.crt",
                                "items": [{"key": "ca.crt", "path": "ca.crt"}],
                            }
                        },
                        {
                            "downwardAPI": {
                                "items": [
                                    {
                                        "path": "namespace",
                                        "fieldRef": {
                                            "apiVersion": "v1",
                                            "fieldPath": "metadata.namespace",
                                        },
                                    }
                                ]
                            }
                        },
                    ],
                },
            }
        ],
        "containers": [
            {
                "name": "main",
                "image": "registry.example/app:1",
                "command": ["/app"],
                "env": [{"name": "SECRET_OF_USERS", "value": "not-to-be-told"}],
                "resources": resources,
                "volumeMounts": [
                    {
                        "name": "kube-api-access-x",
                        "readOnly": True,
                        "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
                    }
                ],
                "terminationMessagePath": "/dev/termination-log",
                "terminationMessagePolicy": "File",
                "imagePullPolicy": "IfNotPresent",
            }
        ],
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "serviceAccountName": "default",
        "serviceAccount": "default",
        "nodeName": node or None,
        "securityContext": {},
        "schedulerName": "default-scheduler",
        "tolerations": [
            {
                "key": "node.kubernetes.io/not-ready",
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": 300,
            }
        ],
        "priority": 0,
        "enableServiceLinks": True,
        "preemptionPolicy": "PreemptLowerPriority",
    }
    return {"metadata": _set(metadata), "spec": _set(spec), "status": status}


def live_node(name: str, cpus: int = 16, allocatable: str = "") -> dict[str, Any]:
    """A node as ``GET /api/v1/nodes`` of an API server 1.36 has it in its items."""
    capacity = {"cpu": str(cpus), "memory": "65536Mi", "pods": "110", "ephemeral-storage": "9Gi"}
    info = {
        "machineID": "0011",
        "systemUUID": "0011",
        "bootID": "0011",
        "kernelVersion": "6.1.0-40-amd64",
        "osImage": "Debian GNU/Linux 12 (bookworm)",
        "containerRuntimeVersion": "containerd://2.2.0",
        "kubeletVersion": "v1.36.2",
        "kubeProxyVersion": "",
        "operatingSystem": "linux",
        "architecture": "amd64",
        "swap": {"capacity": 0},
    }
    return {
        "metadata": {
            "name": name,
            "uid": f"uid-of-{name}",
            "resourceVersion": "99",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"},
        },
        "spec": {"podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24"]},
        "status": {
            "capacity": capacity,
            "allocatable": {**capacity, "cpu": allocatable or str(cpus - 1)},
            "conditions": [],
            "addresses": [{"type": "InternalIP", "address": "192.0.2.10"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            "nodeInfo": info,
            "images": [],
            "features": {"supplementalGroupsPolicy": True},
        },
    }


def published_map(
    node: str,
    machine: str = "1s8c2t",
    assignments: Mapping[str, Mapping[str, str]] | None = None,
    *,
    at: str = "",
    **fields: Any,
) -> dict[str, Any]:
    """The ConfigMap in which an agent publishes its node."""
    document = machine_document(parse_short_form(machine))
    packed = gzip.compress(msgspec.json.encode(document), mtime=0)
    configuration = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "cpuManagerPolicy": "static",
        "reservedSystemCPUs": "0",
        "pinfold": {"runtime": "nri", "kubeletVersion": "1.36.2"},
        **fields,
    }
    told = {
        "version": 1,
        "node": node,
        "program": "0.1.0",
        "configuration": configuration,
        "reserved": "0",
        "shared": "0",
        "assignments": assignments or {},
    }
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": node,
            "namespace": "pinfold-nodes",
            "annotations": {"pinfold.dev/published-at": at} if at else {},
        },
        "data": {"node.json": json.dumps(told)},
        "binaryData": {"machine.json.gz": base64.b64encode(packed).decode()},
    }


def _set(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value is not None}


@dataclass
class LiveCluster:
    """What an API server answers; the peer's own objects and refusals are not asked.

    ``other`` answers by path whatever it has (a status and a body), ``denied`` are parts of paths
    to which the user has no right.
    """

    nodes: dict[str, dict[str, Any]] = field(default_factory=dict)
    pods: list[dict[str, Any]] = field(default_factory=list)
    published: dict[str, dict[str, Any]] = field(default_factory=dict)
    other: dict[str, Answer] = field(default_factory=dict)
    denied: tuple[str, ...] = ()

    def node(self, name: str, *pods: dict[str, Any], cpus: int = 16) -> None:
        """Add a node, and pods of it."""
        self.nodes[name] = live_node(name, cpus)
        self.pods += pods

    def behind(self, peer: KubeApiPeer) -> LiveCluster:
        """Have a peer answer with this."""
        peer.failing = lambda request: self.answer(request, peer.token)
        return self

    def answer(self, request: Request, token: str) -> Answer:
        """What an API server answers to a request."""
        asked = urlsplit(request.path)
        path, query = asked.path, parse_qs(asked.query)
        if request.headers.get("authorization") != f"Bearer {token}":
            return 401, _failure(401, "Unauthorized", "Unauthorized")
        for part in self.denied:
            if part in path:
                text = f'{path} is forbidden: User "ann" cannot do that'
                return 403, _failure(403, "Forbidden", text)
        assert request.method == "GET", "nothing is written"
        if path in self.other:
            return self.other[path]
        parts = path.strip("/").split("/")
        if parts == ["api", "v1", "nodes"]:
            return 200, _list("Node", list(self.nodes.values()), query)
        if parts == ["api", "v1", "pods"]:
            selector = query.get("fieldSelector", [""])[0]
            name = selector.removeprefix("spec.nodeName=")
            mine = [one for one in self.pods if one["spec"].get("nodeName") == name]
            return 200, _list("Pod", mine, query)
        found = self._one(parts)
        if found is None:
            return 404, _failure(404, "NotFound", f"{parts[-1]!r} not found")
        return 200, {"apiVersion": "v1", **found}

    def _one(self, parts: list[str]) -> dict[str, Any] | None:
        name = parts[-1]
        match parts[2:-1]:
            case ["nodes"]:
                return self.nodes.get(name)
            case ["namespaces", "pinfold-nodes", "configmaps"]:
                return self.published.get(name)
            case ["namespaces", namespace, "pods"]:
                for pod in self.pods:
                    if (pod["metadata"]["namespace"], pod["metadata"]["name"]) == (namespace, name):
                        return pod
        return None


def _list(kind: str, items: list[dict[str, Any]], query: Mapping[str, list[str]]) -> dict[str, Any]:
    """A list in parts, as ``limit`` and ``continue`` ask for."""
    first = int(query.get("continue", ["0"])[0])
    limit = int(query.get("limit", ["0"])[0]) or len(items)
    rest = len(items) - first - limit
    metadata: dict[str, Any] = {"resourceVersion": "5000"}
    if rest > 0:
        metadata |= {"continue": str(first + limit), "remainingItemCount": rest}
    part = items[first : first + limit]
    return {"kind": f"{kind}List", "apiVersion": "v1", "metadata": metadata, "items": part}


def _failure(code: int, reason: str, message: str) -> dict[str, Any]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }


def wrote(file: Path, *documents: Mapping[str, Any]) -> str:
    """The path of a file with these manifests."""
    file.write_text(json.dumps({"kind": "List", "items": list(documents)}))
    return str(file)
