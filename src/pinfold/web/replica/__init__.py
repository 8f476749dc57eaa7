"""What the servers of a replica share: addresses, bodies, certificates, health, metrics."""
