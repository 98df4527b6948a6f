"""Four host devices for every test, and strict arithmetic: no silent promotion of types or ranks."""

import jax

jax.config.update("jax_num_cpu_devices", 4)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
