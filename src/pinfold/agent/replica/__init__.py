"""What serves a whole cluster, in several replicas: for quotas, for classes."""
