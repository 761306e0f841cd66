"""Why something is left alone: a cause, the place that causes it, and a sentence for people.

Code compares causes; sentences are for reading only.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Cause(Enum):
    """Everything that can keep a layer, a block or a parameter as it is.

    The value is (sentence, a few words for tables); a sentence may name a place and a detail.

    >>> str(Cause.NORMALISED.at("softmax in attention"))
    'softmax in attention normalises its channels together'
    """

    # channels that cannot be told apart or cut
    OUTPUT = "it is an output of the model", "output of the model"
    NORMALISED = "{place} normalises its channels together", "layer, group or softmax normalisation"
    COMPUTED = (
        "{place} uses weights that are computed at run time (normalised, standardised or masked)",
        "weights computed at run time",
    )
    MIXED = "{place} mixes it by position", "mixed by position (tokens, windows)"
    SPLIT_INTO_GROUPS = "{place} splits its channels into groups by position", "split by position"
    SPLIT = "{place} splits its channels by position", "split by position"
    PART_TAKEN = "{place} takes a part of its channels by position", "split by position"
    ONE_TAKEN = "{place} takes one of its channels by position", "split by position"
    REORDERED = "{place} reorders its channels by position", "split by position"
    LOOKED_UP = "rows of an embedding are looked up by position", "split by position"
    UNKNOWN_OPERATOR = (
        "{place} mixes or reorders channels in a way that is not analysed",
        "operator without a rule",
    )
    GROUPED = "{place} is grouped over channels that stay", "grouped over channels that stay"
    GOES_WITH_GROUPS = (
        "it goes with the channels it is grouped over, which stay",
        "grouped over channels that stay",
    )
    READS_FIXED = "{place} reads channels that stay", "grouped over channels that stay"
    UNTRACKED = (
        "{place} combines it with values whose channels are not tracked",
        "combined with untracked values",
    )
    COMBINED = "{place} combines it with channels that stay", "combined with channels that stay"
    POOLED = "{place} pools over its channels", "pooled over channels"
    RESIZED = "{place} resizes along its channels", "resized along channels"
    PADDED = "{place} pads along its channels", "padded along channels"
    SUMMED = "{place} sums up over its channels", "summed up over channels"
    JOINED = (
        "{place} joins it along a dimension it shares with others",
        "joined with others in one dimension",
    )
    FOLDED = (
        "{place} folds two kinds of channels into one dimension",
        "joined with others in one dimension",
    )
    # what the channels turned out to be
    SHARED_WEIGHT = "its weight is shared by {place}", "shared weights"
    USED_AGAIN = "{place} is used {detail} times in one pass (a shared module)", "shared weights"
    STREAM = (
        "a stream: {place} ties it to {detail}; streams are not compressed yet",
        "part of a residual stream",
    )
    SINGLE = "it has a single neuron", "too few neurons"
    UNREAD = "no weights read it", "no weights read it"
    ALL_AT_ONCE = "its channels can only go all at once", "channels only go all at once"
    UNLIKE = (
        "its neurons are not alike: some own more places in the weights that read them",
        "neurons not alike",
    )
    UNUSED = "not used when the model runs", "not used"
    # what the model's own code does not accept
    FIXED_WIDTH = (
        "the model's code does not accept another width: {detail}",
        "width written down in the code",
    )
    INTERWOVEN = (
        "the block cannot be evicted: its code is interwoven with what surrounds it",
        "block interwoven with other code",
    )
    SHARED_MODULE = (
        "the block cannot be evicted: it lies in a module that is used in several places",
        "block the code does not run without",
    )
    NEEDED = "the block cannot be evicted: {detail}", "block the code does not run without"
    # what a method does not know
    EXCLUDED = "excluded by {place!r}", "excluded"
    NO_BN = "it has no BN", "no BN"
    NO_BN_BEFORE = "no BN between it and {place}: it needs calibration", "needs calibration"
    OTHER_NORM = (
        "another normalisation stands between it and {place}: it needs calibration",
        "needs calibration",
    )
    NO_STATISTICS = "{place} keeps no running statistics: it needs calibration", "needs calibration"
    SCALED = "a scale stands between it and {place}: it needs calibration", "needs calibration"
    TWO_ACTIVATIONS = (
        "several activations in a row between it and {place}",
        "several activations in a row",
    )
    UNKNOWN_ACTIVATION = "its activation ({place}) has no known moments", "activation without moments"
    UNKNOWN_MOMENTS = "the moments of what {place} reads are not known", "moments not known"
    READ_AGAIN = "{place} is used several times", "shared weights"
    NO_PLAIN_ORDER = "{place} reads it in no plain order", "no plain order"
    PROJECTION = "its skip has weights: the paper evicts identity skips only", "skip with weights"
    NO_CAPACITY = "a layer in its branch has no capacity", "layer without capacity"
    NESTED = "it lies inside another block", "inside another block"
    ASKED = "asked for with core=", "asked for"
    TOLD = "{detail}", "told by an earlier version"

    @property
    def short(self) -> str:
        """A few plain words, without the names of modules."""
        return str(self.value[1])

    def at(self, place: str = "", detail: str = "") -> Reason:
        """The reason: this cause, there."""
        return Reason(self, place, detail)


@dataclass(frozen=True, repr=False)
class Reason:
    """Why something is left alone. `str` makes a sentence of it.

    Attributes:
        cause: what it is.
        place: where: an operator and its module, a module, a weight, a pattern.
        detail: whatever else the sentence tells, such as an error's own words.
    """

    cause: Cause
    place: str = ""
    detail: str = ""

    def __str__(self) -> str:
        sentence: str = self.cause.value[0]
        return sentence.format(place=self.place, detail=self.detail)

    def __repr__(self) -> str:
        words = str(self)
        return f"<Reason {self.cause.name}: {words if len(words) <= 100 else words[:99] + '…'}>"
