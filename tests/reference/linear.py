"""The linear model in NumPy: SRPFL's Algorithm 2 and the population rounds of FedAvg, one client after the other."""

import numpy as np


def orthonormal(matrix):
    """An orthonormal basis of the column space, by the singular vectors: no sign convention of a QR is assumed."""
    return np.linalg.svd(matrix, full_matrices=False)[0]


def distance(b1, b2):
    """Largest sine of a principal angle, from the projectors."""
    p1, p2 = (q @ q.T for q in (orthonormal(b1), orthonormal(b2)))
    return np.linalg.norm(
        p1 - p2, 2
    )  # = sin of the largest angle for subspaces of equal dimension


def fedrep_round(b, batches, step_size, head_steps=None, heads=None, head_step_size=None):
    """Lines 8 to 14 of Algorithm 2 on given batches [(X, y), ...]; returns the Q factor of the mean and the heads.

    `head_steps[i]` gradient steps of each client from `heads[i]`; without them, exact heads.
    """
    locals_, new_heads = [], []
    for i, (x, y) in enumerate(batches):
        m = len(y)
        if head_steps is None:
            w = np.linalg.lstsq(x @ b, y, rcond=None)[0]
        else:
            w = heads[i].copy()
            for _ in range(head_steps[i]):
                w -= head_step_size * (x @ b).T @ (x @ b @ w - y) / m
        gradient = -x.T @ np.outer(y - x @ b @ w, w) / m
        locals_.append(b - step_size * gradient)
        new_heads.append(w)
    return np.linalg.qr(sum(locals_) / len(locals_))[0], np.array(new_heads)


def moments(batches, rank):
    """Lines 1 to 5: top eigenvectors of the mean of P_i."""
    p = sum(
        sum(yj**2 * np.outer(xj, xj) for xj, yj in zip(x, y, strict=True)) / len(y)
        for x, y in batches
    )
    return np.linalg.eigh(p / len(batches))[1][:, -rank:]


def fedavg_round(b, w, truth, heads, step_size, local_steps):
    """Population gradients of 1/2 ||B w - B* w_i*||^2, B and w stepped together, both averaged."""
    bs, ws = [], []
    for head in heads:
        bi, wi = b.copy(), w.copy()
        for _ in range(local_steps):
            residual = bi @ wi - truth @ head
            bi, wi = (
                bi - step_size * np.outer(residual, wi),
                wi - step_size * bi.T @ residual,
            )
        bs.append(bi)
        ws.append(wi)
    return np.mean(bs, axis=0), np.mean(ws, axis=0)
