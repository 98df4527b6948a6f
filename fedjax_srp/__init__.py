"""Straggler-resilient personalized federated learning in JAX, on simulated wall-clock time."""
