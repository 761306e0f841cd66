"""What can be done to a network: one file per kind of action."""

from hope.actions.absorption import Absorption
from hope.actions.base import Action, Rewrite
from hope.actions.evict import Evict
from hope.actions.merge import Merge
from hope.actions.prune import Prune
from hope.actions.quantise import Quantise
from hope.actions.registered import AnyAction, kinds, register, unregister

__all__ = [
    "Absorption",
    "Action",
    "AnyAction",
    "Evict",
    "Merge",
    "Prune",
    "Quantise",
    "Rewrite",
    "kinds",
    "register",
    "unregister",
]
