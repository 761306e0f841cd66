"""How many networks are drawn: the same few in every run, many new ones with HYPOTHESIS_PROFILE=search."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

slow = [HealthCheck.too_slow]
settings.register_profile(
    "steady", derandomize=True, database=None, deadline=None, max_examples=20, suppress_health_check=slow
)
settings.register_profile("search", deadline=None, max_examples=300, suppress_health_check=slow)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))
