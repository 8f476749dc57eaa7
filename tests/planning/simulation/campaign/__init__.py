"""All runs of an experiment."""
