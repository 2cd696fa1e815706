# SPDX-License-Identifier: GPL-2.0
# The lab: a virtual machine with rdma-core, perftest, a GPU stand-in and this module
# (ci/qemu/README.md). Included by the top Makefile.
#   make demo [NVIDIA_C=1] [NVIDIA_SRC=dir] [KERNEL_CRATE=own | ARCH=arm64]
#                             RDMA into GPU memory, proven; ends with demo: PASS. On Debian's kernel,
#                             with kernel-lite; KERNEL_CRATE=own: on the lab's 7.2, with the kernel's
#                             own Rust crate; ARCH=arm64: on Debian's kernel for arm64
#   make test [NVIDIA_C=1] [NVIDIA_SRC=dir] [ONLY=a,b]
#                             all tests before a merge; ends with N passed, N failed
#   make soak [ONLY=a,b] [HOURS=n] [SEED=n]
#                             what takes hours; ends with soak: PASS
#   make fault FAULT=NAME     one planted fault (tests/faults), by the test or the boot that must find it
#   make boots [ONLY=a,b]     the boots: seconds, runs and suites of each
#   make bench                ours beside NVIDIA's C module: a table and build/bench.json
#   make bench-docs           tables and plots under docs/ from build/bench.json
#   make bench-ways           peer memory beside dma-buf: tables and build/bench-ways.json; bench-ways-docs
#                             writes them under docs/
#   make bench-cost           what counters and tracepoints cost, in instructions
#   make scenarios            the scenario table, ours beside NVIDIA's module: docs/results/scenarios.md
#   make bench-cold           make demo and make test on a new machine, in a Debian without caches: writes
#                             docs/results/cold; as root. SUITE=trixie: Debian 13
#   make shell [NVIDIA_C=1]   a prompt in the machine
# ONLY= names boots, the first of their axes (debian-6.12/25.10), patterns (*/legacy/*), suites, and
# in `make test` host, lint and packages. NVIDIA_C=1 loads NVIDIA's C module in place of ours:
# driver 550's, from Debian. NVIDIA_SRC=dir takes the one in a driver's source instead, for example
# /usr/src/nvidia-595.45.04, and that driver's own front; scenarios and bench take both, too.
# NVIDIA_C=0 NVIDIA_SRC=dir loads ours on that front.

.PHONY: demo test soak fault boots scenarios bench bench-docs bench-ways bench-ways-docs bench-cost bench-cold shell lab-build lab-clean lab-announce lab-bootstrap

ifneq ($(NVIDIA_SRC),)
ifeq ($(wildcard $(addsuffix /nvidia-peermem/nvidia-peermem.c,$(NVIDIA_SRC) $(NVIDIA_SRC)/kernel-open)),)
$(error NVIDIA_SRC=$(NVIDIA_SRC) has no nvidia-peermem/nvidia-peermem.c, nor has its kernel-open: name the folder of a \
driver's source, for example /usr/src/nvidia-595.45.04)
endif
export NVIDIA_SRC := $(abspath $(NVIDIA_SRC))
endif

# Each boot has the crate that its kernel has.
no_crate := $(filter test soak fault scenarios bench bench-docs bench-ways bench-ways-docs bench-cost shell,$(MAKECMDGOALS))
ifneq ($(and $(KERNEL_CRATE),$(no_crate)),)
$(error make $(no_crate) takes no KERNEL_CRATE=, each boot has its own (make boots): leave it out)
endif

# The distribution's cargo, rustc and clang, also where rustup's stand first: rustup has no rust-src
# for the kernel.
lab_env := env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL PATH=/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin
lab = $(lab_env) ci/lab.sh
nvidia_c := $(if $(filter-out 0,$(or $(NVIDIA_C),$(NVIDIA_SRC))),--nvidia-c)

# The kernel with Rust is built by tools that the others do not need.
demo: packages-for = $(if $(filter own,$(KERNEL_CRATE)),,demo)
demo: lab-announce lab-bootstrap
	@$(if $(filter-out own lite,$(KERNEL_CRATE)),echo "make demo: KERNEL_CRATE=$(KERNEL_CRATE) is neither own nor lite" >&2; exit 1)
	@$(if $(filter-out arm64,$(ARCH)),echo "make demo: ARCH=$(ARCH) is not arm64: leave it out for a machine like this one" >&2; exit 1)
	@$(if $(and $(filter own,$(KERNEL_CRATE)),$(ARCH)$(filter aarch64,$(shell uname -m))),echo "make demo: KERNEL_CRATE=own is for x86-64: leave it out for arm64" >&2; exit 1)
	@$(lab) demo $(nvidia_c) $(if $(filter own,$(KERNEL_CRATE)),--kernel debug-7.2) \
		$(ARCH:arm64=--kernel debian-6.12-arm64)

test: lab-bootstrap
	@$(lab) test $(nvidia_c) $(if $(ONLY),--only '$(ONLY)')

soak: lab-bootstrap
	@$(lab) soak $(if $(ONLY),--only '$(ONLY)') $(if $(HOURS),--hours $(HOURS)) $(if $(SEED),--seed $(SEED))

# The folders that have a fault of this name, and what tries those of each.
kinds = $(notdir $(patsubst %/,%,$(dir $(wildcard tests/faults/*/$(FAULT).patch))))
try_model = ci/cargo.sh . test --locked -p run --test planted_faults
try_user = ci/cargo.sh user test --locked -p gpumr-model --test planted_faults
try_boot = ci/lab.sh soak --only planted
fault: lab-bootstrap
	@$(if $(kinds),,echo "make fault: FAULT=$(FAULT): there is no such fault; there are:" \
		$(sort $(basename $(notdir $(wildcard tests/faults/*/*.patch)))) >&2; exit 1)
	@$(foreach kind,$(kinds),FAULT='$(FAULT)' $(lab_env) $(try_$(kind)) &&) true

boots: lab-bootstrap
	@$(lab) boots $(if $(ONLY),--only '$(ONLY)')

scenarios: lab-bootstrap
	@$(lab) scenarios

bench: lab-bootstrap
	@$(lab) bench

bench-docs: lab-bootstrap
	@$(lab) bench --docs

bench-ways: lab-bootstrap
	@$(lab) bench --ways

bench-ways-docs: lab-bootstrap
	@$(lab) bench --ways --docs

bench-cost: lab-bootstrap
	@$(lab) build --kernel fast-7.2
	@$(lab_env) sh bench/cost.sh

bench-cold: lab-bootstrap
	@$(lab_env) ci/bench-cold.sh $(SUITE)

shell: lab-bootstrap
	@$(lab) shell $(nvidia_c)

lab-build: lab-bootstrap
	@$(lab) build

# The cache of kernels and sources stays: $${NVPM_CACHE:-~/.cache/nvidia-peermem}.
lab-clean:
	rm -rf build

lab-announce:
	@$(lab_env) ci/announce.sh $(ARCH)

# The boots of test and soak have arm64 among them.
lab-bootstrap:
	@$(lab_env) ci/bootstrap.sh $(packages-for) $(or $(ARCH),$(if $(filter test soak,$(MAKECMDGOALS)),arm64))
