"""What every adapter needs of the kernel, once."""
