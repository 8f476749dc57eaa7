"""Configuration files: what a kubelet is told."""
