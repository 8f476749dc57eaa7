"""What Pinfold's decisions cost, beside what the kubelet's own code takes for the same.

``python -m benchmarks [--json FILE] [--svg FILE] [NAME...]``.  A module with workloads exports
``WORKLOADS``: name -> setup, where setup makes everything that is not to be timed and returns the
call that is.
"""
