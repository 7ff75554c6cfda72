# Everything runs in .venv, which the first target that needs it makes. PYTHON: 3.11 or newer.
PYTHON ?= python3
TORCH ?= torch==2.13.0
BUF ?= 1.75.0
SEEDS ?= 20000
RESTART_SEEDS ?= 2000
SCHEDULES ?= 30
REPEATS ?= 5
KILLS ?= 1000
RUNS ?= 1000
JOBS ?= 4
INPUTS ?= 100000
HOSTS ?= 10 100 1000

py := .venv/bin/python
npm := .venv/npm/node_modules/.package-lock.json
buf := .venv/buf-$(BUF)/node_modules/.bin/buf
# Without npm, what it installs is left out; CI must have it.
with_npm := $(CI)$(shell command -v npm 2>/dev/null)

export PYTHONDONTWRITEBYTECODE = # else each of the thousand processes of the tests compiles edriver anew

.PHONY: demo test test-tools lint format types docs docs-values proto proto-check proto-baseline unit sim fuzz attacks long libraries s3 engines churn bench sharded-bench scale gpu gpu-wheels soak kills torchtitan trouble matrix installable dist clean

demo: .venv/ready ## the digits job on this machine, with a kill and a resize shown live
	$(py) examples/digits/demo.py

test: .venv/ready $(if $(with_npm),$(npm)) ## everything that must hold before a change lands
	$(MAKE) --jobs 2 --output-sync=target lint types proto-check docs
	$(py) -m pytest --numprocesses $(JOBS) --dist loadfile --no-loadscope-reorder --durations 20

test-tools: ## the programs that some tests need, without which these are skipped
	PYTHON=$(PYTHON) scripts/test_tools.sh
	$(MAKE) $(npm)

.venv/ready: pyproject.toml
	PYTHON=$(PYTHON) scripts/venv.sh
	$(py) -m pip install --quiet --upgrade pip
	$(py) -m pip install --quiet "$(TORCH)"
	$(py) -m pip install --quiet -e ".[dev]"
	touch $@

.venv/bench-ready: .venv/ready
	$(py) -m pip install --quiet "$(TORCH)" -e ".[bench]"
	touch $@

.venv/libraries-ready: .venv/ready
	$(py) -m pip install --quiet "$(TORCH)" -e ".[libraries]"
	touch $@

.venv/engines-ready: .venv/ready
	$(py) -m pip install --quiet "$(TORCH)" -e ".[ray]"
	touch $@

