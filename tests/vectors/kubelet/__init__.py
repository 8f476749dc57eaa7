"""A small kubelet on the product's policies: who is asked in which order, and what stays after.

It decides nothing: hints, merges, allocations, texts, state files and cgroup values are the
product's.  What is here is the container manager's order: pods that are active, sweeps, stored
affinities, restarts.
"""
