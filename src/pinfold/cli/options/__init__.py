"""The options that several commands share, so that they are called and mean the same."""
