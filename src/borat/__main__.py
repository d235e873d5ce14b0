"""The command line: ``borat`` or ``python -m borat``. The commands live in the lab, which is an extra."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line, or say what is missing."""
    try:
        from borat.lab.cli import app
    except ModuleNotFoundError as error:
        sys.exit(f"borat's commands need the lab, but {error.name} is missing: pip install 'borat[lab]'")
    app()


if __name__ == "__main__":
    main()
