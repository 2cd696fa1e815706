# SPDX-License-Identifier: GPL-2.0
# Builds src/peer_client.o on kernels without Rust: core, pin-init and kernel-lite as rlibs of
# bitcode, then one object with what is used of them (fat LTO). Included by Kbuild. Variables:
#   RUSTC       any rustc from 1.85 on, with its rust-src
#   NVPM_DEPS   folder with pinned-init and the crates that it needs (`make deps`)

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
# By the name that it has in the kernel; its macros call it by its own.
kl-pin-init := --extern pin_init=$(kl)/libpinned_init.rlib

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
	-Zcrate-attr=no_std -Zcrate-attr='feature(used_with_arg)' $(kl-pin-init) --extern pinned_init --extern kernel \
	-Dunsafe_op_in_unsafe_fn -Wrust_2018_idioms -Wunreachable_pub $(NVPM_RUSTFLAGS) \
	$(kl-out-dir) --emit=dep-info=$(depfile) --emit=obj=$@ --emit=link=$(@:.o=.a) $<; \
	$(kl-fix-depfile) $(kl-objtool)

# Preflight has looked whether these are there. This is for a call without it.
kl-crate = $(NVPM_DEPS)/$(1)/src/lib.rs
$(foreach crate,unicode-ident proc-macro2 quote paste pinned-init-macro pinned-init,$(call kl-crate,$(crate))) \
$(kl-core)/src/lib.rs:
	@echo "nvidia-peermem: there is no $@: in $(abspath $(src)), make deps and make KDIR=$(abspath $(objtree)), which says what else is missing" >&2; exit 1

# As cargo would build them. What it asks the compiler for is in every rustc from 1.85 on, but for
# what proc-macro2 takes of 1.88.
kl-stable := --cfg RUSTC_LINT_REASONS_IS_STABLE --cfg RUSTC_NEW_UNINIT_IS_STABLE
$(kl)/libunicode_ident.rlib: private kl-args = --edition=2021 --crate-type rlib
$(kl)/libunicode_ident.rlib: $(call kl-crate,unicode-ident) FORCE
	+$(call if_changed,kl_host)
$(kl)/libproc_macro2.rlib: private kl-args = --edition=2021 --crate-type rlib --extern unicode_ident --cfg 'feature="proc-macro"' \
	--cfg wrap_proc_macro $(if $(shell [ $(kl-rustc-minor) -ge 88 ] && echo y),--cfg proc_macro_span_file --cfg proc_macro_span_location)
$(kl)/libproc_macro2.rlib: $(call kl-crate,proc-macro2) $(kl)/libunicode_ident.rlib FORCE
	+$(call if_changed,kl_host)
$(kl)/libquote.rlib: private kl-args = --edition=2021 --crate-type rlib --extern proc_macro2 --cfg 'feature="proc-macro"'
$(kl)/libquote.rlib: $(call kl-crate,quote) $(kl)/libproc_macro2.rlib FORCE
	+$(call if_changed,kl_host)
$(kl)/libpaste.so: private kl-args = --edition=2018 --crate-type proc-macro --extern proc_macro
$(kl)/libpaste.so: $(call kl-crate,paste) FORCE
	+$(call if_changed,kl_host)
$(kl)/libpinned_init_macro.so: private kl-args = --edition=2021 --crate-type proc-macro --extern proc_macro \
	--extern proc_macro2 --extern quote $(kl-stable)
$(kl)/libpinned_init_macro.so: $(call kl-crate,pinned-init-macro) $(kl)/libquote.rlib FORCE
	+$(call if_changed,kl_host)

$(kl)/libcore.rlib: private kl-args = --cap-lints=allow --cfg no_fp_fmt_parse
$(kl)/libcore.rlib: private kl-edition = $(kl-core-edition)
$(kl)/libcore.rlib: $(kl-core)/src/lib.rs FORCE
	+$(call if_changed_dep,kl_lib)
$(kl)/libcompiler_builtins.rlib: $(kl-src)/compiler_builtins.rs $(kl)/libcore.rlib FORCE
	+$(call if_changed_dep,kl_lib)
$(kl)/libpinned_init.rlib: private kl-args = --cap-lints=allow $(kl-stable) --extern paste --extern pinned_init_macro
$(kl)/libpinned_init.rlib: $(call kl-crate,pinned-init) $(kl)/libcompiler_builtins.rlib $(kl)/libpaste.so \
		$(kl)/libpinned_init_macro.so FORCE
	+$(call if_changed_dep,kl_lib)
$(kl)/libkernel.rlib: private kl-args = $(kl-pin-init) $(kl-cfgs)
$(kl)/libkernel.rlib: $(kl-src)/kernel/lib.rs $(kl)/libpinned_init.rlib FORCE
	+$(call if_changed_dep,kl_lib)

$(obj)/src/peer_client.o: $(src)/src/peer_client.rs $(kl)/libkernel.rlib FORCE
	+$(call if_changed_dep,kl_module)

targets += $(addprefix kernel-lite/,libunicode_ident.rlib libproc_macro2.rlib libquote.rlib libpaste.so \
	libpinned_init_macro.so libcore.rlib libcompiler_builtins.rlib libpinned_init.rlib libkernel.rlib)
