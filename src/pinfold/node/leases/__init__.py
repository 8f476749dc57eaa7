"""What is lent and capped, for as long as somebody watches over it."""
