"""Containers of a kubelet, whose runtime asks before each step."""
