"""What the runtime is told to make of a container."""

from __future__ import annotations

import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from pinfold.adapters.cri import cri_pb2 as pb
from pinfold.adapters.cri.labels import ATTEMPT, CREATION, GRACE_PERIOD, KEEPSAKE, container_labels
from pinfold.adapters.cri.resources import resources_of, to_wire
from pinfold.adapters.cri.sandboxes import PodSandbox
from pinfold.core.pod.security import Security
from pinfold.core.pod.workload import HostPath
from pinfold.ports.errors import ContainerKey, RuntimeFailedError
from pinfold.ports.runtime import ContainerSpec

# What an unprivileged container may not see or write; the kubelet names the same to runtimes.
_MASKED_PATHS: Final = (
    *("/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys"),
    *("/proc/latency_stats", "/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug"),
    *("/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap"),
)
_READONLY_PATHS: Final = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")

_CHECKS: Final[Mapping[str, Callable[[int], bool]]] = {
    "Directory": stat.S_ISDIR,
    "DirectoryOrCreate": stat.S_ISDIR,
    "File": stat.S_ISREG,
    "FileOrCreate": stat.S_ISREG,
    "Socket": stat.S_ISSOCK,
    "CharDevice": stat.S_ISCHR,
    "BlockDevice": stat.S_ISBLK,
}


def container_config(  # noqa: PLR0913 - what it is, and what was found out for it
    spec: ContainerSpec,
    sandbox: PodSandbox,
    image: pb.ImageSpec,
    *,
    attempt: int,
    creation: str,
    volumes: Path,
    oom_score_floor: int,
    protects_memory: bool = False,
) -> pb.ContainerConfig:
    """Put together the configuration of a container.

    ``attempt`` tells it from others of its name in the sandbox, ``creation`` from every other
    container; ``volumes`` is the folder of its pod's emptyDir volumes, and ``oom_score_floor`` the
    lowest OOM score adjustment that can be set; ``protects_memory``: see
    :class:`~pinfold.adapters.cri.sandboxes.CriSettings`.

    Raises:
        RuntimeFailedError: a volume cannot be mounted.
    """
    process = spec.process
    resources = to_wire(resources_of(spec, protects_memory=protects_memory))
    if spec.oom_score_adj is not None:
        resources.oom_score_adj = max(spec.oom_score_adj, oom_score_floor)
    words = (process.command, process.args) if process.command or process.args else None
    command, args = words or (process.argv, ())
    security = _security(spec.key, process.security)
    security.namespace_options.CopyFrom(sandbox.config.linux.security_context.namespace_options)
    env = {**process.env, **spec.env}
    return pb.ContainerConfig(
        metadata=pb.ContainerMetadata(name=spec.key.name, attempt=attempt),
        image=image,
        command=command,
        args=args,
        working_dir=process.working_dir or "",
        envs=[pb.KeyValue(key=key, value=value) for key, value in env.items()],
        mounts=[
            pb.Mount(
                container_path=mount.mount_path,
                host_path=_host_path(spec, mount.host_path, volumes / mount.volume),
                readonly=mount.read_only,
            )
            for mount in process.volume_mounts
        ]
        + [
            pb.Mount(
                container_path=mount.container_path,
                host_path=mount.host_path,
                readonly=mount.read_only,
            )
            for mount in spec.devices.mounts
        ],
        devices=[
            pb.Device(
                container_path=device.container_path,
                host_path=device.host_path,
                permissions=device.permissions,
            )
            for device in spec.devices.devices
        ],
        CDI_devices=[pb.CDIDevice(name=name) for name in spec.devices.cdi_devices],
        labels=container_labels(spec),
        annotations={
            **spec.devices.annotations,
            ATTEMPT: str(spec.attempt),
            GRACE_PERIOD: str(spec.grace_period),
            CREATION: creation,
            **({KEEPSAKE: spec.keepsake} if spec.keepsake else {}),
        },
        log_path=f"{spec.key.name}/{attempt}.log",
        linux=pb.LinuxContainerConfig(resources=resources, security_context=security),
    )


def _security(key: ContainerKey, wished: Security) -> pb.LinuxContainerSecurityContext:
    found = pb.LinuxContainerSecurityContext(
        privileged=wished.privileged,
        masked_paths=() if wished.privileged else _MASKED_PATHS,
        readonly_paths=() if wished.privileged else _READONLY_PATHS,
        readonly_rootfs=wished.read_only_root,
        no_new_privs=wished.no_new_privileges,
        supplemental_groups=wished.supplemental_groups,
    )
    if wished.add_capabilities or wished.drop_capabilities:
        found.capabilities.add_capabilities.extend(wished.add_capabilities)
        found.capabilities.drop_capabilities.extend(wished.drop_capabilities)
    # As a kubelet: what is privileged has no seccomp profile.
    if wished.seccomp and not wished.privileged:
        found.seccomp.CopyFrom(pb.SecurityProfile(profile_type=wished.seccomp))
    if wished.apparmor:
        found.apparmor.CopyFrom(pb.SecurityProfile(profile_type=wished.apparmor))
    if wished.run_as_user is not None:
        found.run_as_user.value = wished.run_as_user
    if wished.run_as_group is not None:
        if wished.run_as_user is None:
            raise RuntimeFailedError(f"container {key}: runAsGroup without runAsUser", "give both")
        found.run_as_group.value = wished.run_as_group
    return found


def _host_path(spec: ContainerSpec, source: HostPath | None, empty: Path) -> str:
    """Where a volume lies on the host; it is made where the manifest says so."""
    path = empty if source is None else Path(source.path)
    try:
        if source is None:
            if not empty.exists():
                empty.mkdir(parents=True)
                empty.chmod(0o777)  # any user of the pod writes there, as under a kubelet
        elif source.type:
            if source.type == "DirectoryOrCreate":
                path.mkdir(parents=True, exist_ok=True, mode=0o755)
            elif source.type == "FileOrCreate":
                path.touch(mode=0o644)
            if not _CHECKS[source.type](path.stat().st_mode):
                raise RuntimeFailedError(
                    f"container {spec.key}: {path} is no {source.type}", "correct the volume"
                )
    except OSError as error:
        raise RuntimeFailedError(
            f"container {spec.key}: volume at {path}: {error.strerror}", "correct the volume"
        ) from None
    return str(path)
