"""What each operator does to channels."""

from hope.anatomy.rules import channelwise, views, weights
from hope.anatomy.rules.registry import apply

__all__ = ["apply", "channelwise", "views", "weights"]
