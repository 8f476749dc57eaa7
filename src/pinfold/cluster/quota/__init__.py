"""Quotas in a cluster: what is charged when, and what is kept in step."""
