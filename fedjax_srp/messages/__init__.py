"""Messages: the gate through which an algorithm's messages pass, as codes (`Coded`) and with privacy (`Private`)."""

from fedjax_srp.messages.accountant import PrivacyLoss
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
from fedjax_srp.messages.private import Private, PrivateState

__all__ = [
    "Codec",
    "Coded",
    "CodedState",
    "ErrorFeedback",
    "Half",
    "LowRank",
    "PrivacyLoss",
    "Private",
    "PrivateState",
    "Quantized",
    "RandomK",
    "Sign",
    "TopK",
    "register",
]
