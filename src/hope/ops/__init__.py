"""What each operator does."""

from hope.ops import channelwise, views, weights
from hope.ops.registry import apply

__all__ = ["apply", "channelwise", "views", "weights"]
