"""HetLoRA and FlexLoRA in NumPy: matrices of a client's rank are cut out, trained, and averaged.

Matrices are `{kernel: {"a": (inputs, rank), "b": (rank, outputs)}}`, with kernels called "LAYER/kernel".
"""

import numpy as np
from reference import mlp
from reference.local import train


def adapted(base, matrices, scaling):
    """The model with W + scaling A B in place of each kernel."""
    return {
        name: {
            "kernel": layer["kernel"]
            + scaling * matrices[f"{name}/kernel"]["a"] @ matrices[f"{name}/kernel"]["b"],
            "bias": layer["bias"],
        }
        for name, layer in base.items()
    }


def client(base, matrices, rank, scaling, x, y, rows, sgd):
    """The matrices of this rank after training beside a frozen base."""

    def gradient(small, x, y):
        of_model = mlp.gradient(adapted(base, small, scaling), x, y)
        found = {}
        for name, pair in small.items():
            of_kernel = scaling * of_model[name.removesuffix("/kernel")]["kernel"]
            found[name] = {"a": of_kernel @ pair["b"].T, "b": pair["a"].T @ of_kernel}
        return found

    small = {
        name: {"a": pair["a"][:, :rank], "b": pair["b"][:rank]}
        for name, pair in matrices.items()
    }
    return train(small, list(small), x, y, rows, sgd, gradient)


def padded(pair, rank):
    missing = rank - pair["b"].shape[0]
    return {
        "a": np.pad(pair["a"], ((0, 0), (0, missing))),
        "b": np.pad(pair["b"], ((0, missing), (0, 0))),
    }


def hetlora(parts, weights, rank, is_by_norm):
    """Zero-padded means, weighted by the norms of the products."""
    found = {}
    for name in parts[0]:
        norms = [np.linalg.norm(part[name]["a"] @ part[name]["b"]) for part in parts]
        shares = np.array(weights) * (norms if is_by_norm else 1.0)
        whole = [padded(part[name], rank) for part in parts]
        found[name] = {
            leaf: sum(s * pair[leaf] for s, pair in zip(shares, whole, strict=True))
            / shares.sum()
            for leaf in ("a", "b")
        }
    return found


def mean_products(parts, weights):
    """The mean of the products, by kernel."""
    shares = np.array(weights) / np.sum(weights)
    return {
        name: sum(
            s * part[name]["a"] @ part[name]["b"]
            for s, part in zip(shares, parts, strict=True)
        )
        for name in parts[0]
    }


def nearest(products, rank):
    """The products of the largest singular values."""

    def cut(product):
        u, s, vt = np.linalg.svd(product, full_matrices=False)
        return (u[:, :rank] * s[:rank]) @ vt[:rank]

    return {name: cut(product) for name, product in products.items()}


def products_of(matrices):
    return {name: pair["a"] @ pair["b"] for name, pair in matrices.items()}
