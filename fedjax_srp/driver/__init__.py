"""The host's side of a run: settings, programs, checkpoints, progress."""
