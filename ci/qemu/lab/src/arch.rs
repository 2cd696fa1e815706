// SPDX-License-Identifier: GPL-2.0

//! What differs between the architectures: QEMU's machine, its processor, what the kernel is told.
//! The guest's side is `tests/guest/src/arch.rs`.

use clap::ValueEnum;
use serde::Deserialize;
use std::path::Path;

/// How the machine's IOMMU treats the NIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Iommu {
    /// No IOMMU in the machine.
    #[default]
    Off,
    /// An IOMMU that passes addresses through.
    Identity,
    /// An IOMMU that translates.
    Translating,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arch {
    X86,
    Arm64,
}

impl Arch {
    /// Of this machine.
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

    /// The board.
    pub fn machine(self, iommu: Iommu) -> &'static str {
        match (self, iommu) {
            (Arch::X86, Iommu::Off) => "q35",
            (Arch::X86, _) => "q35,kernel-irqchip=split",
            (Arch::Arm64, Iommu::Off) => "virt",
            (Arch::Arm64, _) => "virt,iommu=smmuv3",
        }
    }

    /// The processor, if a boot names none.
    ///
    /// On x86-64, four levels of page tables: identify_cpu() clears the CPU's features for a
    /// moment, and an interrupt just then makes KASAN take every address above the four-level ones
    /// for a wild one. And without what kernel and libc take to be fast: QEMU does `rep movsb` by
    /// the byte and a carry-less multiplication, of which RoCE's checksum is made, by the bit. One
    /// and the same suite takes a quarter to a third less processor time.
    ///
    /// On arm64, signed pointers by a hash that QEMU computes fast.
    pub fn cpu(self) -> &'static str {
        match self {
            Arch::X86 => "max,la57=off,erms=off,fsrm=off,pclmulqdq=off",
            Arch::Arm64 => "max,pauth-impdef=on",
        }
    }

    /// More of QEMU's words: the IOMMU where it is a device, and room above the memory for BARs of
    /// `bars_mib` MiB.
    pub fn devices(self, iommu: Iommu, bars_mib: u64) -> Vec<String> {
        let mut words = Vec::new();
        // The board of arm64 has 512 GiB of room.
        if self == Arch::X86 {
            if iommu != Iommu::Off {
                words.extend(["-device".to_string(), "intel-iommu,intremap=off".to_string()]);
            }
            // 32 GiB where nothing is said.
            let hole = (2 * bars_mib).next_power_of_two().max(32 << 10);
            words.extend(["-global".to_string(), format!("q35-pcihost.pci-hole64-size={hole}M")]);
        }
        words
    }

    /// QEMU's words for the second serial line, which goes to a file: the results.
    pub fn results(self, file: &Path) -> Vec<String> {
        let file = file.display();
        match self {
            Arch::X86 => vec!["-serial".to_string(), format!("file:{file}")],
            // This board has one line.
            Arch::Arm64 => vec![
                "-chardev".to_string(),
                format!("file,id=results,path={file}"),
                "-device".to_string(),
                "pci-serial,chardev=results,addr=0x2".to_string(),
            ],
        }
    }

    /// The kernel's words for its console.
    pub fn console(self) -> &'static str {
        match self {
            // An emulated timer on a busy machine is late, and the kernel takes it for broken; so it
            // does with the TSC, and patches its own code then, while the other processor runs it.
            Arch::X86 => "console=ttyS0 earlyprintk=serial,ttyS0 no_timer_check tsc=reliable",
            Arch::Arm64 => "console=ttyAMA0 earlycon",
        }
    }

    /// The kernel's words for the IOMMU.
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
