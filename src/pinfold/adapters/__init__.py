"""The outside worlds, one folder each."""
