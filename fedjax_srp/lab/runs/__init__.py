"""Runs: their options, their records, and their folders."""
