"""The device manager: devices, and which of them somebody gets."""
