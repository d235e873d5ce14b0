"""A table: the best configuration of each method, chosen on validation, beside the paper's number."""

from __future__ import annotations

from typing import TYPE_CHECKING

from borat.lab.reproduce.tables import choices, claims, comparison
from borat.lab.reproduce.training import PaperSpec
from borat.lab.tables import Table

if TYPE_CHECKING:
    from borat.lab.reproduce.run import Result


class TableSpec(PaperSpec):
    """The best configuration of each method, with all seeds."""

    def tables(self, result: Result) -> list[Table]:
        return [comparison(self, result), choices(result), *claims(self, result)]

    def remarks(self, result: Result) -> list[str]:
        on, seeds = self.select_on.replace("_", " "), result.study.seeds
        chosen = (
            f"Chosen is the configuration with the best {on} after its last epoch, with the first seed; what is shown "
            "is measured with the weights of the last epoch (the authors' code tests those of the best epoch)."
        )
        spread = f"± is the standard deviation over the seeds {', '.join(map(str, seeds))}."
        return [chosen, spread] if len(seeds) > 1 else [chosen]


KIND = TableSpec
