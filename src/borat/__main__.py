"""The command line: ``borat`` or ``python -m borat``. The commands live in the lab, which is an extra."""

from __future__ import annotations

import sys

from borat.lab.signals import exit_on_ctrl_c


def main() -> None:
    """Run the command line, or name the library that is missing."""
    exit_on_ctrl_c()
    try:
        from borat.lab.cli import app

        app()
    except ModuleNotFoundError as error:
        sys.exit(f"borat's commands need the lab, but {error.name} is missing: pip install 'borat[lab]'")


if __name__ == "__main__":
    main()
