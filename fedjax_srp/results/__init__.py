"""Results of runs: histories, their measures and their folders."""
