# SPDX-License-Identifier: GPL-2.0
# nvidia-peermem in Rust. `make help` lists the targets.

OUT ?= $(CURDIR)/build/module
# What the last build was told or found. `make install` reads it, because it installs that build,
# and root has another PATH and another home. What `make install` is told itself comes first.
told = $(shell . '$(OUT)/preflight.env' 2>/dev/null && echo "$$PREFLIGHT_$(1)")
told_if_install = $(if $(filter install uninstall,$(MAKECMDGOALS)),$(call told,$(1)))

KDIR ?= $(or $(if $(filter uninstall,$(MAKECMDGOALS)),$(call told,KDIR)),$(wildcard $(call told_if_install,KDIR)),/lib/modules/$(shell uname -r)/build)
# Folders with the neighbours' Module.symvers (and, where they have them, headers to compare our ABI
# with).
OFED ?= $(call told_if_install,OFED)
NVIDIA ?= $(call told_if_install,NVIDIA)

# Which crate `kernel`: the kernel's own, or kernel-lite (own, lite); chosen by preflight if empty.
KERNEL_CRATE ?= $(call told_if_install,KERNEL_CRATE)
# The name up to 0.1.0: for one release it is refused, because it would be ignored without a word.
$(if $(PROVIDER),$(error PROVIDER=$(PROVIDER): the variable is called KERNEL_CRATE now, own or lite))
# The lab has its cache at the same place.
cache = $(or $(NVPM_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/nvidia-peermem)
# The crates that kernel-lite needs of others are where the last build found them, in a source
# archive, or where `make deps` puts them.
whole = $(if $(shell sh kernel-lite/missing.sh '$(1)'),,$(1))
DEPS ?= $(or $(call whole,$(call told,DEPS)),$(call whole,$(CURDIR)/kernel-lite/deps),$(cache)/kernel-lite-deps)

# Packagers' word for another root.
INSTALL_MOD_PATH ?= $(DESTDIR)

# make takes a path with a space for two.
$(foreach name,CURDIR OUT KDIR DEPS INSTALL_MOD_PATH,$(if $(word 2,$($(name))),$(error \
	$(name)=$($(name)): make cannot build where a path has a space; use another folder)))

# These paths are made absolute: Kbuild runs in another folder, and each is compared with what the
# last build was told.
override OUT := $(abspath $(OUT))
override KDIR := $(abspath $(KDIR))
override OFED := $(abspath $(OFED))
override NVIDIA := $(abspath $(NVIDIA))
override DEPS := $(abspath $(DEPS))
override INSTALL_MOD_PATH := $(abspath $(INSTALL_MOD_PATH))

LLVM ?= $(call told_if_install,LLVM)
CROSS_COMPILE ?= $(call told_if_install,CROSS_COMPILE)
RUSTC ?= $(or $(call told_if_install,RUSTC),rustc)
RUSTFMT ?= rustfmt
BINDGEN ?= bindgen

# Where `make install` puts what `make tools` built.
PREFIX ?= /usr/local
CARGO ?= cargo

.DEFAULT_GOAL := module
.PHONY: module sample preflight tools user user-install verify deps install uninstall clean fmt lint doc check miri bindings bindings-check help

PREFLIGHT_ENV = KDIR='$(KDIR)' OFED='$(OFED)' NVIDIA='$(NVIDIA)' OUT='$(OUT)' RUSTC='$(RUSTC)' LLVM='$(LLVM)' \
	KERNEL_CRATE='$(KERNEL_CRATE)' DEPS='$(DEPS)' $(if $(ARCH),ARCH='$(ARCH)') CROSS_COMPILE='$(CROSS_COMPILE)'
TOOLS = $(CURDIR)/build/tools
INSTALL_ENV = $(PREFLIGHT_ENV) INSTALL_MOD_PATH='$(INSTALL_MOD_PATH)' PREFIX='$(PREFIX)' TOOLS='$(TOOLS)'
TREE = $(CURDIR)
# Preflight leaves its findings in preflight.env: LLVM, the Module.symvers files, vendor headers,
# the crate. Without the kernel's own key nothing can be signed, and sign-file would say so in words
# of OpenSSL.
sig_key = $(shell sed -n 's/^CONFIG_MODULE_SIG_KEY="*\([^"]*\)"*$$/\1/p' '$(KDIR)/include/config/auto.conf')
no_signing = $(if $(filter pkcs11:%,$(sig_key))$(wildcard $(sig_key) $(addprefix $(KDIR)/,$(sig_key))),,CONFIG_MODULE_SIG_ALL=)
for_arch = $${PREFLIGHT_ARCH:+ARCH=$$PREFLIGHT_ARCH} $${PREFLIGHT_CROSS_COMPILE:+"CROSS_COMPILE=$$PREFLIGHT_CROSS_COMPILE"}
kbuild = . '$(OUT)/preflight.env' && $(MAKE) -C '$(KDIR)' M="$${PREFLIGHT_TREE:-$(TREE)}" RUSTC="$$PREFLIGHT_RUSTC" $(for_arch) \
	MO="$${PREFLIGHT_TREE:-$(OUT)}" NVPM_KERNEL_CRATE=$$PREFLIGHT_KERNEL_CRATE NVPM_DEPS='$(DEPS)' \
	$${PREFLIGHT_LLVM:+LLVM=$$PREFLIGHT_LLVM} KBUILD_EXTRA_SYMBOLS="$$PREFLIGHT_SYMVERS" \
	NVPM_VENDOR_NV_P2P="$$PREFLIGHT_NV_P2P" NVPM_VENDOR_PEER_MEM="$$PREFLIGHT_PEER_MEM"

# The gates that each built module must pass, by their scripts in mk/.
gates = no-panic callback-tail relocations landing-pads shadow-stack

# Lines that share make's jobs with a make or cargo of their own begin with this +. make would run them for
# `make -n`, too, which is to print what make would do and run nothing: there this is empty.
plus = $(if $(findstring n,$(filter-out --%,$(firstword -$(MAKEFLAGS)))),,+)
# Lines of recipes use this name, because make runs each line that has $(MAKE) in it for `make -n`, too.
make_again = $(MAKE) --no-print-directory

# Says whether the module can be built, and against what.
preflight:
	@$(PREFLIGHT_ENV) sh mk/preflight.sh

module: preflight
	$(plus)@$(kbuild) --no-print-directory modules
	@. '$(OUT)/preflight.env' && if [ -n "$$PREFLIGHT_TREE" ]; then \
		cp "$$PREFLIGHT_TREE/nvidia-peermem.ko" "$$PREFLIGHT_TREE/Module.symvers" '$(OUT)/'; fi
	@. '$(OUT)/preflight.env' && export CROSS_COMPILE="$$PREFLIGHT_CROSS_COMPILE" KDIR='$(KDIR)' && \
		for gate in $(gates); do sh mk/$$gate.sh '$(OUT)/nvidia-peermem.ko' || exit; done
	@KDIR='$(KDIR)' OUT='$(OUT)' sh mk/plain-exports.sh
	@touch '$(OUT)/built'
	@echo "module: $(OUT)/nvidia-peermem.ko; as root, make install puts it in place"

# A driver of one's own on the pin layer (docs/own-driver.md), in a folder of its own: what `make`
# built is for `make install`.
sample: override OUT := $(OUT)/sample
sample: TREE = $(CURDIR)/samples/edu-dma
sample:
	@$(PREFLIGHT_ENV) KERNEL_CRATE=own SAMPLE=1 sh mk/preflight.sh
	$(plus)@$(kbuild) --no-print-directory modules
	@. '$(OUT)/preflight.env' && export CROSS_COMPILE="$$PREFLIGHT_CROSS_COMPILE" KDIR='$(KDIR)' && \
		for gate in $(gates); do sh mk/$$gate.sh '$(OUT)/edu-dma.ko' || exit; done
	@echo "sample: $(OUT)/edu-dma.ko; as root, insmod it beside nvidia.ko"

# peermemctl, its man pages and completions, by a user who has cargo: `make install` runs as root.
tools:
	$(plus)@CARGO_TARGET_DIR='$(CURDIR)/build/target' sh mk/tools.sh '$(CARGO)' '$(TOOLS)'

# The libraries for programs (docs/dma-buf.md).
user:
	$(plus)@CARGO_TARGET_DIR='$(CURDIR)/build/target' sh mk/user.sh build '$(CARGO)' '$(CURDIR)/build/user'

# Root, who may have no cargo, installs what `make user` built.
user-install:
	@sh mk/user.sh install '$(CURDIR)/build/user' '$(PREFIX)' '$(PREFIX)/lib' '$(DESTDIR)'

# Tries on this machine's GPU and NIC what users count on. It asks before it loads or unloads the
# module. VERIFY='--storm 60': options of peermemctl verify. Root, who may have no cargo, takes what
# `make tools` built.
verify:
	$(plus)@[ -x '$(TOOLS)/peermemctl' ] || $(make_again) tools
	@'$(TOOLS)/peermemctl' verify --module $(VERIFY)

# Fetches what kernel-lite needs of others into the cache.
deps:
	@MAKEFLAGS= CARGO='$(CARGO)' sh kernel-lite/deps.sh '$(DEPS)'

# Gives what root builds here to the user, whose next make would fail on files of root.
give_back = $(if $(filter $(CURDIR)/%,$(OUT)),[ "$$(id -u)" != 0 ] || for dir in '$(CURDIR)/build' '$(OUT)'; do \
	[ ! -e "$$dir" ] || chown -Rh --from=0 --reference='$(CURDIR)' "$$dir"; done,true)

install:
	@$(INSTALL_ENV) sh mk/install.sh writable
	$(plus)@$(PREFLIGHT_ENV) sh mk/built.sh || { $(make_again) module $(PREFLIGHT_ENV); code=$$?; $(give_back); exit $$code; }
	$(plus)@said=$$($(kbuild) --no-print-directory DEPMOD=true INSTALL_MOD_DIR=updates/nvidia-peermem-rust.new $(no_signing) \
		$(if $(INSTALL_MOD_PATH),INSTALL_MOD_PATH='$(INSTALL_MOD_PATH)') modules_install 2>&1) && failed= || failed=failed-; \
		$(give_back); printf '%s\n' "$$said" | $(INSTALL_ENV) sh mk/install.sh $${failed}copied
	@$(INSTALL_ENV) sh mk/install.sh install

uninstall:
	@$(INSTALL_ENV) sh mk/install.sh uninstall

# This leaves what the lab made: lab-clean removes that.
clean:
	rm -rf '$(OUT)' '$(OUT)-lint' '$(OUT)-doc' $(foreach name,packages target tools user,'$(CURDIR)/build/$(name)')

fmt:
	$(RUSTFMT) src/peer_client.rs samples/edu-dma/edu_dma.rs

# Arguments: the folder of a Kbuild, the one that it builds in, a crate's object.
clippy = . '$(OUT)-lint/preflight.env' && $(MAKE) -C '$(KDIR)' M='$(1)' MO='$(2)' NVPM_KERNEL_CRATE=own RUSTC='$(RUSTC)' CLIPPY=1 \
	$(for_arch) $${PREFLIGHT_LLVM:+LLVM=$$PREFLIGHT_LLVM} NVPM_RUSTFLAGS=-Dwarnings --no-print-directory $(3)

# Runs the kernel's own checks: rustfmt, clippy with the kernel's lints as errors, checkpatch.
lint:
	$(RUSTFMT) --check src/peer_client.rs samples/edu-dma/edu_dma.rs
	@$(PREFLIGHT_ENV) OUT='$(OUT)-lint' KERNEL_CRATE=own sh mk/preflight.sh
	$(plus)@$(call clippy,$(CURDIR),$(OUT)-lint,src/peer_client.o)
	$(plus)@$(call clippy,$(CURDIR)/samples/edu-dma,$(OUT)-lint/sample,edu_dma.o)
	perl '$(KDIR)/source/scripts/checkpatch.pl' --no-tree --terse --no-summary -f src/ffi/*.[ch] \
		bindings/*.h bindings/*.c kernel-lite/helpers.[ch] samples/edu-dma/*.c

# This builds in a folder of its own: what `make` built is for `make install`.
doc: override OUT := $(OUT)-doc
doc:
	@$(PREFLIGHT_ENV) KERNEL_CRATE=own sh mk/preflight.sh
	$(plus)@$(kbuild) --no-print-directory NVPM_DOC=y modules
	@echo "doc: $(OUT)/doc/peer_client/index.html"

# Checks format and lints and runs host tests, without a kernel tree, in two minutes at most once
# everything is built.
check: lab-bootstrap
	@$(lab_env) sh mk/check.sh cargo '$(CURDIR)/build/target'

# kernel-lite and the module's policy on std under Miri, which only nightly toolchains have.
miri:
	@cargo +nightly miri --version >/dev/null 2>&1 || { \
		echo "miri: no cargo that takes +nightly, or no Miri: rustup toolchain install nightly -c miri -c rust-src" >&2; exit 1; }
	cd tests/host && cargo +nightly miri test --locked -p kernel-lite-tests

bindings:
	BINDGEN='$(BINDGEN)' bindings/generate.sh bindings
	BINDGEN='$(BINDGEN)' tools/verbs/bindings/generate.sh

bindings-check:
	@mkdir -p '$(OUT)/bindings'
	@BINDGEN='$(BINDGEN)' bindings/generate.sh '$(OUT)/bindings'
	@for f in peer_mem nv_p2p shim; do \
		cmp -s bindings/$$f.rs '$(OUT)'/bindings/$$f.rs || { \
		echo "bindings/$$f.rs is not what its header gives: make bindings, and commit" >&2; exit 1; }; done
	@echo "bindings/: as committed (tools/verbs/bindings follow the rdma-core that is installed)"

# The other targets are described in CONTRIBUTING.md, all settings in docs/install.md.
help:
	@echo "make              build nvidia-peermem.ko for the running kernel"
	@echo "make deps         fetch, once, what kernels without Rust need for that"
	@echo "make sample       build the sample driver (docs/own-driver.md)"
	@echo "make tools        build peermemctl, its man pages and completions"
	@echo "make user         build the libraries for programs; as root: make user-install"
	@echo "make verify       as root: test the module on this machine's GPU and NIC"
	@echo "make install      as root: install what was built, so that modprobe takes it"
	@echo "make uninstall    undo that: NVIDIA's own file is used again"
	@echo "make clean        remove what make built"
	@echo "make deb, rpm     packages; make dist: a source archive"
	@echo
	@echo "make demo         RDMA into GPU memory, in virtual machines, bytes compared"
	@echo "make shell        a prompt in that machine"
	@echo "make check        format, lints and host tests, in two minutes"
	@echo "make test         all tests before a merge; ONLY=<suite or boot>"
	@echo "                  NVIDIA_C=1: NVIDIA's module; NVIDIA_SRC=<dir>: a driver source"
	@echo
	@echo "Settings: KDIR=<kernel build tree>  OFED=<dir>  NVIDIA=<dir>  RUSTC=<path>"
	@echo "          KERNEL_CRATE=own|lite  LLVM=<suffix>  INSTALL_MOD_PATH=<dir>"
	@echo "          PREFIX=<dir>"
	@echo "README.md is the short guide, docs/install.md the long one for admins;"
	@echo "CONTRIBUTING.md has the other targets: lint, doc, soak, bench, ..."

include mk/packages.mk
include mk/lab.mk
