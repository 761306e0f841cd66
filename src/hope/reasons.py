"""Why something is kept: a cause, the place that causes it, and a sentence for the user.

Code compares causes; sentences are for reading only.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

LISTED = "print(hope.inspect(...)) lists the reasons"  # what to do where a message has no better advice


class Cause(Enum):
    """Why a layer, a block or a parameter is not pruned.

    Each cause is (the word it is saved by, a sentence that may name a place and a detail, a short form for
    tables). The saved words must not change: saved files contain them.

    >>> str(Cause.NORMALISED.at("softmax in attention"))
    'softmax in attention normalises its channels together'
    """

    sentence: str
    short: str

    def __new__(cls, word: str, sentence: str, short: str) -> Cause:
        """The word is the value."""
        cause = object.__new__(cls)
        cause._value_ = word
        cause.sentence, cause.short = sentence, short
        return cause

    # fmt: off
    # channels that cannot be distinguished or cut
    OUTPUT = "output", "it is an output of the model", "output of the model"
    NORMALISED = "normalised", "{place} normalises its channels together", \
        "layer, group or softmax normalisation"
    COMPUTED = "computed", \
        "{place} uses weights that are computed at run time (normalised, standardised or masked)", \
        "weights computed at run time"
    MIXED = "mixed", "{place} mixes it by position", "mixed by position (tokens, windows)"
    SPLIT_INTO_GROUPS = "split_into_groups", "{place} splits its channels into groups by position", \
        "split by position"
    SPLIT = "split", "{place} splits its channels by position", "split by position"
    PART_TAKEN = "part_taken", "{place} takes a part of its channels by position", "split by position"
    ONE_TAKEN = "one_taken", "{place} takes one of its channels by position", "split by position"
    REORDERED = "reordered", "{place} reorders its channels by position", "split by position"
    LOOKED_UP = "looked_up", "rows of an embedding are looked up by position", "split by position"
    UNKNOWN_OPERATOR = "unknown_operator", \
        "{place} mixes or reorders channels in a way that is not analysed", "operator without a rule"
    GROUPED = "grouped", "{place} is grouped over kept channels", "grouped over kept channels"
    TIED_TO_GROUPS = "goes_with_groups", "it is grouped with kept channels", "grouped over kept channels"
    READS_FIXED = "reads_fixed", "{place} reads kept channels", "grouped over kept channels"
    UNTRACKED = "untracked", "{place} combines it with values whose channels are not tracked", \
        "combined with untracked values"
    COMBINED = "combined", "{place} combines it with kept channels", "combined with kept channels"
    POOLED = "pooled", "{place} pools over its channels", "pooled over channels"
    RESIZED = "resized", "{place} resizes along its channels", "resized along channels"
    PADDED = "padded", "{place} pads along its channels", "padded along channels"
    SUMMED = "summed", "{place} sums over its channels", "summed over channels"
    JOINED = "joined", "{place} joins it along a dimension it shares with others", \
        "joined with others in one dimension"
    FOLDED = "folded", "{place} folds two kinds of channels into one dimension", \
        "joined with others in one dimension"
    # properties of the channels
    SHARED_WEIGHT = "shared_weight", "its weight is shared by {place}", "shared weights"
    USED_AGAIN = "used_again", "{place} is used {detail} times in one pass (a shared module)", \
        "shared weights"
    STREAM = "stream", "a stream: {place} ties it to {detail}; prunable with streams=True", \
        "part of a residual stream"
    SINGLE = "single", "it has a single neuron", "too few neurons"
    UNREAD = "unread", "no weights read it", "no weights read it"
    ALL_AT_ONCE = "all_at_once", "its channels can only be removed all at once", \
        "channels removable only all at once"
    UNLIKE = "unlike", "its neurons differ in shape: some own more positions in the weights that read them", \
        "neurons of different shapes"
    UNUSED = "unused", "not used when the model runs", "not used"
    # what the model's own code does not accept
    FIXED_WIDTH = "fixed_width", "the model's code does not accept another width: {detail}", \
        "width hard-coded"
    INTERWOVEN = "interwoven", \
        "the block cannot be evicted: its code is interwoven with the surrounding code", \
        "block interwoven with other code"
    SHARED_MODULE = "shared_module", \
        "the block cannot be evicted: it is inside a module that is used in several places", \
        "block the code does not run without"
    NEEDED = "needed", "the block cannot be evicted: {detail}", "block the code does not run without"
    # limits of a method
    ALIKE = "alike", "uniform: the corresponding layer {place} is kept ({detail})", \
        "corresponds to a kept layer"
    NO_FIELD = "no_field", "uniform: the model's configuration has no field for its width", \
        "width not in the configuration"
    EXCLUDED = "excluded", "excluded by {place!r}", "excluded"
    NO_BN = "no_bn", "it has no BN", "no BN"
    NO_BN_BEFORE = "no_bn_before", "no BN between it and {place}: it needs calibration", "needs calibration"
    OTHER_NORM = "other_norm", "another normalisation is between it and {place}: it needs calibration", \
        "needs calibration"
    NO_STATISTICS = "no_statistics", "{place} has no running statistics: it needs calibration", \
        "needs calibration"
    SCALED = "scaled", "a scale is between it and {place}: it needs calibration", "needs calibration"
    TWO_ACTIVATIONS = "two_activations", \
        "several activations in a row between it and {place}: it needs calibration", "needs calibration"
    UNKNOWN_ACTIVATION = "unknown_activation", \
        "its activation ({place}) has no known moments: it needs calibration", "needs calibration"
    UNKNOWN_MOMENTS = "unknown_moments", "the moments of the input of {place} are unknown", "moments unknown"
    READ_AGAIN = "read_again", "{place} is used several times", "shared weights"
    NO_PLAIN_ORDER = "no_plain_order", "the input channels of {place} do not match its neurons", \
        "channels do not match neurons"
    PROJECTION = "projection", "its skip has weights: the paper evicts identity skips only", \
        "skip with weights"
    NO_SKIP = "no_skip", "it has no skip: absorption evicts residual branches only", "block without a skip"
    NO_CAPACITY = "no_capacity", "a layer in its branch has no capacity", "layer without capacity"
    NESTED = "nested", "it is inside another block", "inside another block"
    # weights that cannot be rounded
    TIED = "tied", "it is tied to {place}", "tied weights"
    NOT_MULTIPLIED = "not_multiplied", \
        "it is not the weight of a convolution (other than transposed) or a linear layer", \
        "no weight of a convolution or linear layer"
    USED_TIMES = "used_times", "it is used {detail} times in one pass", "shared weights"
    OUTPUTS_LAST = "outputs_last", "its outputs are not in the first dimension (a transposed layer)", \
        "outputs not in the first dimension"
    ASKED = "asked", "requested with core=", "requested"
    # fmt: on

    def at(self, place: str = "", detail: str = "") -> Reason:
        """This cause, at a place."""
        return Reason(self, place, detail)


@dataclass(frozen=True, repr=False)
class Reason:
    """Why something is kept. `str` gives the sentence."""

    cause: Cause  # the kind of reason
    place: str = ""  # where: an operator and its module, a module, a weight, a pattern
    detail: str = ""  # the rest of the sentence, such as an error message

    def __str__(self) -> str:
        return self.cause.sentence.format(place=self.place, detail=self.detail)

    def __repr__(self) -> str:
        words = str(self)
        return f"<Reason {self.cause.name}: {words if len(words) <= 100 else words[:99] + '…'}>"
