"""The cgroups that a container runtime makes: found by who is in them, never made or removed."""
