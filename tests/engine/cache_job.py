"""The run of `test_compilation_cache`: prints the hits and misses of the persistent cache."""

import os
import sys
from pathlib import Path

import jax

COUNTS = {
    "/jax/compilation_cache/cache_hits": 0,
    "/jax/compilation_cache/cache_misses": 0,
}


def main():
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_num_cpu_devices", 2)
    jax.monitoring.register_event_listener(
        lambda event, **_: COUNTS.update({event: COUNTS.get(event, 0) + 1})
    )
    from reference.small import KEY, algorithm_of, numbers

    import fedjax_srp as srp
    from fedjax_srp import ClientOutput
    from fedjax_srp.xla.loops import sequential

    def client(key, broadcast, state, value, context):
        return ClientOutput(sequential(lambda v: v + broadcast)(value), state + value)

    algorithm = algorithm_of(client, init_client=lambda key, server, value: value)
    policy = srp.participation.Doubling(2, 1)
    srp.simulate(
        algorithm,
        numbers(1.0, 2.0, 3.0, 4.0),
        participation=policy,
        num_rounds=2,
        key=KEY,
        progress=False,
    )
    print(
        *(
            COUNTS[event]
            for event in sorted(COUNTS)
            if "cache_hits" in event or "cache_misses" in event
        )
    )


if __name__ == "__main__":
    sys.path.insert(0, os.fspath(Path(__file__).parents[1]))
    main()
