"""How long a manifest may be."""

from __future__ import annotations

from typing import Final

MANIFEST_BYTES: Final = 1536 << 10
"""The longest manifest of a pod that is to run: what etcd takes in one request by default."""
