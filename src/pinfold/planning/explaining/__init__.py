"""Why pods got what they have, or were rejected: one decision, many of them, pods as a whole."""
