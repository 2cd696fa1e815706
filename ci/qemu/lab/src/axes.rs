// SPDX-License-Identifier: GPL-2.0

//! The axes of a boot: the values that `boots.toml` and the command line name. The head of
//! `boots.toml` explains each.

use crate::arch::Arch;
use clap::ValueEnum;
use serde::de::Error;
use serde::{Deserialize, Deserializer};

/// The name of a value in the data file, on the command line and in the names of boots.
pub trait Named: ValueEnum {
    fn name(&self) -> String {
        self.to_possible_value().map_or(String::new(), |value| value.get_name().to_string())
    }
}

impl<T: ValueEnum> Named for T {}

// The file uses the same names as the command line.
macro_rules! read_by_name {
    ($($axis:ty),*) => {$(
        impl<'de> Deserialize<'de> for $axis {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                Self::from_str(&String::deserialize(from)?, false).map_err(D::Error::custom)
            }
        }
    )*};
}
read_by_name!(Kernel, Core, Mode, Module, Also, Run);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Kernel {
    #[value(name = "debian-6.12")]
    Debian612,
    #[value(name = "debian-6.12-arm64")]
    Debian612Arm64,
    #[value(name = "debian-6.12-arm64-16k")]
    Debian612Arm64Pages16k,
    #[value(name = "debian-7.3")]
    Debian73,
    #[value(name = "debian-6.1")]
    Debian61,
    #[value(name = "debian-7.3-arm64")]
    Debian73Arm64,
    #[value(name = "debian-7.3-arm64-16k")]
    Debian73Arm64Pages16k,
    #[value(name = "debian-6.1-arm64")]
    Debian61Arm64,
    #[value(name = "debian-5.10")]
    Debian510,
    #[value(name = "debug-7.2")]
    Debug72,
    #[value(name = "debug-7.2-arm64-64k")]
    Debug72Arm64Pages64k,
    #[value(name = "fast-7.2")]
    Fast72,
    #[value(name = "kcsan-7.2")]
    Kcsan72,
}

impl Kernel {
    /// Returns Debian's own kernel 6.12 for this machine's architecture.
    pub fn debian() -> Self {
        match Arch::host() {
            Arch::X86 => Kernel::Debian612,
            Arch::Arm64 => Kernel::Debian612Arm64,
        }
    }

    /// Returns the lab's debug kernel for this machine's architecture.
    pub fn debug() -> Self {
        match Arch::host() {
            Arch::X86 => Kernel::Debug72,
            Arch::Arm64 => Kernel::Debug72Arm64Pages64k,
        }
    }

    /// Returns whether a lab on `host` can build this kernel. A lab on x86-64 cross-compiles for
    /// arm64; a lab on arm64 builds for arm64 alone.
    pub fn is_built_on(self, host: Arch) -> bool {
        self.arch() == host || host == Arch::X86
    }

    // The kernel's name tells its architecture, here and in artefacts.mk.

    pub fn arch(self) -> Arch {
        if self.name().contains("-arm64") {
            Arch::Arm64
        } else {
            Arch::X86
        }
    }

    /// Returns the kernel's page size in words.
    pub fn pages(self) -> &'static str {
        match self.name().rsplit('-').next() {
            Some("16k") => "16 KiB",
            Some("64k") => "64 KiB",
            _ => "4 KiB",
        }
    }

    /// Returns whether the module is built with this kernel's own Rust crate.
    pub fn has_rust(self) -> bool {
        !self.name().starts_with("debian-")
    }
}

/// The peer-memory API that the RDMA core has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Core {
    #[value(name = "25.10")]
    V2510,
    #[value(name = "24.10")]
    V2410,
    Both,
    Bare,
}

impl Core {
    /// Every API that is tested, beginning with the newest.
    pub const TESTED: [Core; 2] = [Core::V2510, Core::V2410];

    /// Returns the kernel parameter that names the API to the guest.
    pub fn word(self) -> Option<String> {
        Core::TESTED.contains(&self).then(|| format!("guest.generation={}", self.name()))
    }
}

/// The way in which the module pins GPU memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    Persistent,
    Legacy,
    /// Both ways, one after the other.
    Both,
}

impl Mode {
    /// Returns the kernel parameter that names the mode to the guest.
    pub fn word(self) -> Option<String> {
        (self != Mode::Both).then(|| format!("guest.mode={}", self.name()))
    }
}

/// The nvidia-peermem that an image has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Module {
    Ours,
    Lite,
    Closed,
    Odd,
    Newest,
    Installed,
    NvidiaC,
    Tegra,
}

impl Module {
    /// Returns the kernel parameter that names the module to the guest.
    pub fn word(self, kernel: Kernel) -> Option<String> {
        match self {
            Module::NvidiaC => Some("guest.nvidia_c=1".to_string()),
            Module::Ours | Module::Odd | Module::Newest if kernel.has_rust() => None,
            _ => Some("guest.kernel_crate=lite".to_string()),
        }
    }
}

/// What an image has in addition to what every boot needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Also {
    Nothing,
    /// Nothing: the image has only what the demo runs.
    Demo,
    /// Nothing: of what is built the image has rdma-core, the guest and libcuda, for suites that start no other
    /// program.
    Few,
    Consumers,
    /// Programs of other projects, on a disk of their own.
    Programs,
    /// UCX and libfabric, built with CUDA from Debian's sources.
    Built,
    Lite,
    NvidiaC,
}

/// The command with which a person starts a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Run {
    /// `make test`
    Test,
    /// `make test` on an arm64 host, which runs more boots than `Test`.
    TestArm64,
    /// `make test NVIDIA_C=1`, which records differences and does not judge them.
    NvidiaC,
    /// `make soak`
    Soak,
    /// `make scenarios`, with either module.
    Scenarios,
}

/// The clock that the machine's time follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Clock {
    /// The host's clock. The boot says how many processors the machine has.
    Wall,
    /// The number of executed instructions, one nanosecond each. The machine has one processor, and
    /// two runs take the same time however busy the host is.
    Instructions,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_is_what_its_name_says() {
        let of = |kernel: Kernel| (kernel.arch(), kernel.pages(), kernel.has_rust());
        assert_eq!(of(Kernel::Debian612), (Arch::X86, "4 KiB", false));
        assert_eq!(of(Kernel::Debian73Arm64Pages16k), (Arch::Arm64, "16 KiB", false));
        assert_eq!(of(Kernel::Debug72Arm64Pages64k), (Arch::Arm64, "64 KiB", true));
        assert!(Kernel::Fast72.is_built_on(Arch::X86) && !Kernel::Fast72.is_built_on(Arch::Arm64));
        assert!(Kernel::Debian61Arm64.is_built_on(Arch::X86) && Kernel::Debian61Arm64.is_built_on(Arch::Arm64));
    }
}
