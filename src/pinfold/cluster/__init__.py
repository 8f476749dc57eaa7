"""What runs once in a cluster: quotas of namespaces, and classes of devices."""
