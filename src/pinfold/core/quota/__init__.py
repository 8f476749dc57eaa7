"""Quotas of namespaces: what pods and claims are charged, and when one is refused."""
