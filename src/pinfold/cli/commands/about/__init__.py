"""Commands about the program itself: its documents, its completion, its manual."""
