"""A run as one value, its options as words, and its folder."""
