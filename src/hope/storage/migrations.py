"""From the version before to the one that is written: plain data in, plain data out, a function per format.

A migration uses nothing of the package, so that it never has to change.
"""

from __future__ import annotations

from typing import Any

Plain = dict[str, Any]  # a JSON object


def run_to_3(plan: Plain) -> Plain:
    """Add bytes of entries (4, but for the counters of BNs), and that there are no times."""
    anatomy = plan["anatomy"]
    counters = {name: 8 for name in anatomy["shapes"] if name.rpartition(".")[2] == "num_batches_tracked"}
    return {**plan, "anatomy": {**anatomy, "itemsize": counters}, "times": [], "timing": None}


def adapter_to_2(plan: Plain) -> Plain:
    """Add notes."""
    return {"notes": [], **plan}
