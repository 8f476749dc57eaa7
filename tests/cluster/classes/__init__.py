"""Classes of resources in a cluster."""
