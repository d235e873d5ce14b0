"""The command line: ``borat`` or ``python -m borat``. The commands need the lab extra."""

from __future__ import annotations

import sys

from borat.lab.signals import exit_on_ctrl_c


def main() -> None:
    """Run the command line; without the lab extra, exit with the name of the missing library."""
    exit_on_ctrl_c()
    try:
        from borat.lab.cli import app

        app()
    except ModuleNotFoundError as error:
        sys.exit(f"borat's commands need the lab, but {error.name} is missing: pip install 'borat[lab]'")


if __name__ == "__main__":
    main()
