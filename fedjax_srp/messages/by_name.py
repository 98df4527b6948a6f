"""Codecs by name and as texts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedjax_srp.messages import codecs
from fedjax_srp.messages.codecs import Codec, ErrorFeedback
from fedjax_srp.parts.checks import as_annotated
from fedjax_srp.parts.options import checked_maker
from fedjax_srp.parts.registry import Registry
from fedjax_srp.parts.texts import read_part

_ALL = (
    codecs.Half,
    codecs.Quantized,
    codecs.Sign,
    codecs.TopK,
    codecs.RandomK,
    codecs.LowRank,
    codecs.ErrorFeedback,
)
_CONSTRUCTORS: dict[str, Callable[..., Any]] = {cls.__name__: cls for cls in _ALL}
CODECS: Registry[Callable[..., Any]] = Registry(
    "codec",
    {name.lower(): cls for name, cls in _CONSTRUCTORS.items()},
    adds="srp.messages.register",
    reserved=(*_CONSTRUCTORS, "N"),
)


def register(name: str, maker: Callable[..., Codec]) -> None:
    """Register your own codec, to be given as a text: `up="name"` or `up="name(2)"`.

    Args:
        name: of the codec.
        maker: a class of codecs, or a function that returns one. The text in brackets has its arguments.

    Raises:
        ValueError: the name of a codec of the package.

    Example:
        >>> import fedjax_srp as srp
        >>> def few_bits(share: float = 0.1):
        ...     return srp.messages.TopK(share, values=srp.messages.Quantized(4))
        >>> srp.messages.register("few_bits", few_bits)
        >>> del srp.messages.CODECS["few_bits"]
    """
    CODECS.add(name, checked_maker("codec", maker, Codec))


def read_codec(argument: str, given: Any) -> Any:
    """Return a codec that is given as a text; other values as they are.

    Args:
        argument: its name, for errors.
        given: such as "TopK(0.01)", "errorfeedback(sign)" or "None".

    Raises:
        ValueError: one line with the text, what is not understood, and the remedy.

    Example:
        >>> read_codec("up", "TopK(0.01, values=Quantized(4))").values.bits
        4
    """
    if not isinstance(given, str):
        return given
    remedy = f"give e.g. TopK(0.01) or quantized(8), see srp.messages; {CODECS.remedy}"
    made = read_part(argument, given, _CONSTRUCTORS | CODECS, remedy)
    return as_annotated(argument, made, Codec | ErrorFeedback | None)
