# SPDX-License-Identifier: GPL-2.0
# What the machines are made of, one target each: sources, kernels, modules, programs, images.
#   make -f ci/qemu/artefacts.mk KERNEL=debug-7.2 image-ours      (in the top folder; ci/lab.sh does it)
# `keep` names a finished artefact by the hash of its inputs, keeps it in the cache, which all
# checkouts share, and links it into build/lab. So a target runs each time and costs a look. An
# input is a file, a folder, a link to another artefact (it counts by that one's hash) or =TEXT. The
# command finds in $OUT where to build. Without --in-place that is a folder of the checkout, where
# make builds what changed and nothing else, and only products are kept: modules, headers, programs.

# The kernel's architecture, where it is not this machine's: everything for it is built across.
cross := $(filter-out $(shell uname -m),$(if $(findstring -arm64,$(KERNEL)),aarch64))
K := build/lab/$(KERNEL)
S := build/lab/sources
P := build/lab/programs$(cross:%=-%)
keep := $(LAB) keep
q := ci/qemu

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.ONESHELL:
.SUFFIXES:
.SECONDEXPANSION:
.PHONY: nvidia_front nvidia_front_newest nvidia_front_users chroot-bookworm $(shell sed -n 's/^\([a-z_][a-z0-9_.-]*\):.*/\1/p' $(lastword $(MAKEFILE_LIST)))

# LLVM= is for the lab's own kernels alone: a make below this one would link Debian's modules by
# lld.
MAKEOVERRIDES :=
unexport LLVM

jobs := -j$(shell nproc)

version = $(foreach tool,$(1),$(shell $(tool) --version | head -n 1))
package = $(foreach name,$(1),$(shell dpkg-query -W -f='$${Package} $${Version}' $(name)))

# Other people's sources. Newest of a known series on the first run, and that one from then on.

