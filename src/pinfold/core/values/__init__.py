"""Values without a world: sets of CPUs, quantities, names."""
