"""What a kubelet is configured to do, and its own faults."""
