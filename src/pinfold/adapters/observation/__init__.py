"""What containers use and wait for and how idle CPUs are, read often: files stay open."""

from pinfold.adapters.observation.containers import CgroupMeters
from pinfold.adapters.observation.cpus import ProcCPUMeter

__all__ = ["CgroupMeters", "ProcCPUMeter"]
