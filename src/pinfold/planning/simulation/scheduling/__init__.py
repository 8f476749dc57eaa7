"""Which node a pod is sent to, found without looking at all of them."""
