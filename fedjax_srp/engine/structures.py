"""What functions of an author returned, in words, and whether it is like something else: told from shapes alone."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_srp.base import PyTree

SHOWN = 160  # characters of a structure in a message


def no_arrays(tree: PyTree) -> list[str]:
    """What a structure holds that is no array, in words."""
    try:
        leaves = jax.tree.leaves(tree)
    except (TypeError, ValueError):  # JAX sorts the names of a dict
        return ["a dict with names of several types"]
    kinds = [type_of(leaf) for leaf in leaves if not is_array(leaf)]
    return [kind if leaves[0] is tree else f"something with {kind} in it" for kind in kinds]


def is_array(leaf: Any) -> bool:
    """Whether a leaf is what a program can return: an array or a number."""
    if isinstance(leaf, np.ndarray | np.generic):
        return is_number(leaf)
    return isinstance(leaf, jax.Array | bool | int | float | complex)


def is_number(leaf: Any) -> bool:
    """Whether an array, or its shape, holds numbers or flags: no keys, no text."""
    return jnp.issubdtype(leaf.dtype, np.number) or jnp.issubdtype(leaf.dtype, np.bool_)


def type_of(value: Any) -> str:
    """The name of a type with its article."""
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def kind_of(returned: Any) -> str:
    """What was returned, its type or its shape."""
    if type(returned) is tuple:
        return f"({', '.join(kind_of(part) for part in returned)})"
    has_shape = isinstance(returned, jax.Array | jax.ShapeDtypeStruct)
    return f"the array {shapes_of(returned)}" if has_shape else type_of(returned)


def shapes_of(tree: PyTree) -> str:
    """A structure in a few words: its types and shapes."""
    text = str(jax.tree.map(lambda leaf: f"{leaf.dtype}{list(leaf.shape)}", tree)).replace("'", "")
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."


def paths(tree: PyTree) -> list[str]:
    """The place of each leaf."""
    return [jax.tree_util.keystr(path).removeprefix(".") for path, _ in jax.tree.leaves_with_path(tree)]


def _namesake(new: Any, old: Any) -> str | None:
    """The name of the first two classes in two tree definitions that differ and have one name."""
    node, other = new.node_data(), old.node_data()
    if node is None or other is None:
        return None
    if node[0] is not other[0]:
        return node[0].__name__ if node[0].__qualname__ == other[0].__qualname__ else None
    return next(filter(None, map(_namesake, new.children(), old.children())), None)


def check_like(what: str, returned: PyTree, expected: PyTree, demand: str) -> None:
    """Refuses a structure, shapes or types other than expected: "what (shapes), demand: (shapes)"."""
    structures = jax.tree.structure(returned), jax.tree.structure(expected)
    if structures[0] != structures[1]:
        if name := _namesake(*structures):
            raise ValueError(
                f"{what} {shapes_of(returned)}, {demand}, which is of another class {name}: one that a function "
                "defines is another in every call; define it at the top of the file"
            )
        new, old = paths(returned), paths(expected)
        lacks, has = [name for name in old if name not in new], [name for name in new if name not in old]
        hint = f" (without {lacks[0]})" if lacks else f" (with {has[0]} besides)" if has else ""
        hint = hint if "" not in (*new, *old) else ""  # one of them is an array itself
        raise ValueError(f"{what} {shapes_of(returned)}{hint}, {demand}: {shapes_of(expected)}")
    for name, new, old in zip(paths(returned), jax.tree.leaves(returned), jax.tree.leaves(expected), strict=True):
        if new.shape != old.shape or new.dtype != old.dtype:
            raise ValueError(f"{what} {f'{name} = ' if name else ''}{shapes_of(new)}, {demand}: {shapes_of(old)}")
