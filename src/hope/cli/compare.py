"""What sets a saved or interrupted run apart from the one that is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hope._util.names import current_settings
from hope.errors import DamagedFolder, InfeasibleBudget, first_line
from hope.schedule.budget import Budget, run_budget

USUAL = {
    "streams": False,
    "uniform": False,
    "ranked": "params",
    "widths": "given",
    "bits": [],
    "group": None,
    "round": "feedback",
}  # unless a run has other values


def _unsaid(budget: Budget, given: dict[str, Any]) -> dict[str, Any]:
    """What else distinguishes runs: the ranking of steps, unless by time, and the origin of the widths."""
    ranks = budget.ranks(given["method"].by_budget) and not budget.kind.timed
    ranked = budget.unit if ranks else USUAL["ranked"]
    widths = "chosen" if given["multiple_of"] is None else USUAL["widths"]
    return {"ranked": ranked, "widths": widths}


def differing(
    folder: Path, model: Any, example: Any, budget: dict[str, Any], given: dict[str, Any]
) -> list[str] | None:
    """What sets a saved run apart from the one that is asked for; None if there is no run."""
    from hope.latency.measure import resolve_runtime
    from hope.storage.run import PLAN, fingerprint, read_run

    if not (folder / PLAN).exists():
        return None
    try:
        saved = read_run(folder)
    except DamagedFolder as error:
        return [first_line(error)]
    asked, wanted = run_budget(given.get("bits"), budget), _wanted(budget, given)
    runtime = wanted.pop("runtime", None)
    where = None if runtime is None else resolve_runtime(runtime, example)
    before = None if saved.record.timing is None else saved.record.timing.runtime
    stored = _flat({**USUAL, **saved.details.settings})
    found = _other(stored, wanted)
    if stored.get("method") == wanted["method"] and not wanted.keys() <= stored.keys():
        found.append("it does not store its options")
    if where != before:
        found.append(f"it was made for {before or 'no latency'}, not for {where or 'none'}")
    if saved.record.original != fingerprint(model):
        found.append("it has other weights")
    try:  # sizes do not show where a fidelity is met
        end = len(saved.trajectory) if asked is None else saved.trajectory.steps_at(asked)
        same = (asked is None or asked.kind.replayable) and end == saved.steps
    except InfeasibleBudget:
        same = False
    return found if same else [*found, "another budget"]


def started_otherwise(
    partial: Path, model: Any, example: Any, budget: dict[str, Any], given: dict[str, Any]
) -> list[str]:
    """What sets an interrupted run apart from the one that is asked for; nothing if there is none. Budgets of
    one kind have their first steps in common.
    """
    from hope._util.digest import parsed
    from hope.latency.measure import resolve_runtime
    from hope.schedule.resume import FORMAT, VERSION
    from hope.storage.run import fingerprint

    try:
        data = parsed(partial.read_bytes())
        version, stored = (data["format"], data["version"]), dict(data["settings"])
    except FileNotFoundError:
        return []
    except (OSError, ArithmeticError, LookupError, RecursionError, TypeError, ValueError):
        return ["it cannot be read"]
    if version != (FORMAT, VERSION):
        return ["another version has written it"]
    wanted = _wanted(budget, given)
    runtime = wanted.pop("runtime", None)
    where = None if runtime is None else resolve_runtime(runtime, example).to_dict()
    found = _other(
        _flat({**USUAL, **current_settings(stored)}),
        {name: wanted[name] for name in wanted if name != "widths"},
    )
    if where != stored.get("runtime"):
        found.append("it was made for another latency" if where else "it was made for a latency")
    return found if stored.get("original") == fingerprint(model) else [*found, "it has other weights"]


def _wanted(budget: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """What is asked for, as runs note it."""
    from hope.schedule.bit_options import bits_for

    asked = run_budget(given.get("bits"), budget)
    engine = getattr(given.get("runtime"), "engine", "")
    bits = list(bits_for(asked, given.get("bits"), given["method"].quantises, engine))
    options = {**given, "method": given["method"].to_dict(), "bits": bits}
    options.pop("evaluate", None)  # steps do not depend on it
    return _flat({**options, **_unsaid(asked or Budget("steps", 0), given)})


def _other(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """The options of a run that are not those that are asked for."""
    from hope.methods.absorb import AUTOMATIC

    return [
        f"{name} was {_word(stored[name])}, not {_word(value)}"
        for name, value in wanted.items()
        if name in stored
        and stored[name] != value
        and not (value is None and name in (*AUTOMATIC, "multiple_of"))
    ]


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings together with the method's options.

    >>> _flat({"evict": True, "method": {"name": "paper", "merge": None}})
    {'evict': True, 'method': 'paper', 'merge': None}
    """
    found = {name: value for name, value in settings.items() if name != "method"}
    method = dict(settings.get("method", {}))
    return {**found, **({"method": method.pop("name")} if method else {}), **method}


def _word(value: Any) -> str:
    """An option's value in a message.

    >>> _word(None), _word(["head*", "stem"]), _word([]), _word("pair")
    ('none', 'head*, stem', 'none', 'pair')
    """
    if isinstance(value, list):
        value = ", ".join(map(str, value))
    return str(value or "none") if not isinstance(value, bool) else str(value)
