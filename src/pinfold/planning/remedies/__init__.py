"""Changes that would admit a refused pod, each of them tried."""
