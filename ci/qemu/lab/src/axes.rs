//! What a boot is made of: the values that `boots.toml` and the command line name.

use crate::arch::Arch;
use clap::ValueEnum;
use serde::de::Error;
use serde::{Deserialize, Deserializer};

/// The word for a value, in the data file, on the command line and in names.
pub trait Named: ValueEnum {
    fn name(&self) -> String {
        self.to_possible_value().map_or(String::new(), |value| value.get_name().to_string())
    }
}

impl<T: ValueEnum> Named for T {}

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
    /// Debian's own 6.12, from its package: no Rust, gcc, the module built with kernel-lite.
    #[value(name = "debian-6.12")]
    Debian612,
    /// The same for arm64, with pages of 4 KiB.
    #[value(name = "debian-6.12-arm64")]
    Debian612Arm64,
    /// The same with pages of 16 KiB.
    #[value(name = "debian-6.12-arm64-16k")]
    Debian612Arm64Pages16k,
    /// The newest that Debian has, likewise; built inside Debian 13. No RDMA there.
    #[value(name = "debian-7.3")]
    Debian73,
    /// Debian 12's first, likewise. No RDMA there.
    #[value(name = "debian-6.1")]
    Debian61,
    /// Both for arm64.
    #[value(name = "debian-7.3-arm64")]
    Debian73Arm64,
    #[value(name = "debian-7.3-arm64-16k")]
    Debian73Arm64Pages16k,
    #[value(name = "debian-6.1-arm64")]
    Debian61Arm64,
    /// Debian 11's, likewise: the oldest that kernel-lite serves. No RDMA there.
    #[value(name = "debian-5.10")]
    Debian510,
    /// The lab's, with every alarm on.
    #[value(name = "debug-7.2")]
    Debug72,
    /// The lab's for arm64, with pages of 64 KiB and the alarms that cost less.
    #[value(name = "debug-7.2-arm64-64k")]
    Debug72Arm64Pages64k,
    /// The lab's, with nothing that costs time.
    #[value(name = "fast-7.2")]
    Fast72,
    /// The lab's, with KCSAN, which excludes KASAN: data races.
    #[value(name = "kcsan-7.2")]
    Kcsan72,
}

impl Kernel {
    // A name says what the kernel is, here as in artefacts.mk.

    pub fn arch(self) -> Arch {
        if self.name().contains("-arm64") {
            Arch::Arm64
        } else {
            Arch::X86
        }
    }

    /// Its page, in words.
    pub fn pages(self) -> &'static str {
        match self.name().rsplit('-').next() {
            Some("16k") => "16 KiB",
            Some("64k") => "64 KiB",
            _ => "4 KiB",
        }
    }

    /// Does this kernel's own Rust crate build the module?
    pub fn has_rust(self) -> bool {
        !self.name().starts_with("debian-")
    }
}

/// The peer-memory API of the RDMA core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Core {
    /// MLNX_OFED 25.04 and later.
    #[value(name = "25.10")]
    V2510,
    /// 5.5 to 25.01: the stop test is inverted.
    #[value(name = "24.10")]
    V2410,
    /// The suites go from core to core.
    Both,
    /// One module stands in for both neighbours.
    Bare,
}

impl Core {
    /// Every API that is tested, the newest first.
    pub const TESTED: [Core; 2] = [Core::V2510, Core::V2410];

    /// What the guest is told.
    pub fn word(self) -> Option<String> {
        Core::TESTED.contains(&self).then(|| format!("guest.generation={}", self.name()))
    }
}

/// How the module pins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    Persistent,
    Legacy,
    /// One after the other.
    Both,
}

impl Mode {
    /// What the guest is told.
    pub fn word(self) -> Option<String> {
        (self != Mode::Both).then(|| format!("guest.mode={}", self.name()))
    }
}

/// Which nvidia-peermem an image has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Module {
    Ours,
    /// Ours with kernel-lite, where the kernel has a crate of its own.
    Lite,
    /// Ours beside an nvidia.ko of the closed flavour.
    Closed,
    /// Ours as README has it installed, beside NVIDIA's.
    Installed,
    /// NVIDIA's C module in place of ours.
    NvidiaC,
}

impl Module {
    /// What the guest is told.
    pub fn word(self, kernel: Kernel) -> Option<String> {
        match self {
            Module::NvidiaC => Some("guest.nvidia_c=1".to_string()),
            Module::Ours if kernel.has_rust() => None,
            _ => Some("guest.kernel_crate=lite".to_string()),
        }
    }
}

/// What an image has beside what every boot needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Also {
    Nothing,
    /// UCX, and rdma-core's own tests.
    Consumers,
    /// Ours with kernel-lite, where modprobe does not find it.
    Lite,
    /// NVIDIA's C module, likewise.
    NvidiaC,
}

/// What a person starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Run {
    /// `make test`
    Test,
    /// `make test NVIDIA_C=1`: what differs is recorded, not judged.
    NvidiaC,
    /// `make soak`
    Soak,
    /// `make scenarios`, with either module.
    Scenarios,
}

/// What the machine's time is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Clock {
    /// This machine's; two processors.
    Wall,
    /// Instructions executed, one nanosecond each; one processor. The same twice, however busy this
    /// machine is.
    Instructions,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_guest_is_told() {
        assert_eq!(Core::V2410.word().as_deref(), Some("guest.generation=24.10"));
        assert_eq!((Core::Both.word(), Core::Bare.word()), (None, None));
        assert_eq!(Module::Ours.word(Kernel::Fast72), None);
        assert_eq!(Module::Ours.word(Kernel::Debian61).as_deref(), Some("guest.kernel_crate=lite"));
    }

    #[test]
    fn a_kernel_is_what_its_name_says() {
        let of = |kernel: Kernel| (kernel.arch(), kernel.pages(), kernel.has_rust());
        assert_eq!(of(Kernel::Debian612), (Arch::X86, "4 KiB", false));
        assert_eq!(of(Kernel::Debian73Arm64Pages16k), (Arch::Arm64, "16 KiB", false));
        assert_eq!(of(Kernel::Debug72Arm64Pages64k), (Arch::Arm64, "64 KiB", true));
    }
}
