"""Devices in an admission: what is asked for, given by class, or given already."""
