# SPDX-License-Identifier: GPL-2.0
# make -f probes.mk KDIR=<kernel build tree> NVIDIA=<sources of its open driver> OUT=<folder>: copies
# these sources and adds the results of NVIDIA's own probes of the kernel, which their headers need.
# Some two hundred runs of the compiler: once for each kernel, where the stand-in is built often.
SRC := $(patsubst %/,%,$(dir $(abspath $(lastword $(MAKEFILE_LIST)))))
$(if $(and $(KDIR),$(NVIDIA),$(OUT)),,$(error probes: say KDIR=<kernel build tree> NVIDIA=<sources of its open driver> OUT=<folder>))

# NVIDIA's Kbuild makes the probes before the first object. The object asked for here, nv-pci-table.o,
# needs none of them, and only those are made that the lab has a use for. Debian splits a kernel's
# headers, and the probes look in the common half.
kdir := $(realpath $(KDIR))
common := $(firstword $(wildcard $(foreach arch,amd64 arm64 arm64-16k,$(patsubst %-$(arch),%-common,$(filter %-$(arch),$(kdir))))) \
	$(realpath $(KDIR)/source) $(kdir))
unused := $(shell $(SRC)/unused_probes.sh $(NVIDIA))
probes = $(filter-out $(unused),$(sort $(shell sed -n 's/^NV_CONFTEST_$(1)_COMPILE_TESTS += *//p' $(NVIDIA)/Kbuild $(NVIDIA)/nvidia/*.Kbuild)))
kinds := FUNCTION TYPE GENERIC SYMBOL

# One answer is changed to that of kernels before 6.12: there nv-dma.c can translate addresses for the
# NIC, and here the setting dma_mode chooses (lab.c).
.PHONY: probed
probed:
	@rm -rf $(OUT)
	@mkdir -p $(OUT)
	@# Not the hidden mark by which `keep` knows a finished artefact: this one is not.
	@cp -r $(NVIDIA)/* $(OUT)
	+$(MAKE) -C $(KDIR) M=$(abspath $(OUT)) NV_KERNEL_MODULES=nvidia NV_SPECTRE_V2=0 \
		ARCH=$(or $(ARCH),$(patsubst aarch64,arm64,$(shell uname -m))) NV_KERNEL_SOURCES=$(common) NV_KERNEL_OUTPUT=$(kdir) \
		$(foreach kind,$(kinds),NV_CONFTEST_$(kind)_COMPILE_TESTS="$(call probes,$(kind))") nvidia/nv-pci-table.o
	@rm $(OUT)/nvidia/*.o
	@sed -i 's/^#undef NV_DMA_IS_DIRECT_PRESENT/#define NV_DMA_IS_DIRECT_PRESENT/' $(OUT)/conftest/functions.h
