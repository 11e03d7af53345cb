"""A group's exchange along each axis, its input, and its recorded turns."""
