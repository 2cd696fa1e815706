// SPDX-License-Identifier: GPL-2.0

//! This file says what differs between the architectures: QEMU's machine, its processor, and the
//! kernel's command line. The guest's side is `tests/guest/src/arch.rs`.

use clap::ValueEnum;
use serde::Deserialize;
use std::path::Path;

/// How the machine's IOMMU treats the NIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Iommu {
    /// The machine has no IOMMU.
    #[default]
    Off,
    /// The IOMMU passes addresses through unchanged.
    Identity,
    /// The IOMMU translates addresses.
    Translating,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arch {
    X86,
    Arm64,
}

impl Arch {
    /// Returns the architecture of the machine that runs this program.
    pub fn host() -> Self {
        if cfg!(target_arch = "aarch64") {
            Arch::Arm64
        } else {
            Arch::X86
        }
    }

    pub fn qemu(self) -> &'static str {
        match self {
            Arch::X86 => "qemu-system-x86_64",
            Arch::Arm64 => "qemu-system-aarch64",
        }
    }

    /// Returns QEMU's name and options for the board.
    pub fn machine(self, iommu: Iommu) -> &'static str {
        match (self, iommu) {
            (Arch::X86, Iommu::Off) => "q35",
            (Arch::X86, _) => "q35,kernel-irqchip=split",
            (Arch::Arm64, Iommu::Off) => "virt",
            (Arch::Arm64, _) => "virt,iommu=smmuv3",
        }
    }

    /// Returns the processor that QEMU emulates if a boot names none.
    ///
    /// On x86-64 it has four levels of page tables: identify_cpu() clears the CPU's features for a
    /// moment, and an interrupt at that moment makes KASAN report every address above the
    /// four-level ones as wild. It also lacks the features that kernel and libc use for speed: QEMU
    /// executes `rep movsb` byte by byte, and the carry-less multiplication, which RoCE's checksum
    /// uses, bit by bit. Without them, the same suite takes a quarter to a third less processor
    /// time.
    ///
    /// On arm64 it signs pointers by a hash that QEMU computes fast.
    pub fn cpu(self) -> &'static str {
        match self {
            Arch::X86 => "max,la57=off,erms=off,fsrm=off,pclmulqdq=off",
            Arch::Arm64 => "max,pauth-impdef=on",
        }
    }

    /// Returns further arguments for QEMU: the IOMMU where it is a device, and address space above
    /// the memory for BARs of `bars_mib` MiB.
    pub fn devices(self, iommu: Iommu, bars_mib: u64) -> Vec<String> {
        let mut words = Vec::new();
        // The board of arm64 always has 512 GiB of address space for BARs.
        if self == Arch::X86 {
            if iommu != Iommu::Off {
                words.extend(["-device".to_string(), "intel-iommu,intremap=off".to_string()]);
            }
            // Reserve 32 GiB unless the BARs need more.
            let hole = (2 * bars_mib).next_power_of_two().max(32 << 10);
            words.extend(["-global".to_string(), format!("q35-pcihost.pci-hole64-size={hole}M")]);
        }
        words
    }

    /// Returns QEMU's arguments for the second serial line, which writes the results to a file.
    pub fn results(self, file: &Path) -> Vec<String> {
        let file = file.display();
        match self {
            Arch::X86 => vec!["-serial".to_string(), format!("file:{file}")],
            // The arm64 board has only one serial line of its own.
            Arch::Arm64 => vec![
                "-chardev".to_string(),
                format!("file,id=results,path={file}"),
                "-device".to_string(),
                "pci-serial,chardev=results,addr=0x2".to_string(),
            ],
        }
    }

    /// Returns the kernel parameters for its console.
    pub fn console(self) -> &'static str {
        match self {
            // An emulated timer on a busy machine is late, and the kernel would conclude that the
            // timer, or the TSC, is broken. It would then patch its own code while the other
            // processor runs it.
            Arch::X86 => "console=ttyS0 earlyprintk=serial,ttyS0 no_timer_check tsc=reliable",
            Arch::Arm64 => "console=ttyAMA0 earlycon",
        }
    }

    /// Returns the kernel parameters for the IOMMU.
    pub fn iommu(self, iommu: Iommu) -> &'static str {
        match (self, iommu) {
            (_, Iommu::Off) => "",
            (Arch::X86, Iommu::Identity) => " intel_iommu=on iommu=pt",
            (Arch::X86, Iommu::Translating) => " intel_iommu=on iommu.passthrough=0 iommu.strict=1",
            (Arch::Arm64, Iommu::Identity) => " iommu.passthrough=1",
            (Arch::Arm64, Iommu::Translating) => " iommu.passthrough=0 iommu.strict=1",
        }
    }
}
