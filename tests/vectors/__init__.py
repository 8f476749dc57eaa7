"""Replays recorded kubelet decisions against the library: ``python -m tests.vectors FILE...``.

Every module of this package but ``__main__`` and ``runner`` is a family (packages are what families
share): it exports
``claims(case) -> bool`` (is this case one of mine, told by its fields) and
``replay(case, topologies) -> Outcome``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pinfold.core.kubelet.versions import V1_34, KubeletVersion, named_version

Case = dict[str, Any]


def version_of(case: Case) -> KubeletVersion:
    """The kubelet whose answers the case holds; the older files name none, and hold 1.34's."""
    return named_version(case["version"]).version if "version" in case else V1_34


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one case.

    ``fault`` names the upstream fault (a slug of ``docs/kubelet-differences.md``) where the
    recorded answer is one that ``pinfold plan`` refuses or the agent answers differently.
    """

    passed: bool
    detail: str = ""
    fault: str | None = None
