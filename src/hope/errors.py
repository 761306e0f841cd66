"""The errors of this package. Each message is one line: what must be, what was given, what to do."""

from __future__ import annotations


class HopeError(Exception):
    """Base class of all errors of this package."""


class InvalidExample(HopeError, ValueError):
    """The example input is missing or the model cannot run on it."""


class UnsupportedModel(HopeError):
    """The model cannot be analysed: it does not export, or its parameters cannot be cut."""


class InvalidAction(HopeError, ValueError):
    """An action names a neuron or block that does not exist, or cannot be applied as requested."""


class InfeasibleBudget(HopeError, ValueError):
    """No budget or several budgets were given, or the budget cannot be reached."""


class UnknownMethod(HopeError, ValueError):
    """There is no method of that name, or it has no such option."""


class UnknownBudget(UnknownMethod, TypeError):
    """A keyword is neither an option of the call nor a budget."""


class CheckpointMismatch(HopeError):
    """A saved folder and a model do not belong together."""


class CannotWrite(HopeError, OSError):
    """A file cannot be written at the requested path."""


class DamagedFolder(HopeError):
    """A saved folder is incomplete, altered, or was not written by HOPE."""


class InvalidAccuracies(HopeError, ValueError):
    """A file of accuracies is invalid."""


class MissingExtra(HopeError):
    """An optional package is not installed."""


class CannotPlot(HopeError):
    """There is no figure of this kind."""


class InvalidPartition(HopeError, ValueError):
    """A partition with these arguments is not possible."""


class LostSource(UserWarning):
    """DEFT's severing leaves less than half of the source task."""


class NotSeparable(HopeError):
    """Slack cannot be separated from core in this network; the message names the place."""


class InvalidHead(HopeError, ValueError):
    """The requested head cannot be built."""


class InvalidPenalty(HopeError, ValueError):
    """The requested penalty cannot be computed."""


class CannotExport(HopeError):
    """A network cannot be exported as requested, or the export has other outputs; no file is left."""


class NotEnoughMemory(HopeError, MemoryError):
    """A run needs more memory than it may use, or than there is."""


class InvariantViolated(HopeError):
    """A run broke a rule that holds for all runs; the message names a file that reproduces it."""


class LostWorker(HopeError):
    """A worker of an executor ended before its work was done."""


class Misused(HopeError):
    """An invalid command line."""


class UnknownModel(HopeError, ValueError):
    """MODEL does not name a model that can be built."""


class MissingData(HopeError):
    """A data set is not available."""


class EnginesDisagree(HopeError):
    """onnxruntime and torch give different outputs."""


def first_line(error: BaseException, limit: int = 200) -> str:
    """The first line of an error's text, for quoting inside a one-line message.

    >>> first_line(ValueError("shapes differ\\nlong explanation"))
    'shapes differ'
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    return text if len(text) <= limit else text[: limit - 1] + "…"
