"""What containers use and wait for: counters of the kernel, and rates over a short history."""
