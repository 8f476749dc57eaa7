"""How much slower than usual the machine is (``TRIAL_PATIENCE``), such as one that is emulated.

Who waits for the agent waits so much longer, and what the trial itself does all the time it does so
much less often, so that the machine has something left for the agent.
"""

from __future__ import annotations

import os
from typing import Final

PATIENCE: Final = max(1.0, float(os.environ.get("TRIAL_PATIENCE", "1")))
