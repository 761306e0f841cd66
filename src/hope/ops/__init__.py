"""What each operator does: one table, an entry for each, and nowhere else a list of operators.

Adding an operator is adding an entry: `register` does it for operators of your own.
"""

from hope.ops import activation, attention, elementwise, join, norm, pool, shape, source, weight
from hope.ops.activation import Activation
from hope.ops.elementwise import Elementwise, Identity
from hope.ops.norm import epsilons
from hope.ops.registry import Operator, Registration, channels, find, forms, register, resize

__all__ = [
    "Activation", "Elementwise", "Identity", "Operator", "Registration", "activation", "attention",
    "channels", "elementwise", "epsilons", "find", "forms", "join", "norm", "pool", "register", "resize",
    "shape", "source", "weight",
]  # fmt: skip
