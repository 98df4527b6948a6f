"""Grids of runs: points, their batching into programs, launchers, and results."""
