"""What a node decides about a pod: pure, complete before anything changes."""
