"""A run as one value, the words that describe it, and the folder that it ends in."""
