"""What commands show that watch: events as they come, on a screen or as text."""
