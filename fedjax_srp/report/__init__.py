"""What a run or a grid of runs leaves on disk."""
