"""Huge pages as System V shared memory: what this kernel lets a process have, and the audit's word.

The kernel's own answer to shmget is what is compared with.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pinfold.adapters.procfs.snapshot import read_snapshot
from pinfold.audit.audit import audit
from pinfold.audit.record import AuditRecord
from tests.scenes.agent_process import AgentProcess, manifest, skip_unless_an_agent_can_run
from tests.scenes.hugepages_scene import (
    SHMGET,
    SMALL,
    everybodys_folder,
    group_with_hugetlb,
    more_pages,
    shm_group,
)
from tests.scenes.waiting import wait_until

GROUP, OTHER = 64231, 64232
NOBODY = 64233
REFUSED = "Operation not permitted"

ENTER = ("sh", "-c", 'echo $$ > "$0" && exec "$@"')
"""Followed by a file ``cgroup.procs``: what comes after it runs in that cgroup."""


@pytest.fixture
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Four more pages of 2Mi, and a group of those who may have them by shmget."""
    with more_pages(tmp_path_factory, 4), shm_group(GROUP):
        yield


@pytest.fixture
def limited(pages: None) -> Iterator[Path]:
    """A cgroup that may have two huge pages."""
    del pages
    with group_with_hugetlb() as folder:
        (folder / "hugetlb.2MB.max").write_text(str(2 * SMALL))
        yield folder


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """One in which everybody may write."""
    with everybodys_folder() as folder:
        yield folder


@pytest.mark.parametrize(
    ("user", "group", "groups", "is_refused"),
    [
        pytest.param(0, 0, [], False, id="root"),
        pytest.param(NOBODY, OTHER, [], True, id="nobody"),
        pytest.param(NOBODY, GROUP, [], False, id="its-own-group"),
        pytest.param(NOBODY, OTHER, [GROUP], False, id="one-more-group"),
        # What an image gives who is not root: not what counts once another group is named.
        pytest.param(NOBODY, 0, [OTHER], True, id="the-group-of-root"),
    ],
)
def test_the_audit_says_what_the_kernel_does(
    limited: Path, open_folder: Path, user: int, group: int, groups: list[int], *, is_refused: bool
) -> None:
    out = open_folder / "out"
    others = f"--groups={','.join(map(str, groups))}" if groups else "--clear-groups"
    rights = ("setpriv", f"--reuid={user}", f"--regid={group}", others)
    process = subprocess.Popen(
        [*ENTER, str(limited / "cgroup.procs"), *rights, *SHMGET, str(out), "1", "1000"]
    )
    try:
        wait_until(out.exists)
        assert out.read_text() == (REFUSED if is_refused else "")
        found = [
            one
            for one in audit(read_snapshot(), AuditRecord("here")).findings
            if one.kind.slug == "shm-hugetlb"
        ]
        examples = [name for one in found for name in one.examples]
        assert any(name.startswith(f"{process.pid} ") for name in examples) is is_refused
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(("count", "told"), [(2, ""), (3, "Cannot allocate memory")])
def test_a_cgroup_s_limit_counts_segments(
    limited: Path, open_folder: Path, count: int, told: str
) -> None:
    promised = limited / "hugetlb.2MB.rsvd.max"
    if not promised.exists():
        pytest.skip("a kernel before 5.7: it limits only pages that are touched")
    promised.write_text(str(2 * SMALL))
    out = open_folder / "out"
    subprocess.run(
        [*ENTER, str(limited / "cgroup.procs"), *SHMGET, str(out), str(count), "0"], check=True
    )
    assert out.read_text() == told


def test_a_pod_has_them_by_its_group(pages: None, tmp_path: Path, open_folder: Path) -> None:
    """A process of the agent: refused as nobody, and let in by a group of its pod's."""
    del pages
    skip_unless_an_agent_can_run()
    node = AgentProcess(tmp_path)

    def told(name: str, **security: Any) -> str:
        out = open_folder / name
        command = (*SHMGET, str(out), "1", "0")
        pod = manifest(name, ("main", command, "1"), restartPolicy="Never")
        (container,) = pod["spec"]["containers"]
        for amounts in container["resources"].values():
            amounts["hugepages-2Mi"] = "4Mi"
        pod["spec"]["securityContext"] = {"runAsUser": NOBODY, "runAsGroup": OTHER, **security}
        assert node.apply(pod)["reason"] is None
        wait_until(out.exists)
        node.client.delete(f"/v1/pods/default/{name}?grace=0")
        return out.read_text()

    try:
        node.start()
        assert told("nobody") == REFUSED
        assert told("member", supplementalGroups=[GROUP]) == ""
    finally:
        node.clean_up()
