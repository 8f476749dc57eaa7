"""What a fleet of nodes would do with the pods that come to it over time."""
