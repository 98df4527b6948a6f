"""The laboratory: runs from options, grids of runs, reports, and the command line."""
