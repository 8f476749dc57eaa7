"""What the node needs of the outside world: protocols, and the records that they speak of."""
