"""What `benchmarks/compile_for_gpu.py` is made of: targets, compiled text, trips of loops, kernels, a roofline."""
