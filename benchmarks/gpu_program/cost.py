"""Bytes moved and operations of an instruction of an optimised program, from shapes alone.

Bytes are those of operands and results of every kernel: data that stays in a cache between two kernels counts as moved,
and a matrix that one kernel reads twice counts once. Operations are those of products and convolutions.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from gpu_program.hlo import Instruction, Module

FREE = frozenset(
    ("parameter", "get-tuple-element", "tuple", "constant", "bitcast", "after-all", "partition-id", "replica-id")
)
SLICES = ("dynamic-slice", "gather", "slice")
UPDATES = ("dynamic-update-slice", "scatter")
RESHAPES = ("bitcast", "copy", "convert", "transpose", "reshape", "get-tuple-element")
UNARY = ("negate", "exponential", "log", "tanh", "sqrt", "rsqrt", "abs", "sign", "not")
BINARY = ("and", "or", "xor", "add", "subtract", "multiply", "divide", "maximum", "minimum", "compare", "select")
PASSED_ON = frozenset((*RESHAPES, *UNARY, *BINARY))  # an element of the result needs that element of the operand
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")


class Cost(NamedTuple):
    """Cost of one run of an instruction on one device."""

    num_bytes: float  # read from and written to memory
    flops: float  # of products and convolutions, a multiplication and an addition each
    exchanged: float  # bytes of a collective's operands or of its result, whichever are more


class Costs:
    """Costs of the instructions of one program."""

    def __init__(self, module: Module):
        self.module = module
        self._shares: dict[tuple[str, str], float] = {}
        self._users: dict[str, dict[str, list[tuple[Instruction, int]]]] = {}

    def of(self, computation: str, instruction: Instruction) -> Cost:
        """Cost of an instruction that is neither a loop nor a conditional."""
        if instruction.op in FREE or instruction.op.endswith("-done"):
            return Cost(0, 0, 0)
        is_collective = instruction.op.removesuffix("-start") in COLLECTIVES
        moved = self._read(computation, instruction) + self._written(computation, instruction)
        sent = sum(operand.num_bytes for operand in self.module.operands(computation, instruction))
        exchanged = max(sent, instruction.shapes[-1].num_bytes) if is_collective else 0
        return Cost(moved, self.flops(computation, instruction), exchanged)

    def _read(self, computation: str, instruction: Instruction) -> float:
        operands = self.module.operands(computation, instruction)
        inner = instruction.called() if instruction.op == "fusion" else None
        if inner is not None:
            shares = [self._share(inner, name) for name in self.module.parameters(inner)]
        else:
            shares = [_share_read(instruction, place, operand) for place, operand in enumerate(operands)]
        return sum(share * operand.num_bytes for share, operand in zip(shares, operands, strict=True))

    def _share(self, computation: str, name: str) -> float:
        """Fraction of a value that a fusion reads: the sum over its users, at most 1."""
        if (computation, name) not in self._shares:
            read = {}  # by user: one that has a value as several operands reads it once
            for user, place in self._used(computation).get(name, []):
                if user.op in PASSED_ON:
                    share = self._share(computation, user.name)
                elif user.op == "fusion" and (inner := user.called()):
                    share = self._share(inner, self.module.parameters(inner)[place])
                else:
                    share = _share_read(user, place, self.module.computations[computation][name])
                read[user.name] = max(share, read.get(user.name, 0.0))
            is_result = name == self.module.roots[computation]
            self._shares[computation, name] = 1.0 if is_result else min(1.0, sum(read.values()))
        return self._shares[computation, name]

    def _used(self, computation: str) -> dict[str, list[tuple[Instruction, int]]]:
        """Value -> its users, with the position of the operand."""
        if computation not in self._users:
            found: dict[str, list[tuple[Instruction, int]]] = {}
            for user in self.module.computations[computation].values():
                for place, operand in enumerate(user.operands):
                    found.setdefault(operand, []).append((user, place))
            self._users[computation] = found
        return self._users[computation]

    def _written(self, computation: str, instruction: Instruction) -> float:
        """Bytes that an instruction writes; an update in place writes the update only."""
        operands = self.module.operands(computation, instruction)
        if instruction.op == "fusion" and (inner := instruction.called()):
            within = self.module.computations[inner]
            return self._written(inner, within[self.module.roots[inner]])
        if instruction.op == "tuple":
            return sum(self._written(computation, part) for part in operands)
        if instruction.op == "bitcast":
            return self._written(computation, operands[0])
        if instruction.op in UPDATES:
            return operands[1 if instruction.op == "dynamic-update-slice" else -1].num_bytes
        if instruction.op == "custom-call" and len(instruction.shapes) > 1:  # the last result is its working memory
            return sum(shape.num_bytes for shape in instruction.shapes[:-1])
        return instruction.num_bytes

    def flops(self, computation: str, instruction: Instruction) -> float:
        """Floating-point operations of the products and convolutions in an instruction and in what it calls."""
        if instruction.op == "fusion" and (inner := instruction.called()):
            return sum(self.flops(inner, part) for part in self.module.computations[inner].values())
        is_product = instruction.op == "dot" or "cublas" in instruction.target
        is_convolution = instruction.op == "convolution" or "cudnn$conv" in instruction.target
        if not (is_product or is_convolution):
            return 0
        result = instruction.shapes[0]
        left, right = (operand.shapes[0] for operand in self.module.operands(computation, instruction)[:2])
        if is_product:
            return 2 * result.size * math.prod(left.dims[axis] for axis in _contracted(instruction))
        # A convolution's output and kernel; its gradients have the same products, otherwise arranged.
        kernel, output = right, result
        if "BackwardInput" in instruction.target:
            output = left
        elif "BackwardFilter" in instruction.target:
            kernel, output = result, right
        return 2 * output.size * kernel.size / kernel.dims[_kernel_labels(instruction).index("o")]


def _share_read(user: Instruction, place: int, operand: Instruction) -> float:
    """Fraction of its operand at position `place` that an instruction reads."""
    if place == 0 and user.op in UPDATES:
        return 0.0  # they work in place
    if place == 0 and user.op in SLICES and operand.num_bytes:
        return min(1.0, user.num_bytes / operand.num_bytes)
    return 1.0


def _contracted(product: Instruction) -> list[int]:
    """Axes of the left operand that a product sums over."""
    found = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", product.attributes)
    if found:
        return [int(axis) for axis in found[1].split(",") if axis]
    found = re.search(r'"lhs_contracting_dimensions":\[([^\]]*)\]', product.attributes)
    return [int(axis) for axis in re.findall(r"\d+", found[1])] if found else []


def _kernel_labels(convolution: Instruction) -> str:
    """The axes of a convolution's kernel: o for its outputs, i for its inputs, digits in space."""
    found = re.search(r"dim_labels=\w+_(\w+)->", convolution.attributes)
    if not found:
        raise ValueError(f"convolution {convolution.name} has no dim_labels; give the text of a compiled program")
    return found[1]
