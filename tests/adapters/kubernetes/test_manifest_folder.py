"""The folder of manifests: whatever lies there, its pods are known, or it is said that not."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from pinfold.adapters.kubernetes.files import ManifestError
from pinfold.adapters.kubernetes.manifest_folder import ManifestFolder
from pinfold.core.pod.manifest.size import MANIFEST_BYTES


def pod(name: str, size: int = 0) -> str:
    spec = {"containers": [{"name": "c", "command": ["a" * size]}]}
    return json.dumps({"kind": "Pod", "metadata": {"name": name}, "spec": spec})


def names(folder: ManifestFolder) -> list[str]:
    return sorted(pod.manifest["metadata"]["name"] for pod in folder.pods.values())


@pytest.fixture
def folder(tmp_path: Path) -> ManifestFolder:
    (tmp_path / "web.json").write_text(pod("web"))
    made = ManifestFolder(tmp_path)
    assert made.changes()
    assert made.read() == {}
    assert not made.changes()
    return made


def test_a_file_that_is_too_large_is_said_and_the_others_are_read(folder: ManifestFolder) -> None:
    large = folder.path / "large.json"
    with large.open("wb") as file:
        file.truncate(200 << 20)
    (folder.path / "more.json").write_text(pod("more"))
    assert folder.changes()
    words = f"{large}: larger than 1536 KiB; put each pod into a file of its own"
    assert folder.read() == {large: words}
    assert names(folder) == ["more", "web"]
    assert not folder.changes(), "it is said once"
    large.write_text(pod("large", MANIFEST_BYTES - len(pod("large"))))
    assert folder.read() == {}
    assert names(folder) == ["large", "more", "web"]


def test_what_is_no_regular_file_is_left_alone(folder: ManifestFolder) -> None:
    os.mkfifo(folder.path / "fifo.yaml")
    (folder.path / "folder.yaml").mkdir()
    (folder.path / "zero.yaml").symlink_to("/dev/zero")
    (folder.path / "loop.yaml").symlink_to("loop.yaml")
    (folder.path / "nowhere.yaml").symlink_to("not-there.yaml")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(folder.path / "s.yaml"))
        assert not folder.changes()
        assert folder.read() == {}
    assert names(folder) == ["web"]
    (folder.path / "link.yaml").symlink_to("web.json")
    assert folder.read() == {}
    assert names(folder) == ["web", "web"]


def test_a_file_that_becomes_a_fifo_holds_nobody_up(tmp_path: Path) -> None:
    """Between the look at it and its opening; the reader must not wait for a writer."""
    fifo = tmp_path / "a.json"
    os.mkfifo(fifo)

    class Changed(ManifestFolder):
        def _files(self) -> list[tuple[Path, tuple[int, int, int]]]:
            return [(fifo, (1, 2, 3))]

    made = Changed(tmp_path)
    assert made.read() == {fifo: f"{fifo}: no regular file"}


def test_a_folder_that_cannot_be_read_keeps_its_pods(folder: ManifestFolder) -> None:
    """As when no file can be opened any more: nothing is known, so nothing has gone."""
    path = folder.path
    folder.path = path / ("x" * 300)
    with pytest.raises(ManifestError, match="File name too long"):
        folder.changes()
    with pytest.raises(ManifestError, match="File name too long"):
        folder.read()
    assert names(folder) == ["web"]
    folder.path = path / "not-there"
    assert folder.changes()
    assert folder.read() == {}
    assert names(folder) == [], "a folder that is not there has no pods, as with a kubelet"


def test_a_file_that_is_being_written_keeps_its_pods(folder: ManifestFolder) -> None:
    """Who writes in place empties it first; a pod ends when its file is removed."""
    file = folder.path / "web.json"
    for text in ("", pod("web")[:30], "\n---\n"):
        file.write_text(text)
        assert folder.changes()
        assert folder.read().keys() == {file}
        assert names(folder) == ["web"]
    file.unlink()
    assert folder.read() == {}
    assert names(folder) == []


def test_a_file_is_known_once_it_was_read(folder: ManifestFolder) -> None:
    bad = folder.path / "bad.json"
    assert folder.is_known(folder.path / "web.json")
    bad.write_text("{")
    folder.read()
    assert not folder.is_known(bad)
    bad.write_text(pod("bad"))
    folder.read()
    assert folder.is_known(bad)
