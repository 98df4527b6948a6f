"""Modules of `benchmarks/compile_for_gpu.py`: targets, compiled text, trips of loops, kernels, a roofline."""
