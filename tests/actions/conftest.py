"""A browser, as for the pages of runs."""

from tests.report.conftest import browser, visit

__all__ = ["browser", "visit"]