$(npm): tests/npm/package.json tests/npm/package-lock.json | .venv/ready
	mkdir -p .venv/npm
	cp tests/npm/*.json .venv/npm
	npm ci --loglevel=error --no-audit --no-fund --prefix .venv/npm
	touch $@

$(buf): | .venv/ready
	npm install --loglevel=error --no-save --no-audit --no-fund --prefix .venv/buf-$(BUF) @bufbuild/buf@$(BUF)

lint: .venv/ready $(if $(with_npm),$(buf)) ## ruff, who may import whom (pyproject.toml), and buf's rules for proto/ (buf.yaml)
	$(py) -m ruff check
	$(py) -m ruff format --check
	.venv/bin/lint-imports
ifneq ($(with_npm),)
	$(buf) lint
	$(buf) format --diff --exit-code
	$(buf) breaking --against proto/baseline.binpb
else
	@echo "buf has not looked at proto/: npm, which installs it, is missing (make test-tools)"
endif

proto-baseline: $(buf) ## what other teams' clients may rely on from now on: at each release
	$(buf) build --exclude-source-info -o proto/baseline.binpb

format: .venv/ready $(buf)
	$(py) -m ruff check --fix
	$(py) -m ruff format
	$(buf) format --write

types: .venv/ready
	$(py) -m mypy

docs: .venv/ready ## the site in build/site; fails on a broken link. Read it: python -m http.server -d build/site
	NO_MKDOCS_2_WARNING=1 $(py) -m mkdocs build

docs-values: .venv/ready ## write the values and tables in docs/ that come from the source (scripts/docs_site/parts.py)
	$(py) -m scripts.docs_site

proto: .venv/ready ## generate edriver/v1 anew, and its reference
	PYTHON=$(py) scripts/proto.sh
	$(py) -m scripts.docs_site

proto-check: .venv/ready ## fail if edriver/v1 is not what proto/ generates
	PYTHON=$(py) scripts/proto_check.sh

unit: .venv/ready ## the fast tests: pure parts, scripts, no process
	$(py) -m pytest tests/unit tests/script

sim: .venv/ready ## many simulated runs: make sim SEEDS=20000
	$(py) -m tests.sim --seeds $(SEEDS)
	$(py) -m tests.sim.restart_world --seeds $(RESTART_SEEDS)

fuzz: .venv/ready ## every gRPC method under nonsense, codecs and limits under any value: make fuzz INPUTS=100000
	GRPC_VERBOSITY=ERROR $(py) -m tests.fuzz --inputs $(INPUTS)
	EXAMPLES=$$(($(INPUTS) / 50)) $(py) -m pytest tests/fuzz --ignore tests/fuzz/test_fuzz.py

attacks: .venv/ready ## attacks on live runs, the long ones too: make test runs the others
	$(py) -m pytest tests/attacks -m ''

long: .venv/ready ## the tests that take minutes, which make test leaves out
	$(py) -m pytest -m long

libraries: .venv/libraries-ready ## scripts of Hugging Face, Lightning and others, unchanged, through the loss of a worker
	$(py) -m pytest -m libraries

torchtitan: .venv/ready ## the same of torchtitan's trainer, whose datasets is another than that of the other libraries
	$(py) -m venv .venv/torchtitan
	.venv/torchtitan/bin/python -m pip install --quiet "$(TORCH)" -e ".[test]" torchtitan==0.3.0 triton==3.9.0
	.venv/torchtitan/bin/python -m pytest -m libraries tests/libraries/test_checkpoints_in_memory.py -k torchtitan

s3: .venv/ready ## checkpoints in a server that answers as S3 does
	$(py) -m pip install --quiet --target .venv/s3 "moto[server]" s3fs
	PYTHONPATH=.venv/s3 $(py) -m pytest tests/torch/test_checkpoints.py -m s3

engines: .venv/engines-ready ## under Slurm, Ray and a fake of Kubernetes, as far as they are here: apt-get install slurm-wlm munge
	$(py) -m pytest tests/engines -m engines

churn: .venv/ready ## random churn over real processes: make churn SCHEDULES=30
	$(py) -m benchmarks.churn_check --schedules $(SCHEDULES)

bench: .venv/bench-ready ## edriver, torchrun, torchft and torch alone in one run: make bench REPEATS=1 PARTS="K1 UP"
	$(py) -m benchmarks.bench --repeats $(REPEATS) $(if $(PARTS),--only $(PARTS)) \
		--page docs/benchmarks/recovery.md --picture docs/pictures/recovery.png

.venv/torchft/ready: .venv/ready
	$(py) -m pip install --quiet --target .venv/torchft --no-deps torchft==0.2.0
	$(py) -m pip install --quiet --target .venv/torchft opentelemetry-sdk opentelemetry-exporter-otlp "protobuf<7"
	rm -rf .venv/torchft/google .venv/torchft/grpc # others than those of .venv, with which they would be mixed
	touch $@

sharded-bench: .venv/torchft/ready ## recovery of sharded models, torchft's HSDP beside: make sharded-bench PARTS='"HSDP K1"'
	PATH="$(CURDIR)/.venv/torchft/bin:$$PATH" PYTHONPATH="$(CURDIR)/.venv/torchft" $(py) -m benchmarks.sharded_recovery \
		--repeats $(REPEATS) $(if $(PARTS),--only $(PARTS))

scale: .venv/ready ## what the core, and a driver with simulated agents, cost with 10, 100 and 1,000 hosts: make scale HOSTS="10 100"
	$(py) -m benchmarks.scale core --hosts $(HOSTS)
	$(py) -m benchmarks.scale run --hosts $(HOSTS)

gpu: ## rounds over NCCL, and figures, where there is one NVIDIA GPU and a torch with CUDA; without a GPU: make gpu GPU=--dry
	PYTHON=$(PYTHON) scripts/gpu_check.sh $(GPU)

gpu-wheels: ## what a machine without a network needs for make gpu, into build/gpu-wheels
	PYTHON=$(PYTHON) scripts/gpu_wheels.sh

soak: kills trouble

kills: .venv/ready ## a thousand kills in one run, and what survivors hold: make kills KILLS=100
	$(py) -m benchmarks.soak --kills $(KILLS) --output docs/benchmarks/soak.md

trouble: .venv/ready ## a thousand runs with random trouble over several hosts; goes on where it was stopped
	$(py) -m tests.trouble --seeds 0 $(RUNS) --record build/trouble.jsonl

matrix: ## the fast tests on each Python that is here, with the oldest and the newest dependencies, and more on each end of torch
	JOBS=$(JOBS) scripts/matrix.sh

installable: ## sdist, wheel from it, import in a clean environment
	scripts/installable.sh $(PYTHON)

dist: ## the same, kept in dist/
	scripts/installable.sh $(PYTHON) dist

clean:
	rm -rf .venv build dist out .pytest_cache .mypy_cache .ruff_cache
