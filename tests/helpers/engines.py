"""Engines for sweeps in tests."""

from __future__ import annotations

from borat.lab.sweeps.engines.base import Ended


class Inline:
    """Run jobs one after the other in this process."""

    def run(self, calls):
        for number, call in enumerate(calls):
            yield [Ended(number, call())]


class Nothing:
    """Fail if a run is started."""

    def run(self, calls):
        raise AssertionError(f"{len(calls)} runs were started")
