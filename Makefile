# One command per need; each is one line of tools, so that CI and people run the same.
PYTHON ?= python

.PHONY: check lint types imports docs docs-check test soak sim bench mutants clean

check: lint types imports docs-check  ## everything that must be green before a commit (about a minute)
	$(PYTHON) -m pytest tests/unit tests/model tests/architecture

lint:
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m ruff check .

types:
	$(PYTHON) -m mypy

imports:
	$(PYTHON) -c "from importlinter.cli import lint_imports_command; lint_imports_command()"

docs:  ## write the generated pages
	$(PYTHON) docs/generate.py

docs-check:
	$(PYTHON) docs/generate.py --check

test:  ## all tests, Spark's too
	$(PYTHON) -m pytest

soak:  ## what the tests only run for seconds, for as long as a person waits (hours); needs what --long needs
	$(PYTHON) -m pytest --soak -m soak -n 1 --timeout 3600

sim:  ## one seed of the simulated cluster, or COUNT of them from SEED on
	$(PYTHON) -m tests.sim $(or $(SEED),1) $(or $(COUNT),1)

bench:  ## every benchmark, one after the other; each prints its ratio and the noise
	@for bench in tests/benchmarks/bench_*.py; do echo "== $$bench"; $(PYTHON) $$bench || exit 1; done

mutants:  ## would the tests notice? SAMPLE changes per module of what decides (half an hour of a free machine)
	$(PYTHON) -m tests.mutants --sample $(or $(SAMPLE),40)

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
