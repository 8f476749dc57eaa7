"""Huge pages of the kernel: its pools in sysfs."""

from pinfold.adapters.hugetlb.pools import HugePagePools
from pinfold.adapters.hugetlb.sysfs import HugePagePoolError, KeptPages

__all__ = ["HugePagePoolError", "HugePagePools", "KeptPages"]
