# SPDX-License-Identifier: GPL-2.0
# What users install. Included by the top Makefile; everything is made in build/packages.
#   make dist    a source archive of the tracked files, with what kernel-lite needs of others, and its checksum;
#                with sbom4rust in PATH also an SBOM of each workspace that a release has crates of
#   make deb     nvidia-peermem-rust-dkms, peermemctl and the libraries for Debian and Ubuntu
#   make rpm     the same for the RHEL and SLES families
# An unpacked archive makes them, too. BUILD=all makes that of DKMS alone: the others need cargo and
# the network.
BUILD ?= binary

.PHONY: dist deb rpm

dist deb rpm: deps
	@DEPS='$(DEPS)' CARGO='$(CARGO)' BUILD='$(BUILD)' sh packaging/make.sh $@ '$(CURDIR)/build/packages'
