# make demo   what borat does, on scikit-learn's digits, in a minute
# make test   lint, types and all tests
# Both create the environment first: pinned in constraints.txt, in .venv.

PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test bench clean

demo: .venv/ready
	$(BIN)/borat demo

test: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest

bench: .venv/ready
	$(BIN)/borat bench

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

clean:
	rm -rf .venv build dist
