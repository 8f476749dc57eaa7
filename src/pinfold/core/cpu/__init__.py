"""The CPU manager: allocation and the static policy."""
