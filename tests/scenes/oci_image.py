"""A container image without a registry: a static busybox, which pauses and does the work."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

REFERENCE: Final = "localhost/pinfold/busybox:test"
APPLETS: Final = (
    *("cat", "cp", "echo", "env", "false", "grep", "kill", "ls", "nproc", "rm", "sed", "seq"),
    *("setsid", "sh", "sleep", "taskset", "test", "touch", "true", "usleep", "wc"),
)
_KIND: Final = "application/vnd.oci.image."


def write_image(path: Path, busybox: Path) -> None:
    """Write an OCI image layout as a tar file."""
    layer = _tar(
        [(_info(name, tarfile.DIRTYPE), b"") for name in ("bin", "proc", "sys", "dev", "tmp")]
        + [(_info("bin/busybox"), busybox.read_bytes())]
        + [(_info(f"bin/{name}", tarfile.SYMTYPE, "busybox"), b"") for name in APPLETS]
    )
    blobs: dict[str, bytes] = {}

    def blob(kind: str, data: bytes) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        blobs[digest] = data
        return {"mediaType": _KIND + kind, "digest": f"sha256:{digest}", "size": len(data)}

    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Env": ["PATH=/bin"], "Entrypoint": ["/bin/sleep", "2000000000"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{_KIND}manifest.v1+json",
        "config": blob("config.v1+json", json.dumps(config).encode()),
        "layers": [blob("layer.v1.tar", layer)],
    }
    named = blob("manifest.v1+json", json.dumps(manifest).encode()) | {
        "platform": {"architecture": "amd64", "os": "linux"},
        "annotations": {"io.containerd.image.name": REFERENCE},
    }
    index = {"schemaVersion": 2, "manifests": [named]}
    files = {
        "oci-layout": b'{"imageLayoutVersion":"1.0.0"}',
        "index.json": json.dumps(index).encode(),
        **{f"blobs/sha256/{digest}": data for digest, data in blobs.items()},
    }
    path.write_bytes(_tar((_info(name), data) for name, data in files.items()))


def _info(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.mode, info.type, info.linkname = 0o755, kind, link
    return info


def _tar(entries: Iterable[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for info, data in entries:
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()
