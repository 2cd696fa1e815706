# SPDX-License-Identifier: GPL-2.0
# Builds src/peer_client.o on kernels without Rust: core, pin-init and kernel-lite as rlibs of
# bitcode, then one object with what is used of them (fat LTO). Included by Kbuild. Variables:
#   RUSTC       any rustc from 1.85 on, with its rust-src
#   NVPM_DEPS   folder with pin-init, syn, quote and proc-macro2 of the kernel's rust/ (`make deps`)

RUSTC ?= rustc
export RUSTC_BOOTSTRAP := 1

kl := $(obj)/kernel-lite
kl-src := $(src)/kernel-lite
kl-comma := ,
kl-core := $(shell MAKEFLAGS= $(RUSTC) --print sysroot)/lib/rustlib/src/rust/library/core
kl-rustc := $(shell MAKEFLAGS= $(RUSTC) --version)
kl-rustc-minor := $(word 3,$(subst ., ,$(kl-rustc)))
# With the compiler's version in its command, each object is made anew by a new rustc, which cannot
# read those of another.
kl-metadata := -Cmetadata=$(shell echo '$(kl-rustc)' | tr -dc 'a-z0-9.')
kl-core-edition := $(or $(shell sed -n 's/^edition = "\(.*\)"/\1/p' $(kl-core)/Cargo.toml 2>/dev/null),2021)

# The built-in target: the format of target.json files changes from one rustc to the next. It is a
# position-independent one by default, and the loader knows no GOT.
kl-target := $(if $(CONFIG_ARM64),aarch64-unknown-none-softfloat,x86_64-unknown-none)
kl-flags = --target=$(kl-target) --edition=$(or $(kl-edition),2021) -Crelocation-model=static \
	-Zdirect-access-external-data=yes -Cpanic=abort -Copt-level=2 -Ccodegen-units=1 $(kl-unwind) \
	-Csymbol-mangling-version=v0 -Cdebuginfo=0 -Coverflow-checks=n $(kl-metadata)
kl-flags += $(if $(CONFIG_X86_64),-Ccode-model=kernel -Zplt=yes -Cno-redzone=y)
# arm64 patches the shadow call stack into functions that it finds by their unwind tables.
kl-unwind := -Cforce-unwind-tables=$(if $(CONFIG_UNWIND_PATCH_PAC_INTO_SCS),y -Zuse-sync-unwind=n,n)
kl-flags += $(if $(CONFIG_ARM64_BTI_KERNEL),-Zbranch-protection=bti$(kl-comma)pac-ret,$(if \
	$(CONFIG_ARM64_PTR_AUTH_KERNEL),-Zbranch-protection=pac-ret))

# $(call kl-option,<spelling>...): the first that this rustc knows; within one, a colon stands for a
# space. The probe is written to a folder of its own: rustc renames its output into place, and as
# root would replace /dev/null by a file. (RUSTC_BOOTSTRAP again: before 4.4, make exports nothing
# to $(shell), and before 6.1, the kernel does not.)
kl-option = $(shell probe=$$(mktemp -d) && trap 'rm -rf "$$probe"' EXIT && for flags in $(1); do \
	flags=$$(echo "$$flags" | tr : ' '); \
	printf '%s' '$(pound)![no_core]' | MAKEFLAGS= RUSTC_BOOTSTRAP=1 $(RUSTC) --target=$(kl-target) --sysroot=/dev/null --crate-type=rlib \
	--crate-name=probe -Zcrate-attr='feature(no_core)' -Dwarnings $$flags --emit=metadata="$$probe/probe.rmeta" - \
	>/dev/null 2>&1 && { echo "$$flags"; exit; }; done; echo "-kernel-lite-no-spelling-of=$(firstword $(1))")

# The same, or nothing if it knows none.
kl-option-if-known = $(filter-out -kernel-lite-no-spelling-of=%,$(call kl-option,$(1)))

# Each option of the kernel under its names from 6.1 on.
kl-config-retpoline := $(CONFIG_MITIGATION_RETPOLINE)$(CONFIG_RETPOLINE)
kl-config-rethunk := $(CONFIG_MITIGATION_RETHUNK)$(CONFIG_RETHUNK)
kl-config-sls := $(CONFIG_MITIGATION_SLS)$(CONFIG_SLS)

