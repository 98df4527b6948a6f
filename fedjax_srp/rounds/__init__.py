"""Rounds as pure functions: cohorts, chunks, devices, scores, the first state."""
