"""The errors a user can meet. Each message names the thing, the place and the way out, in one line."""

from __future__ import annotations


class HopeError(Exception):
    """Base of every error this package raises on purpose."""


class InvalidExample(HopeError, ValueError):
    """The example input is missing or the model cannot run on it."""


class UnsupportedModel(HopeError):
    """The model cannot be read: it does not export, or its parameters cannot be cut."""


class InvalidAction(HopeError, ValueError):
    """An action names a neuron or block that is not there, or cannot be done as asked."""


class InfeasibleBudget(HopeError, ValueError):
    """No budget was given, several were, or the one that was cannot be met."""


class UnknownMethod(HopeError, ValueError):
    """There is no method of that name, or it has no such option."""


class CheckpointMismatch(HopeError):
    """A saved folder and a model do not belong together."""


class CannotWrite(HopeError, OSError):
    """A file cannot be written where it was asked for."""


class DamagedFolder(HopeError):
    """A saved folder is incomplete, altered, or not one of ours."""


class InvalidAccuracies(HopeError, ValueError):
    """A file of accuracies does not say what it should."""


class MissingExtra(HopeError):
    """An optional package is not installed."""


class CannotPlot(HopeError):
    """There is no figure of that kind."""


class InvalidPartition(HopeError, ValueError):
    """A partition was asked for in a way that there is none."""


class LostSource(UserWarning):
    """DEFT's cut leaves little of the source task."""


class NotSeparable(HopeError):
    """Slack cannot be kept apart from core in this network; the message names the place."""


class InvalidHead(HopeError, ValueError):
    """A head was asked for that cannot be made."""


class InvalidPenalty(HopeError, ValueError):
    """A penalty was asked for that cannot be computed."""


class CannotExport(HopeError):
    """A network cannot be written as asked, or what was written gives other answers; no file is left."""


class Misused(HopeError):
    """The command line says something that it cannot."""


class UnknownModel(HopeError, ValueError):
    """MODEL does not name something that can be built."""


class MissingData(HopeError):
    """A data set is not at hand."""


class EnginesDisagree(HopeError):
    """onnxruntime gives other answers than torch."""


def first_line(error: BaseException, limit: int = 200) -> str:
    """The first line of an error's text, for quoting inside a one-line message.

    >>> first_line(ValueError("shapes differ\\nlong explanation"))
    'shapes differ'
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    return text if len(text) <= limit else text[: limit - 1] + "…"