# From 1.93 on a codegen option.
kl-no-jump-tables := $(call kl-option,-Cjump-tables=n -Zno-jump-tables)
# Around 1.90 the target features became options of their own; before, rustc warns of them in each
# crate.
kl-retpoline := $(if $(kl-config-retpoline),$(call kl-option,-Zretpoline-external-thunk \
	-Ctarget-feature=+retpoline-external-thunk$(kl-comma)+retpoline-indirect-branches$(kl-comma)+retpoline-indirect-calls:-Awarnings))
# Not in 1.85. It makes room to patch an indirect call in place; where there is none, the kernel
# leaves the call of the thunk.
kl-cs-prefix := $(if $(kl-config-retpoline),$(call kl-option-if-known,-Zindirect-branch-cs-prefix))

# arm64 keeps its shadow call stack at x18. Where the kernel does not add it as it loads code, rustc
# does; for this target it takes the sanitizer only beside -Zfixed-x18. Neither is probed: a rustc
# without them must fail, not build a module without the protection.
kl-scs := $(if $(CONFIG_ARM64),$(if $(CONFIG_SHADOW_CALL_STACK),-Zfixed-x18 \
	$(if $(CONFIG_UNWIND_PATCH_PAC_INTO_SCS),,-Zsanitizer=shadow-call-stack)))

kl-flags += $(if $(CONFIG_X86_KERNEL_IBT),-Zcf-protection=branch)
# IBT and retpolines rule jump tables out; without them it is objtool that cannot follow some.
kl-flags += $(kl-no-jump-tables)
kl-flags += $(kl-retpoline) $(kl-cs-prefix) $(kl-scs)
# With thunks for returns and indirect jumps nothing is left that straight-line speculation could
# pass.
kl-flags += $(if $(kl-config-rethunk),-Zfunction-return=thunk-extern,$(if \
	$(kl-config-sls),-Ctarget-feature=+harden-sls-ijmp$(kl-comma)+harden-sls-ret))
kl-flags += $(if $(CONFIG_CALL_PADDING),-Zpatchable-function-entry=$(CONFIG_FUNCTION_PADDING_BYTES)$(kl-comma)$(CONFIG_FUNCTION_PADDING_BYTES))
kl-flags += $(if $(CONFIG_FRAME_POINTER),-Cforce-frame-pointers=y)
# As KL_MUTEX_WORDS in helpers.h.
kl-cfgs := --check-cfg='cfg(kl_debug_locks)' $(if $(CONFIG_DEBUG_MUTEXES)$(CONFIG_DEBUG_LOCK_ALLOC),--cfg kl_debug_locks)

# Proc macros run on the host, once. Optimizing them takes longer than running them.
kl-host-flags := --cap-lints=allow -Clinker=$(HOSTCC) -L$(kl) $(kl-metadata)
kl-syn-features := clone-impls derive full parsing printing proc-macro visit visit-mut

# rustc puts temporary files into its output folder. Without one that is where make runs, the
# kernel's build tree before
# 6.13, which belongs to root.
kl-out-dir = --out-dir=$(@D)

# fixdep of older kernels does not know rustc's comments.
kl-fix-depfile = sed -i '/^$(pound)/d' $(depfile)

quiet_cmd_kl_host = RUSTC H $@
      cmd_kl_host = $(RUSTC) $(kl-host-flags) $(kl-args) --crate-name $(patsubst lib%,%,$(basename $(notdir $@))) \
	$(kl-out-dir) --emit=link=$@ $<
quiet_cmd_kl_lib = RUSTC L $@
      cmd_kl_lib = $(RUSTC) $(kl-flags) --sysroot=/dev/null -L$(kl) --crate-type rlib -Clinker-plugin-lto $(kl-args) \
	--crate-name $(patsubst lib%,%,$(basename $(notdir $@))) $(kl-out-dir) --emit=dep-info=$(depfile) --emit=link=$@ $<; \
	$(kl-fix-depfile)
