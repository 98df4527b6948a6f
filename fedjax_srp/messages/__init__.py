"""Messages: codecs, and `Coded`, the gate through which an algorithm's messages pass."""

from fedjax_srp.messages.by_name import CODECS as CODECS
from fedjax_srp.messages.by_name import register as register
from fedjax_srp.messages.codecs import (
    Codec,
    ErrorFeedback,
    Half,
    LowRank,
    Quantized,
    RandomK,
    Sign,
    TopK,
)
from fedjax_srp.messages.coded import Coded, CodedState

__all__ = [
    "Codec",
    "Coded",
    "CodedState",
    "ErrorFeedback",
    "Half",
    "LowRank",
    "Quantized",
    "RandomK",
    "Sign",
    "TopK",
    "register",
]
