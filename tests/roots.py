"""Where things are that tests read: the project, its samples, and what lies beside the project."""

from __future__ import annotations

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
DATA: Final = ROOT / "tests" / "data"
SHARED: Final = ROOT.parent / "shared"
"""Whole recordings and captured machines, where somebody has put them; tests go without."""
