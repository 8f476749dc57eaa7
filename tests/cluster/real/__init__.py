"""Against Kubernetes itself; see tests/scenes/control_plane.py."""
