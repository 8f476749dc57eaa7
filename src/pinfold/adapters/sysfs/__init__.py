"""Machines as sysfs, hwloc, cAdvisor and lscpu tell of them."""
