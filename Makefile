# SPDX-License-Identifier: GPL-2.0
# nvidia-peermem in Rust. `make help` lists the targets.

KDIR ?= /lib/modules/$(shell uname -r)/build
# Folders with the neighbours' Module.symvers (and, where they have them, headers to compare our ABI with).
OFED ?=
NVIDIA ?=
OUT ?= $(CURDIR)/build/module

RUSTC ?= rustc
RUSTFMT ?= rustfmt
BINDGEN ?= bindgen

.DEFAULT_GOAL := module
.PHONY: module install uninstall clean fmt lint doc bindings bindings-check help

PREFLIGHT_ENV = KDIR='$(KDIR)' OFED='$(OFED)' NVIDIA='$(NVIDIA)' OUT='$(OUT)' RUSTC='$(RUSTC)' LLVM='$(LLVM)'
# Preflight leaves its findings in preflight.env: LLVM, the Module.symvers files, vendor headers.
kbuild = . '$(OUT)/preflight.env' && $(MAKE) -C '$(KDIR)' M='$(CURDIR)' MO='$(OUT)' RUSTC='$(RUSTC)' \
	$${PREFLIGHT_LLVM:+LLVM=$$PREFLIGHT_LLVM} KBUILD_EXTRA_SYMBOLS="$$PREFLIGHT_SYMVERS" \
	NVPM_VENDOR_NV_P2P="$$PREFLIGHT_NV_P2P" NVPM_VENDOR_PEER_MEM="$$PREFLIGHT_PEER_MEM"

module:
	@$(PREFLIGHT_ENV) sh mk/preflight.sh
	+@$(kbuild) --no-print-directory modules
	@sh mk/no-panic.sh '$(OUT)/nvidia-peermem.ko'

install: module
	+@$(kbuild) --no-print-directory INSTALL_MOD_DIR=updates/nvidia-peermem-rust modules_install
	@$(PREFLIGHT_ENV) sh mk/install.sh install

uninstall:
	@$(PREFLIGHT_ENV) sh mk/install.sh uninstall

clean:
	rm -rf '$(OUT)'

fmt:
	$(RUSTFMT) src/peer_client.rs

# What the kernel's own checks would say: rustfmt, clippy with the kernel's lints as errors, checkpatch.
lint:
	$(RUSTFMT) --check src/peer_client.rs
	@$(PREFLIGHT_ENV) OUT='$(OUT)-lint' sh mk/preflight.sh
	+@. '$(OUT)-lint/preflight.env' && $(MAKE) -C '$(KDIR)' M='$(CURDIR)' MO='$(OUT)-lint' RUSTC='$(RUSTC)' CLIPPY=1 \
		$${PREFLIGHT_LLVM:+LLVM=$$PREFLIGHT_LLVM} NVPM_RUSTFLAGS=-Dwarnings --no-print-directory src/peer_client.o
	perl '$(KDIR)/source/scripts/checkpatch.pl' --no-tree --terse --no-summary -f src/*.[ch] \
		bindings/*.h bindings/*.c

doc:
	@$(PREFLIGHT_ENV) sh mk/preflight.sh
	+@$(kbuild) --no-print-directory NVPM_DOC=y modules
	@echo "doc: $(OUT)/doc/peer_client/index.html"

bindings:
	BINDGEN='$(BINDGEN)' bindings/generate.sh bindings

bindings-check:
	@mkdir -p '$(OUT)/bindings'
	@BINDGEN='$(BINDGEN)' bindings/generate.sh '$(OUT)/bindings'
	@for f in peer_mem nv_p2p shim; do \
		cmp -s bindings/$$f.rs '$(OUT)'/bindings/$$f.rs || { \
		echo "bindings/$$f.rs is not what its header gives: make bindings, and commit" >&2; exit 1; }; done
	@echo "bindings: as committed"

help:
	@echo "make [KDIR=<kernel build tree>] [OFED=<dir>] [NVIDIA=<dir>]   build nvidia-peermem.ko in build/module"
	@echo "make install | uninstall      as root: install so that it wins over NVIDIA's own file | undo that"
	@echo "make demo [RIVAL=1]           RDMA into GPU memory in a virtual machine, bytes proven"
	@echo "make test [RIVAL=1] [ONLY=a]  every test"
	@echo "make shell                    a prompt in that virtual machine"
	@echo "make fmt lint doc             format, check, rustdoc of the module"
	@echo "make bindings bindings-check  regenerate the committed bindings | fail if they differ"
	@echo "make clean                    remove the module's build folder; make lab-clean: everything built here"

include mk/lab.mk