LINUX := 7.2
# These kernels have neither the lab's RDMA stack nor its GPU, which are not made for them: one
# small module stands in for both.
BARE := debian-7.3 debian-7.3-arm64 debian-7.3-arm64-16k debian-6.1 debian-6.1-arm64 debian-5.10
DEBIAN := debian-6.12 debian-6.12-arm64 debian-6.12-arm64-16k $(BARE)
own := $(filter-out $(DEBIAN),$(KERNEL))
flavour := $(firstword $(subst -, ,$(KERNEL)))
linux-patches := $(sort $(wildcard $(q)/kernel/patches/*.patch $(q)/kernel/patches/$(flavour)/*.patch))
# A kernel with patches of its own has a source tree of its own.
linux-tree := sources/linux$(if $(wildcard $(q)/kernel/patches/$(flavour)),-$(flavour))

linux:
	@$(keep) $(linux-tree) --in-place --verb fetch =$(LINUX) $(linux-patches) -- \
		$(q)/fetch.sh linux $(LINUX) $(linux-patches)

# NVIDIA's open driver, of which every file that is used was read or decides how others are compiled:
# one checksum of all of them (fetch.sh).
nvidia_c-sum := c9c1ab17fd379c03597cb1073afaf958ba6afd34b797a4a58378f6b77beeebeb
nvidia_c-source:
	@$(keep) sources/nvidia_c-source --in-place --verb fetch "=550 $(nvidia_c-sum)" -- $(q)/fetch.sh nvidia_c 550 $(nvidia_c-sum)

# Its files that face the kernel, with their headers and probes.
nvidia_front-sum := 6090df0eee93029f12edf887aba93c0e89e4997621536d7d9bb3d162b034542a
nvidia_front-source:
	@$(keep) sources/nvidia_front-source --in-place --verb fetch "=550 $(nvidia_front-sum)" -- \
		$(q)/fetch.sh nvidia_front 550 $(nvidia_front-sum)

# The newest that Debian has, in a suite from which nothing else is taken.
nvidia_front_newest-sum := 0b2060e2ab57e3f5becc05c49fe678afe39d728d492b8dfe9931422fb71ff440
nvidia_front_newest-source:
	@$(keep) sources/nvidia_front_newest-source --in-place --verb fetch "=555 $(nvidia_front_newest-sum)" -- \
		$(q)/fetch.sh nvidia_front 555 $(nvidia_front_newest-sum) experimental

# NVIDIA_SRC=<dir>: module and front of a driver source that the user has, in place of Debian's 550.
users := $(firstword $(wildcard $(addsuffix /nvidia-peermem/nvidia-peermem.c,$(NVIDIA_SRC) $(NVIDIA_SRC:%=%/kernel-open))))
users-tree := $(users:%/nvidia-peermem/nvidia-peermem.c=%)
nvidia_src:
	@$(keep) sources/nvidia_src --in-place --verb copy $(users-tree)/nvidia-peermem $(users-tree)/Kbuild -- $(q)/fetch.sh nvidia_src $(users-tree)
theirs := $(if $(NVIDIA_SRC),nvidia_src,nvidia_c-source)
nvidia_front_users-source:
	@$(keep) sources/$@ --in-place --verb copy $(addprefix $(users-tree)/,Kbuild conftest.sh header-presence-tests.mk common nvidia) -- \
		$(q)/fetch.sh nvidia_front_users $(users-tree)
front := $(if $(NVIDIA_SRC),nvidia_front_users,nvidia_front)

perftest-source:
	@$(keep) sources/perftest-source --in-place --verb fetch =25.01 -- $(q)/fetch.sh perftest 25.01

libfabric-source:
	@$(keep) sources/libfabric-source --in-place --verb fetch =2.1 -- $(q)/fetch.sh libfabric 2.1

ucx-source:
	@$(keep) sources/ucx-source --in-place --verb fetch =1.13 -- $(q)/fetch.sh ucx 1.13 bookworm

rdma-core-source:
	@$(keep) sources/rdma-core-source --in-place --verb fetch =56.1 -- $(q)/fetch.sh rdma-core 56.1

# Of this wheel only the header is used. The hash is PyPI's own, of the wheel for x86-64.
cuda := nvidia-cuda-runtime-cu12==12.8.90
cuda-sha256 := adade8dcbd0edf427b7204d480d6066d33902cab2a4707dcfc48a2d0fd44ab90
cuda_h:
	@$(keep) sources/cuda_h --in-place --verb fetch =$(cuda) -- $(q)/fetch.sh cuda_h $(cuda) $(cuda-sha256)

# Programs of others as they are published. The hashes are PyPI's own.
nixl-source := nixl-cu12==1.5.1 341d0dfa499f941c054614252f1d8047d1380e33f29c87707372ff5ec7d3779a
libucx-source := libucx-cu12==1.22.0 5cbbef0c140a0a158ae3486089af659b38822b2234cd3dc90ba40a5e6553402a
mooncake-source := mooncake-transfer-engine==0.3.13.post1 81e6d425a097b4915bdc9efbe2fe89d779dc2bd70e48a5a69c248cc9b250bafe
wheels := nixl-source libucx-source mooncake-source
# Of these wheels only headers are used.
nvcc-source := nvidia-cuda-nvcc-cu12==12.8.93 2d6dc36fb7cb5ac9c0b8825bc13d193c35487a315664007287d0126531238011
nvml_h := nvidia-nvml-dev-cu12==12.8.90 051ea91b21d08447d1c6bb0f6f7b3c50339e79d45ef60ae1f71ac800ca0b2f6e
wheel = $(keep) sources/$@ --in-place --verb fetch "=$($@)" -- $(q)/fetch.sh wheel $($@)
nvcc-source nvml_h:
	@$(wheel)
# A wheel that cannot be had is missing on the disk of programs, and its tests are skipped by name.
$(wheels):
	@$(wheel) || { rm -f $(S)/$@; echo "$(firstword $($@)) cannot be had: the tests that run it are skipped"; }

BINDGEN := 0.72.1
bindgen:
	@$(keep) sources/bindgen --in-place =$(BINDGEN) -- $(q)/fetch.sh bindgen $(BINDGEN)

# The program by which `make dist` makes SBOMs.
sbom4rust:
	@$(keep) sources/sbom4rust --in-place --verb fetch "=0.6.0 $(call version,python3)" -- $(q)/fetch.sh sbom4rust 0.6.0

# Kubernetes' schemas, and the program that compares a manifest with them.
kubernetes-validate:
	@$(keep) sources/$@ --in-place --verb fetch "=1.37.0 $(call version,python3)" -- $(q)/fetch.sh $@ 1.37.0 || { \
		rm -f $(S)/$@; echo "$@ cannot be had: the test that runs it is skipped"; }

# The crates of kernel-lite, pin-init and what it is made with, as a user of a kernel without Rust
# gets them.
deps := $(CACHE)/kernel-lite-deps
deps:
	@$(MAKE) -s deps DEPS=$(deps) >/dev/null

# The kernel: KDIR, image, modules, release and source in one folder.

ifeq ($(own),)
kernel: $(if $(filter debian-7.3%,$(KERNEL)),chroot-trixie)
	@$(keep) $(KERNEL)/kernel --in-place --verb fetch $(q)/kernel/debian.sh -- $(q)/kernel/debian.sh $(KERNEL)
kbuild := $(if $(cross),ARCH=arm64 CROSS_COMPILE=$(cross)-linux-gnu-)
compilers := $(call version,$(cross:%=%-linux-gnu-)gcc rustc)
else
kernel-arch := $(if $(findstring -arm64,$(KERNEL)),arm64,x86)
configs := $(wildcard $(patsubst %,$(q)/kernel/%.config,base $(kernel-arch) $(flavour) $(kernel-arch)-$(flavour)))
kernel: linux bindgen
	@$(keep) $(KERNEL)/kernel --in-place --says "once, some 10 to 20 minutes on 2 cores" \
		$(q)/kernel/build.sh $(configs) build/lab/$(linux-tree) build/lab/$(linux-tree)/Makefile $(S)/bindgen "=$(call version,clang$(LLVM) ld.lld$(LLVM) rustc)" -- \
		$(q)/kernel/build.sh build/lab/$(linux-tree) $(LLVM) $(kernel-arch) $(configs)
kbuild := LLVM=$(LLVM) $(if $(cross),ARCH=$(kernel-arch))
compilers :=
endif

# Kernel modules. What is ours builds without a warning of compilers, objtool and modpost.

module = $(keep) $(KERNEL)/$@ --no-warnings "=$(compilers)" $(chroot) $(K)/kernel
# Debian 13's compiler, which Debian 12 does not have; the rest of what Debian 13 has goes with it.
chroot := $(if $(filter debian-7.3%,$(KERNEL)),build/lab/packages/chroot-trixie)
make-for = $(if $(chroot),tests/packages/inside.sh $(chroot)/root) make $(jobs) KDIR=$(CURDIR)/$(K)/kernel/build $(kbuild)
make-in = $(make-for) -C
# Nobody reads debug information of the stand-ins on Debian's kernels, and the compiler takes long for it.
stand-in = $(make-for) $(if $(own),,CONFIG_DEBUG_INFO= CONFIG_DEBUG_INFO_BTF_MODULES=) -C
symvers = SYMVERS="$(foreach part,$(1),$(CURDIR)/$(K)/$(part)/Module.symvers)"
component = $(q)/$(1) bindings $(q)/pcie/lab_pcie.h
linux-src = LINUX_SRC=$(CURDIR)/$(K)/kernel/source

pcie alarms bare: kernel
	@$(module) $(call component,$@) -- $(stand-in) $(q)/$@

ofed: kernel pcie
	@$(module) $(call component,ofed) $(K)/pcie -- $(stand-in) $(q)/ofed $(linux-src) $(call symvers,pcie)

tegra: kernel ofed
	@$(module) $(call component,$@) $(K)/ofed -- $(stand-in) $(q)/$@ $(call symvers,ofed)

# rdma_rxe alone, for the kernel's own RDMA core.
mainline: kernel pcie
	@$(module) $(call component,ofed) $(K)/pcie -- $(stand-in) $(q)/ofed $(linux-src) $(call symvers,pcie) MAINLINE=1

# NVIDIA's own front, with what its probes of the kernel found.
nvidia_front nvidia_front_newest nvidia_front_users: %: kernel %-source
	@$(keep) $(KERNEL)/$@ --in-place --verb probe "=$(compilers)" $(chroot) $(K)/kernel $(S)/$@-source \
		$(q)/gpu/probes.mk $(q)/gpu/unused_probes.sh -- \
		$(make-in) $(q)/gpu -f probes.mk NVIDIA=$(CURDIR)/$(S)/$@-source

define build-gpu
	@$(module) $(call component,gpu) $(K)/pcie $(K)/$(1) -- $(stand-in) $(q)/gpu $(call symvers,pcie) \
		NVIDIA=$(CURDIR)/$(K)/$(1) $(2)
endef

gpu: kernel pcie $(front)
	$(call build-gpu,$(front))

gpu-newest: kernel pcie nvidia_front_newest
	$(call build-gpu,nvidia_front_newest)

# The odd flavour does what NVIDIA's front does not do. It is always built on the front of Debian's
# package, for which it is made.
gpu-odd: kernel pcie nvidia_front
	$(call build-gpu,nvidia_front,NVLAB_ODD=1)

gpu-closed: kernel pcie $(front)
	$(call build-gpu,$(front),NVLAB_CLOSED=1)

# The module that all of this is about. The profile of the benchmark names lines; the code is the
# same with them. NVIDIA's headers are there to compare our own words for its interface with.
neighbours := $(if $(filter $(BARE),$(KERNEL)),bare bare,ofed gpu)
ours-of := src bindings kernel-lite mk Kbuild Makefile VERSION
lines := $(if $(filter fast-7.2,$(KERNEL)),KRUSTFLAGS=-Cdebuginfo=line-tables-only KCFLAGS=-g1)
# KCSAN watches our Rust code too: what scripts/Makefile.kcsan says of C, in rustc's words. The
# kernel's crates stay as they are.
lines += $(if $(filter kcsan-7.2,$(KERNEL)),KRUSTFLAGS='-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer \
	$(addprefix -Cllvm-args=-tsan-,compound-read-before-write=1 distinguish-volatile=1)')
# A module that calls others is built anew when their symbols change, or the sources that NVIDIA's
# driver is built on. A change of nvidia.ko's licence, by which preflight chooses the crate `kernel`,
# is not noticed; each flavour of nvidia.ko is an artefact of its own and keeps its licence.
symbols = $(foreach part,$(sort $(1)),$(K)/$(part)/Module.symvers) \
	$(if $(filter gpu gpu-closed,$(1)),$(K)/$(front)) $(if $(filter gpu-odd,$(1)),$(K)/nvidia_front) $(if $(filter gpu-newest,$(1)),$(K)/nvidia_front_newest)
# Arguments: the RDMA core's part, the driver's part, the crate `kernel` (empty: preflight chooses).
define build-ours
	@$(module) $(ours-of) $(S)/nvidia_c-source $(deps) $(call symbols,$(1) $(2)) "=$(lines)$(3)" -- $(make-in) . \
		OFED=$(CURDIR)/$(K)/$(1) NVIDIA="$(CURDIR)/$(K)/$(2) $(CURDIR)/$(S)/nvidia_c-source" \
		DEPS=$(deps) KERNEL_CRATE=$(3) $(lines)
endef

ours: kernel $(neighbours) nvidia_c-source deps
	$(call build-ours,$(word 1,$(neighbours)),$(word 2,$(neighbours)),)

lite: kernel $(neighbours) nvidia_c-source deps
	$(call build-ours,$(word 1,$(neighbours)),$(word 2,$(neighbours)),lite)

# A driver of one's own on the same source.
sample: kernel gpu
	@$(module) $(ours-of) samples $(call symbols,gpu) -- $(make-in) . sample NVIDIA=$(CURDIR)/$(K)/gpu

ours-closed: kernel ofed gpu-closed nvidia_c-source deps
	$(call build-ours,ofed,gpu-closed,)

ours-odd: kernel ofed gpu-odd nvidia_c-source deps
	$(call build-ours,ofed,gpu-odd,)

ours-newest: kernel ofed gpu-newest nvidia_c-source deps
	$(call build-ours,ofed,gpu-newest,)

# Preflight warns that no driver is there: that is what this build is for.
ours-tegra: kernel tegra deps
	@$(filter-out --no-warnings,$(module)) $(ours-of) $(deps) $(K)/tegra -- $(make-in) . OFED=$(CURDIR)/$(K)/tegra/core DEPS=$(deps)

# NVIDIA's C module, unchanged.
nvidia_c: kernel ofed gpu $(theirs)
	@$(keep) $(KERNEL)/$@ "=$(compilers)" $(K)/kernel $(call symbols,ofed gpu) $(S)/$(theirs) $(q)/nvidia_c.sh -- \
		$(q)/nvidia_c.sh $(S)/$(theirs) $(K) $(kbuild)

# What programs of another architecture are built with, and what of Debian's runs beside them. The
# scripts that build programs take it from LAB_SYSROOT, by cross.sh.
sysroot := $(if $(cross),$(S)/sysroot-$(cross))
export LAB_SYSROOT := $(sysroot)
in-sysroot := libc6-dev linux-libc-dev libibverbs-dev ibverbs-providers librdmacm-dev libibumad-dev libpci-dev \
	libnl-3-dev libnl-route-3-dev busybox-static iproute2 kmod
$(sysroot:$(S)/%=%):
	@$(keep) sources/$@ --in-place --verb fetch $(q)/sysroot.sh "=$(in-sysroot) $(call version,rustc)" -- \
		$(q)/sysroot.sh arm64 $(in-sysroot)

# Programs. cargo would compile them anew for each clone.

libraries = $(or $(sysroot),"=$(call package,$(1))")
rust := "=$(call version,rustc cc ld)" $(wildcard $(HOME)/.cargo/config.toml) .cargo tests/host/rustc.sh \
	$(if $(cross),$(sysroot) $(q)/cross.sh "=$(call version,$(cross)-linux-gnu-gcc)")
program = $(keep) $(P:build/lab/%=%)/$@ --made-of $@.d $(rust) $(q)/program.sh
built = -- $(q)/program.sh
# What each program of the top workspace is made of.
workspace := Cargo.toml Cargo.lock

libcuda:
	@$(program) $(workspace) $(q)/cuda $(q)/gpu/client tools/cuda $(built) $(q)/cuda libcuda.so

libcudart:
	@$(program) $(workspace) $(q)/cudart $(built) $(q)/cudart libcudart.so

libnvml:
	@$(program) $(workspace) $(q)/nvml $(q)/gpu/client $(built) $(q)/nvml libnvml.so

nvlab-selftest:
	@$(program) $(workspace) $(q)/gpu/client $(built) $(q)/gpu/client $@

cuda-selftest:
	@$(program) $(workspace) $(q)/cuda $(q)/gpu/client tools/cuda $(built) $(q)/cuda $@

guest:
	@$(program) $(workspace) tests/guest user/gpumr $(q)/gpu/client tools/cuda tools/proc tools/verbs tools/peermemctl/tests/situations/live.json user/gpumr-preload/libgpumr-preload.so.7 samples/edu-dma/uapi.rs \
		$(call libraries,libc6-dev libibverbs-dev linux-libc-dev) \
		$(built) tests/guest $@

# It is built as for its own tests (program.sh): on a new machine the release took ten minutes more.
peermemctl:
	@$(program) $(addprefix tools/peermemctl/,src Cargo.toml Cargo.lock) tools/cuda tools/proc tools/verbs VERSION $(built) tools/peermemctl $@ dev

# The preload library for unmodified programs (docs/dma-buf.md).
preload:
	@$(program) user/gpumr user/gpumr-preload user/Cargo.toml user/Cargo.lock $(built) user/gpumr-preload libgpumr_preload.so

libgpumr:
	@$(program) user/gpumr user/gpumr-c user/Cargo.toml user/Cargo.lock $(built) user/gpumr-c libgpumr_c.so

profile:
	@$(program) $(workspace) $(q)/profile $(built) $(q)/profile libprofile.so

# perftest with CUDA, linked against the stand-in.
perftest: perftest-source cuda_h libcuda
	@$(keep) $(P:build/lab/%=%)/$@ $(S)/perftest-source $(S)/cuda_h $(q)/perftest.sh $(if $(cross),$(q)/cross.sh) \
		$(call libraries,libibverbs-dev librdmacm-dev libc6-dev) -- \
		$(q)/perftest.sh $(S)/perftest-source $(S)/cuda_h/cuda.h $(P)/libcuda/bin

# libfabric with CUDA, which it looks for when it runs, and two of its own tests.
libfabric: libfabric-source cuda_h nvcc-source nvml_h
	@$(keep) $(P:build/lab/%=%)/$@ $(S)/libfabric-source $(S)/cuda_h $(S)/nvcc-source $(S)/nvml_h $(q)/libfabric.sh \
		$(call libraries,libibverbs-dev librdmacm-dev libc6-dev) --says "once, some 3 minutes" -- \
		$(q)/libfabric.sh $(S)/libfabric-source $(S)/cuda_h $(S)/nvcc-source $(S)/nvml_h

# UCX with CUDA, as perftest is, and its own programs.
ucx-made-of = $(S)/ucx-source $(S)/cuda_h $(S)/nvcc-source $(S)/nvml_h $(foreach library,libcuda libcudart libnvml,$(P)/$(library))
ucx: ucx-source cuda_h nvcc-source nvml_h libcuda libcudart libnvml
	@$(keep) $(P:build/lab/%=%)/$@ $(ucx-made-of) $(q)/ucx.sh $(call libraries,libibverbs-dev libc6-dev) \
		--says "once, some 4 minutes" -- $(q)/ucx.sh $(ucx-made-of)

# Programs that find libibverbs' functions in each way in which a program can be linked.
linked: libcuda
	@$(keep) $(P:build/lab/%=%)/$@ tests/guest/linked $(q)/linked.sh $(if $(cross),$(q)/cross.sh) $(P)/libcuda \
		$(call libraries,libibverbs-dev libnl-3-dev libnl-route-3-dev libc6-dev) -- $(q)/linked.sh tests/guest/linked $(P)/libcuda/bin

# A verbs program before and after it uses libgpumr.
adopt: libcuda libgpumr
	@$(keep) $(P:build/lab/%=%)/$@ user/examples/adopt user/gpumr-c/include $(q)/adopt.sh $(if $(cross),$(q)/cross.sh) \
		$(P)/libcuda $(P)/libgpumr $(call libraries,libibverbs-dev libc6-dev) -- $(q)/adopt.sh user $(P)/libcuda $(P)/libgpumr

rdma-core-patches := $(wildcard $(q)/rdma-core/*.patch)
rdma-core: rdma-core-source
	@$(keep) $(P:build/lab/%=%)/$@ $(S)/rdma-core-source $(q)/rdma_core.sh $(if $(cross),$(q)/cross.sh) $(rdma-core-patches) \
		"=$(call package,cmake gcc)" $(call libraries,libnl-3-dev libnl-route-3-dev) -- \
		$(q)/rdma_core.sh $(S)/rdma-core-source $(rdma-core-patches)

# What is too large for an initramfs: a read-only disk.
had = $(foreach wheel,$(wheels),$(if $(shell [ -e $(S)/$(wheel) ] && echo yes),$(S)/$(wheel),=$(firstword $($(wheel)))))
disk: $(wheels)
	@$(keep) $(P:build/lab/%=%)/$@ $(had) $(q)/disk.sh \
		"=$(call package,squashfs-tools libstdc++6 libssl3 libnuma1 libcurl4 ibverbs-providers)" -- \
		$(q)/disk.sh $(had)

# The list begins with what the others are linked with.
programs := rdma-core guest peermemctl preload nvlab-selftest cuda-selftest libcuda libnvml libgpumr perftest linked adopt
ifneq ($(cross),)
$(programs): sysroot-$(cross)
endif

# Machines of Debian packages, and what `make dist` makes of the checkout: for tests/packages.

chroot-bookworm chroot-trixie chroot-sid:
	@$(keep) packages/$@ --in-place --verb fetch --says "once, some 3 minutes" \
		tests/packages/chroot.sh $(q)/apt.sh -- tests/packages/chroot.sh $(@:chroot-%=%)

# Such a machine with stand-ins for the GPU driver and the RDMA core.
neighbours-bookworm neighbours-trixie neighbours-sid: neighbours-%: chroot-%
	@$(keep) packages/$@ --in-place --says "once for each state of the stand-ins, some 30 seconds" \
		build/lab/packages/chroot-$* tests/packages/stubs tests/packages/enter.sh \
		tests/packages/src/stubs.rs tests/packages/src/machine.rs -- \
		sh -c 'ci/cargo.sh tests/packages run --quiet --locked -- neighbours \
			--root "$$(realpath build/lab/packages/chroot-$*/root)" --out "$$OUT"'

archive: deps
	@$(MAKE) -s dist DEPS=$(deps) >/dev/null

# Images: image-<module>[-<what else>].

base := $(if $(filter $(BARE),$(KERNEL)),bare,pcie ofed mainline gpu alarms)
modules-ours := $(base) ours $(if $(own),sample)
modules-lite := $(base) lite
modules-odd := pcie ofed mainline gpu-odd alarms ours-odd
modules-newest := pcie ofed mainline gpu-newest alarms ours-newest
modules-closed := pcie ofed gpu-closed alarms ours-closed
modules-nvidia_c := $(base) nvidia_c
modules-tegra := pcie ofed alarms tegra ours-tegra
# Ours comes by `make install`, beside NVIDIA's where there is that.
modules-installed := $(base) $(if $(filter bare,$(base)),,nvidia_c)
needs-installed := deps
also := lite nvidia_c

first = $(firstword $(subst -, ,$(1)))
second = $(word 2,$(subst -, ,$(1)))

# The demo is the first thing that anybody waits for: its image has what it runs.
demo = $(filter demo,$(call second,$(1)))
# For suites that start no other program only these are built: peermemctl alone takes minutes for another
# architecture.
few = $(filter few,$(call second,$(1)))
# Programs of others, on a disk or in the image, ask for more of CUDA.
on-disk = $(filter programs,$(call second,$(1)))
built-here = $(filter built,$(call second,$(1)))
programs-of = $(if $(call demo,$(1)),guest libcuda perftest,$(if $(call few,$(1)),rdma-core guest libcuda,$(programs) \
	$(if $(call on-disk,$(1))$(call built-here,$(1)),libcudart) $(if $(call built-here,$(1)),libfabric ucx)))
modules-of = $(filter-out $(if $(call demo,$(1)),mainline alarms sample),$(modules-$(call first,$(1))))

image-%: kernel $$(call programs-of,$$*) $$(if $$(call on-disk,$$*),disk) $$(call modules-of,$$*) $$(needs-$$(call first,$$*)) $$(filter $$(also),$$(call second,$$*))
	@$(q)/image.sh $(K) $* "$(call modules-of,$*)" "$(call second,$*)" $(P) "$(call programs-of,$*)"
