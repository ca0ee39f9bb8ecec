# SPDX-License-Identifier: Apache-2.0
# Short names for what the presets do. On a bare Debian 12 or 13: `make test` installs what is missing, builds, checks and tests everything.
BUILD := build/release
JOBS := $(shell nproc)
FUZZ_SECONDS := 60
LOAD_SECONDS := 600
CHROOT_CACHE := /var/tmp/pinfeed-chroot
CONTAINER_CACHE := /var/tmp/pinfeed-container
WHEEL_CACHE := /var/tmp/pinfeed-wheel
PYPI_CACHE := /var/tmp/pinfeed-pypi
# Most tests wait for processes: twice as many as cores keep the cores busy.
CTEST := ctest --output-on-failure --no-tests=error -j $(shell expr 2 \* $(JOBS))
PYTHON := /usr/bin/python3
# A new build folder gets the product alone; one that has the tests keeps them.
FIRST_CONFIGURE = $(if $(wildcard $(BUILD)/CMakeCache.txt),,-DPINFEED_TESTS=OFF -DPINFEED_BENCH=OFF)

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help build everything test test-unit test-core test-sanitizers wheel test-wheel packages test-packages test-container test-manifests test-slurm test-accelerate test-frameworks test-load bench demo docs format tidy fuzz mutants clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 26

build: ## the daemon, the tool and the client library, optimised, into build/release
	@deploy/install-deps build
	@cmake --preset release $(FIRST_CONFIGURE) $(CMAKE_ARGS)
	@cmake --build --preset release --target product -- -j $(JOBS)

everything:
	@deploy/install-deps build test
	@cmake --preset release -DPINFEED_TESTS=ON -DPINFEED_BENCH=ON $(CMAKE_ARGS)
	@cmake --build --preset release -- -j $(JOBS)

test: test-core test-unit everything ## install what is missing, build, then every check and test
	@$(CTEST) --test-dir $(BUILD) -L 'check|integration|python'

test-unit: ## unit tests under ASan + UBSan, part of `make test`
	@deploy/install-deps build test
	@cmake --preset asan $(CMAKE_ARGS) && cmake --build --preset asan --target unit_tests -- -j $(JOBS)
	@$(CTEST) --test-dir build/asan -L unit

test-core: ## unit tests of the core under TSan, part of `make test`
	@deploy/install-deps build test
	@cmake --preset tsan $(CMAKE_ARGS) && cmake --build --preset tsan --target core_tests -- -j $(JOBS)
	@$(CTEST) --test-dir build/tsan -L core

test-sanitizers: ## integration tests with the daemon, the tool and the client under ASan + UBSan
	@deploy/install-deps build test
	@cmake --preset asan $(CMAKE_ARGS) && cmake --build --preset asan -- -j $(JOBS)
	@$(CTEST) --test-dir build/asan -L integration

wheel: ## one wheel with everything in it for pip, into build/wheel (Debian 12; libraries from Debian's sources, auditwheel from PyPI)
	@deploy/install-deps build wheel
	@deploy/wheel/build.sh $(CMAKE_ARGS)

test-wheel: wheel ## install, use and uninstall the wheel in clean systems of Debian 12 and 13 (root; minutes); WHEEL_CACHE keeps their bases
	@deploy/install-deps test-wheel
	@tests/packaging/wheel/run.sh $(WHEEL_CACHE)

packages: build ## Debian packages and a tarball, into build/packages
	@deploy/install-deps packages
	@cpack --config $(BUILD)/CPackConfig.cmake -B build/packages

test-packages: packages ## install, start, upgrade, remove and purge the packages in a clean system of this Debian (root; minutes); CHROOT_CACHE keeps its base
	@deploy/install-deps test-packages
	@tests/packaging/chroot/packages.sh $(CHROOT_CACHE)

test-container: ## build the image and run it as operators do (root; minutes); CONTAINER_CACHE keeps its base and layers
	@deploy/install-deps test-container
	@tests/packaging/container/run.sh $(CONTAINER_CACHE)

test-manifests: build ## render and validate the files for Compose and Kubernetes
	@deploy/install-deps test-manifests
	@tests/packaging/manifests/run.sh build/manifests

test-slurm: build ## jobs with a daemon each on a Slurm cluster of two nodes on this machine (root)
	@deploy/install-deps test-slurm
	@tests/packaging/slurm/run.sh $(BUILD)

test-accelerate: build ## the loader for Hugging Face Accelerate, with the last release from PyPI that works with Debian's PyTorch
	@deploy/install-deps test
	@tests/packaging/pypi.sh $(BUILD) $(PYPI_CACHE)/accelerate accelerate

test-frameworks: build ## pinfeed.DataLoader in Lightning, Hugging Face's Trainer, JAX, torchrl and others, their current releases; PYPI_CACHE keeps them (6 GB)
	@tests/packaging/pypi.sh $(BUILD) $(PYPI_CACHE)/frameworks frameworks tests/packaging/accelerate tests/python/example_datasets_test.py tests/python/device/copies_test.py

test-load: build ## many sessions, opens and calls, slow and silent clients, no descriptors, no memory; LOAD_SECONDS (600) of opening and closing
	@deploy/install-deps test
	@$(PYTHON) tests/load/load.py --build-dir $(BUILD) --seconds $(LOAD_SECONDS) $(LOAD_ARGS)

bench: ## pinfeed beside PyTorch's DataLoader
	@deploy/install-deps build bench
	@cmake --preset release $(FIRST_CONFIGURE) -DPINFEED_BENCH=ON $(CMAKE_ARGS)
	@cmake --build --preset release -- -j $(JOBS)
	@$(PYTHON) tests/bench/run.py --build-dir $(BUILD) $(BENCH_ARGS)

demo: build ## train a small model with batches from a daemon on this host
	@deploy/install-deps demo
	@$(PYTHON) examples/demo.py --build-dir $(BUILD)

docs: ## the documents as a site, into build/docs/site; links that lead nowhere are errors (mkdocs from PyPI)
	@deploy/install-deps docs
	@docs/site/build.sh build/docs

format: ## rewrite the C and C++ sources as .clang-format says
	@$(PYTHON) tests/checks/check_format.py --fix

tidy: everything ## clang-tidy over what changed since it last passed
	@$(PYTHON) tests/checks/tidy.py $(BUILD)

fuzz: ## every fuzz target for FUZZ_SECONDS (60) each
	@deploy/install-deps build test
	@cmake --preset fuzz $(CMAKE_ARGS) && cmake --build --preset fuzz --target fuzzers -- -j $(JOBS)
	@$(PYTHON) tests/fuzz/run.py build/fuzz --seconds $(FUZZ_SECONDS)

mutants: ## take the guards of the invariants out, one at a time: the tests must notice
	@deploy/install-deps build test
	@$(PYTHON) tests/checks/mutants.py

clean: ## remove every build
	@rm -rf build