# From 5.16 on it begins with a semicolon.
kl-objtool = $(if $(cmd_objtool),$(if $(filter ;,$(firstword $(cmd_objtool))),,;) $(cmd_objtool))
# LTO takes place only where there is something to link, so an archive is made that nobody uses.
quiet_cmd_kl_module = RUSTC $(quiet_modtag) $@
      cmd_kl_module = $(RUSTC) $(kl-flags) --sysroot=/dev/null -L$(kl) --crate-type staticlib -Clto=fat --cfg MODULE \
	-Zcrate-attr=no_std -Zcrate-attr='feature(used_with_arg)' --extern pin_init --extern kernel \
	-Dunsafe_op_in_unsafe_fn -Wrust_2018_idioms -Wunreachable_pub $(NVPM_RUSTFLAGS) \
	$(kl-out-dir) --emit=dep-info=$(depfile) --emit=obj=$@ --emit=link=$(@:.o=.a) $<; \
	$(kl-fix-depfile) $(kl-objtool)

# Preflight has looked whether these are there. This is for a call without it.
$(addprefix $(NVPM_DEPS)/,proc-macro2/lib.rs quote/lib.rs syn/lib.rs pin-init/internal/src/lib.rs pin-init/src/lib.rs) \
$(kl-core)/src/lib.rs:
	@echo "nvidia-peermem: there is no $@: in $(abspath $(src)), make deps and make KDIR=$(abspath $(objtree)), which says what else is missing" >&2; exit 1

$(kl)/libproc_macro2.rlib: private kl-args = --edition=2021 --crate-type rlib --cfg 'feature="proc-macro"' \
	--cfg wrap_proc_macro $(if $(shell [ $(kl-rustc-minor) -ge 88 ] && echo y),--cfg proc_macro_span_file --cfg proc_macro_span_location)
$(kl)/libproc_macro2.rlib: $(NVPM_DEPS)/proc-macro2/lib.rs FORCE
	+$(call if_changed,kl_host)
$(kl)/libquote.rlib: private kl-args = --edition=2018 --crate-type rlib --extern proc_macro2 --cfg 'feature="proc-macro"'
$(kl)/libquote.rlib: $(NVPM_DEPS)/quote/lib.rs $(kl)/libproc_macro2.rlib FORCE
	+$(call if_changed,kl_host)
$(kl)/libsyn.rlib: private kl-args = --edition=2021 --crate-type rlib --extern proc_macro2 --extern quote \
	$(foreach feature,$(kl-syn-features),--cfg 'feature="$(feature)"')
$(kl)/libsyn.rlib: $(NVPM_DEPS)/syn/lib.rs $(kl)/libquote.rlib FORCE
	+$(call if_changed,kl_host)
$(kl)/libpin_init_internal.so: private kl-args = --edition=2021 --crate-type proc-macro --extern proc_macro \
	--extern proc_macro2 --extern quote --extern syn --cfg kernel --cfg USE_RUSTC_FEATURES
$(kl)/libpin_init_internal.so: $(NVPM_DEPS)/pin-init/internal/src/lib.rs $(kl)/libsyn.rlib FORCE
	+$(call if_changed,kl_host)

$(kl)/libcore.rlib: private kl-args = --cap-lints=allow --cfg no_fp_fmt_parse
$(kl)/libcore.rlib: private kl-edition = $(kl-core-edition)
$(kl)/libcore.rlib: $(kl-core)/src/lib.rs FORCE
	+$(call if_changed_dep,kl_lib)
$(kl)/libcompiler_builtins.rlib: $(kl-src)/compiler_builtins.rs $(kl)/libcore.rlib FORCE
	+$(call if_changed_dep,kl_lib)
$(kl)/libpin_init.rlib: private kl-args = --cap-lints=allow --cfg kernel --cfg USE_RUSTC_FEATURES \
	--extern pin_init_internal
$(kl)/libpin_init.rlib: $(NVPM_DEPS)/pin-init/src/lib.rs $(kl)/libcompiler_builtins.rlib \
		$(kl)/libpin_init_internal.so FORCE
	+$(call if_changed_dep,kl_lib)
$(kl)/libkernel.rlib: private kl-args = --extern pin_init $(kl-cfgs)
$(kl)/libkernel.rlib: $(kl-src)/kernel/lib.rs $(kl)/libpin_init.rlib FORCE
	+$(call if_changed_dep,kl_lib)

$(obj)/src/peer_client.o: $(src)/src/peer_client.rs $(kl)/libkernel.rlib FORCE
	+$(call if_changed_dep,kl_module)

targets += $(addprefix kernel-lite/,libproc_macro2.rlib libquote.rlib libsyn.rlib libpin_init_internal.so \
	libcore.rlib libcompiler_builtins.rlib libpin_init.rlib libkernel.rlib)
