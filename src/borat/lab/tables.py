"""Tables of text for the terminal and for Markdown; cells between double asterisks are bold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from pydantic import ConfigDict
from rich.table import Table as RichTable
from rich.text import Text

DASH = "-"
"""An empty cell."""


@dataclass(frozen=True)
class Table:
    """A title, column heads and rows of text; validated when read from a file."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")
    title: str
    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]

    def as_rich(self) -> RichTable:
        table = RichTable(title=self.title, title_justify="left")
        for i, name in enumerate(self.head):
            table.add_column(name, justify="right" if i else "left")
        for row in self.rows:
            table.add_row(*(Text(text[2:-2], "bold") if text.startswith("**") else Text(text) for text in row))
        return table

    def as_markdown(self) -> str:
        rule = "|".join(["---", *["---:"] * (len(self.head) - 1)])
        lines = [f"### {self.title}", "", f"| {' | '.join(self.head)} |", f"|{rule}|"]
        return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in self.rows)]) + "\n"
