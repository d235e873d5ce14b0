# make demo   what borat does, on scikit-learn's digits, in two minutes
# make test   lint, types and all tests
# make test-fast  the core's tests without those that start compilers or trainers, in a minute
# make sanitize  the C sources on random input, under AddressSanitizer and UndefinedBehaviorSanitizer
# make map    CONTRIBUTING's map, from the modules
# make docs   the documentation site, in site/
# make bench  the cost of the optimizer call
# All create the environment first: pinned in constraints.txt, in .venv, with the CPU kernels if there is a C compiler.

PYTHON ?= python3
BIN := .venv/bin
export NO_MKDOCS_2_WARNING := 1
unexport PYTHONDONTWRITEBYTECODE # what is imported is compiled once, and what is not, never

.PHONY: demo test types pytest test-fast sanitize map docs bench browser clean

demo: .venv/ready
	$(BIN)/borat demo

test: .venv/ready browser
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(MAKE) --jobs 2 types pytest

# At the same time: tests wait for processes that they start, and at the end for the longest of them.
types: .venv/ready
	$(BIN)/mypy

pytest: .venv/ready
	$(BIN)/pytest -n auto --dist loadfile --no-loadscope-reorder

test-fast: .venv/ready
	$(BIN)/pytest -n auto -m "not slow" tests/core

# Once with the instructions that every processor has, and once with all that this one has.
ROUNDS ?= 1000
SANITIZED := $(CC) -g -O1 -Wall -Wextra -Werror -fsanitize=address,undefined -fno-sanitize-recover=all \
	-fno-math-errno -ffp-contract=off tests/sanitize/fuzz.c -lm -lpthread

sanitize:
	@mkdir -p build
	$(SANITIZED) -o build/fuzz && build/fuzz $(ROUNDS)
	$(SANITIZED) -march=native -o build/fuzz-native && build/fuzz-native $(ROUNDS)

map: .venv/ready
	$(BIN)/python tests/helpers/layout.py

docs: .venv/ready
	$(BIN)/mkdocs build --strict

bench: .venv/ready
	$(BIN)/borat bench

# The pages are tested in Chromium. Where it cannot be installed, those tests are skipped and say so.
browser:
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null \
	|| { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	     && { apt-get update -qq; apt-get install -y -qq chromium chromium-driver >/dev/null; }; } \
	|| echo "chromium and chromedriver are missing and cannot be installed: tests of pages will be skipped"

.venv/ready: pyproject.toml constraints.txt $(wildcard src/borat/_native/*.[ch])
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e ".[dev]"
	touch $@

clean:
	rm -rf .venv build dist site
