"""All runs of an experiment: beside one another, in any order, once each."""
