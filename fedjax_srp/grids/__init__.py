"""Grids of runs: points, what of them runs together, where it runs, what it leaves behind."""
