"""The nodes of a fleet: what pods ask of them, what they answer, and what moves there."""
