"""The ledger of allocations, and the state files of the kubelet as documents; no I/O."""
