"""The engine: whole rounds, whole segments of rounds, compiled."""
