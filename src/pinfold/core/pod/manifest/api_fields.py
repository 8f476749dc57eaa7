"""Every field of a Pod, and whether it is in force where its containers are run.

One row a fact.  A field that is not in force is refused where its pod would be weaker than its
author believes: less confined, without data or devices that it counts on, or not restarted or ended
as it says.  Else it is noted.  A field that has no row is none of the API's.

Source: the Kubernetes API 1.36 (``core/v1`` ``Pod``, with the alpha fields).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from msgspec import Struct


class Standing(Enum):
    """What becomes of a field."""

    IN_FORCE = "in force"
    NOTED = "noted"
    REFUSED = "refused"


class Field(Struct, frozen=True):
    """A row: its standing for processes and for containers of a runtime (CRI), and why.

    ``below`` are the fields of its mapping, or of each mapping in its list; without them everything
    below stands as it does.  ``plain`` are the values that ask for nothing; where none are named,
    it is false.  What is empty never asks for anything.
    """

    process: Standing
    cri: Standing
    why: str = ""
    below: Mapping[str, Field] | None = None
    plain: tuple[object, ...] = (False,)


Fields = Mapping[str, Field]

_YES, _SAID, _NO = Standing.IN_FORCE, Standing.NOTED, Standing.REFUSED


def _in_force(*names: str) -> Fields:
    return {name: Field(_YES, _YES) for name in names}


def _with(below: Fields) -> Field:
    return Field(_YES, _YES, below=below)


def _noted(why: str, *names: str, plain: tuple[object, ...] = (False,)) -> Fields:
    return {name: Field(_SAID, _SAID, why, plain=plain) for name in names}


def _refused(why: str, *names: str, plain: tuple[object, ...] = (False,)) -> Fields:
    return {name: Field(_NO, _NO, why, plain=plain) for name in names}


_UNCONFINED: Final = ({"type": "Unconfined"},)
_PROFILE: Final = {
    **_in_force("type"),
    **_refused("profiles of files on the node are not loaded here", "localhostProfile"),
}
_PROFILES: Final = {
    name: Field(_NO, _YES, f"a process has no {what} profile", _PROFILE, _UNCONFINED)
    for name, what in (("seccompProfile", "seccomp"), ("appArmorProfile", "AppArmor"))
}
_LABELS: Final = _refused("labels of SELinux are not set here", "seLinuxOptions")
_WINDOWS: Final = _noted("nothing of Windows runs here", "windowsOptions")

_POD_SECURITY: Final[Fields] = {
    **_in_force("runAsUser", "runAsGroup", "runAsNonRoot", "supplementalGroups", "fsGroup"),
    "supplementalGroupsPolicy": Field(
        _YES, _NO, "a runtime that does not know it would give more groups", plain=("Merge",)
    ),
    **_noted("volumes are made new, so nothing in them is changed", "fsGroupChangePolicy"),
    **_noted("labels of SELinux are not set here", "seLinuxChangePolicy"),
    **_refused("kernel parameters are not set here", "sysctls"),
    **_PROFILES,
    **_LABELS,
    **_WINDOWS,
}
_SECURITY: Final[Fields] = {
    **_in_force("privileged", "runAsUser", "runAsGroup", "runAsNonRoot"),
    **_in_force("allowPrivilegeEscalation"),
    "capabilities": _with(_in_force("add", "drop")),
    "readOnlyRootFilesystem": Field(_NO, _YES, "a process sees the files of the machine"),
    **_noted("/proc is the usual one", "procMount", plain=("Default",)),
    **_PROFILES,
    **_LABELS,
    **_WINDOWS,
}

_NO_OBJECTS: Final = "there is no API server to get it from; write a value"
_ASSIGNED: Final = _in_force("containerName", "resource", "divisor")
_ENV: Final[Fields] = {
    **_in_force("name", "value"),
    "valueFrom": _with(
        {
            **_in_force("fieldRef"),
            **_refused(_NO_OBJECTS, "configMapKeyRef", "secretKeyRef"),
            "resourceFieldRef": _with(_ASSIGNED),
            **_refused("write a value", "fileKeyRef"),
        }
    ),
}
_NO_PROBES: Final = "nothing asks a probe here, so no container is restarted for one"
_NETWORK: Final = "a process has the machine's network; a runtime publishes no ports here"
_MOUNT: Final[Fields] = {
    **_in_force("name", "mountPath"),
    "readOnly": Field(_NO, _YES, "a process writes wherever its user may; leave it out"),
    **_refused("a part of a volume cannot be mounted here", "subPath", "subPathExpr"),
    **_noted("mounts are not handed on here", "mountPropagation", plain=("None",)),
    **_refused("mounts below it stay writable", "recursiveReadOnly", plain=("Disabled",)),
}
_STANDS: Final = "a process is the machine's own program: no image is used"
_TERMINAL: Final = "the standard input is empty, and no terminal"
_MESSAGE: Final = "what a container writes there is not read"
_CONTAINER: Final[Fields] = {
    **_in_force("name", "command", "args", "workingDir"),
    "resources": _with(
        {
            **_in_force("limits", "requests"),
            **_refused("devices are given by device plugins only", "claims"),
        }
    ),
    "image": Field(_SAID, _YES, _STANDS),
    "imagePullPolicy": Field(_SAID, _YES, _STANDS),
    "env": _with(_ENV),
    **_refused("there is no API server to get it from; write env", "envFrom"),
    "ports": _with(
        {
            **_in_force("name", "containerPort", "protocol"),
            **_noted(_NETWORK, "hostPort", "hostIP"),
        }
    ),
    "securityContext": _with(_SECURITY),
    "volumeMounts": _with(_MOUNT),
    **_refused("block devices of volumes cannot be had here", "volumeDevices"),
    **_refused(_NO_PROBES, "livenessProbe"),
    **_noted(_NO_PROBES, "readinessProbe", "startupProbe"),
    **_refused("no hook is called, and SIGTERM is what ends a container", "lifecycle"),
    **_refused("the pod's restartPolicy is what counts", "restartPolicyRules"),
    **_noted("a resize restarts no container here", "resizePolicy"),
    **_noted(_TERMINAL, "stdin", "stdinOnce", "tty"),
    **_noted(_MESSAGE, "terminationMessagePath", plain=("/dev/termination-log",)),
    **_noted(_MESSAGE, "terminationMessagePolicy", plain=("File",)),
}
_APP: Final = {
    **_CONTAINER,
    **_refused("the pod's restartPolicy is what counts", "restartPolicy"),
}
_INIT: Final = {**_CONTAINER, **_in_force("restartPolicy")}

_VOLUME: Final[Fields] = {
    **_in_force("name"),
    "emptyDir": _with(_in_force("medium", "sizeLimit")),
    "hostPath": _with(
        {
            **_in_force("path"),
            "type": Field(_SAID, _YES, "it is neither checked nor made for a process"),
        }
    ),
    "downwardAPI": _with(
        {
            **_in_force("defaultMode"),
            "items": _with(
                {
                    **_in_force("path", "mode", "fieldRef"),
                    "resourceFieldRef": _with(_ASSIGNED),
                }
            ),
        }
    ),
    **_refused(
        "there is no API server to get it from; use hostPath or emptyDir",
        *("configMap", "secret", "projected", "persistentVolumeClaim", "ephemeral"),
    ),
    **_refused(
        "it is not mounted here; mount it on the machine, and use hostPath",
        *("csi", "nfs", "iscsi", "fc", "image", "gitRepo", "flexVolume", "flocker", "cephfs"),
        *("awsElasticBlockStore", "azureDisk", "azureFile", "cinder", "gcePersistentDisk"),
        *("glusterfs", "photonPersistentDisk", "portworxVolume", "quobyte", "rbd", "scaleIO"),
        *("storageos", "vsphereVolume"),
    ),
}

_SCHEDULER: Final = "there is one node, and no scheduler"
_ACCOUNT: Final = "there is no API server to speak to"
_NAMES: Final = "names of hosts are the machine's or the runtime's own"
_SPEC: Final[Fields] = {
    **_in_force("restartPolicy", "terminationGracePeriodSeconds", "overhead", "nodeName"),
    **_in_force("scaleDownGracePeriodSeconds"),
    **_in_force("hostNetwork", "hostPID", "hostIPC", "priority", "priorityClassName"),
    "resources": _with(_in_force("limits", "requests")),
    "runtimeClassName": Field(_NO, _YES, "a process has no sandbox"),
    "securityContext": _with(_POD_SECURITY),
    "volumes": _with(_VOLUME),
    "containers": _with(_APP),
    "initContainers": _with(_INIT),
    "shareProcessNamespace": Field(_YES, _SAID, "each container has its own"),
    **_refused("the pod is not ended after a time", "activeDeadlineSeconds"),
    **_refused("the users of a pod are those of the machine", "hostUsers", plain=(True,)),
    **_refused("devices are given by device plugins only", "resourceClaims"),
    **_refused("nobody takes the gates away; the pod would start at once", "schedulingGates"),
    **_refused("they are for pods that run", "ephemeralContainers"),
    **_noted("Linux is what runs here", "os", plain=({"name": "linux"},)),
    **_noted(_SCHEDULER, "affinity", "nodeSelector", "tolerations", "topologySpreadConstraints"),
    **_noted(_SCHEDULER, "schedulerName", plain=("default-scheduler",)),
    **_noted(_SCHEDULER, "schedulingGroup", "workloadRef"),
    **_noted(_SCHEDULER, "preemptionPolicy", plain=("PreemptLowerPriority", "Never")),
    **_noted("nobody asks whether a pod is ready", "readinessGates"),
    **_noted(_ACCOUNT, "serviceAccountName", "serviceAccount", plain=("default",)),
    **_noted(_ACCOUNT, "automountServiceAccountToken"),
    **_noted(_ACCOUNT, "enableServiceLinks", plain=(True, False)),
    **_noted("images are pulled as the runtime is set up", "imagePullSecrets"),
    **_noted(_NAMES, "hostname", "hostnameOverride", "subdomain", "setHostnameAsFQDN"),
    **_noted(_NAMES, "hostAliases", "dnsConfig"),
    **_noted(_NAMES, "dnsPolicy", plain=("ClusterFirst", "Default", "ClusterFirstWithHostNet")),
}
_METADATA: Final = _in_force(
    *("name", "generateName", "namespace", "uid", "labels", "annotations", "creationTimestamp"),
    *("deletionTimestamp", "deletionGracePeriodSeconds", "finalizers", "generation"),
    *("managedFields", "ownerReferences", "resourceVersion", "selfLink"),
)
POD: Final[Fields] = {
    **_in_force("apiVersion", "kind", "status"),
    "metadata": _with(_METADATA),
    "spec": _with(_SPEC),
}
"""The fields of a Pod."""
