"""Views of federations in NumPy, without padding."""

import jax.numpy as jnp
import numpy as np


def examples(data, client, kind="train"):
    """Return inputs and labels of one client."""
    own = getattr(data, f"{kind}_client")(jnp.int32(client))
    return np.asarray(own.x)[: own.count], np.asarray(own.y)[: own.count]


def rows(data, kind="train"):
    """Return each client's rows of x_train or x_test, as lists."""
    indices = np.asarray(getattr(data, f"{kind}_indices"))
    counts = np.asarray(getattr(data, f"{kind}_counts"))
    return [own[:count].tolist() for own, count in zip(indices, counts, strict=True)]
