"""XLA: loops, platforms, cores, and the cache of compiled programs on disk."""
