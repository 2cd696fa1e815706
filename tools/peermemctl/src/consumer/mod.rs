// SPDX-License-Identifier: GPL-2.0
//! Programs that register GPU memory, and whether they do with a GPU and a NIC. Each judges by its
//! own rule: the file named in [`Consumer::source`] is where that was read.

mod libfabric;
mod nccl;
mod nvshmem;
mod ucx;

use crate::environment::Environment;
use crate::machine::Machine;
use crate::pci::{Device, Distance};
use crate::rdma::RdmaDevice;
use schemars::JsonSchema;
use serde::Serialize;

/// A program, and its rule.
pub struct Consumer {
    pub id: &'static str,
    pub name: &'static str,
    /// Where its rule was read.
    pub source: &'static str,
    /// How it registers GPU memory on this machine, with whichever NIC.
    pub registers: fn(&Machine, &Environment) -> Registers,
    /// What of a GPU and a NIC keeps it from that.
    pub refuses: fn(&Setting, &Machine, &Environment) -> Option<Refusal>,
}

/// All that are known.
pub const ALL: [&Consumer; 6] =
    [&nccl::NCCL, &nccl::GIN, &nccl::SHARP, &ucx::UCX, &nvshmem::NVSHMEM, &libfabric::LIBFABRIC];

/// How GPU memory gets registered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub enum Way {
    #[serde(rename = "peer memory")]
    PeerMemory,
    #[serde(rename = "dma-buf")]
    DmaBuf,
}

impl Way {
    pub fn text(self) -> &'static str {
        match self {
            Self::PeerMemory => "peer memory",
            Self::DmaBuf => "dma-buf",
        }
    }
}

/// Whether a program finds a way to register GPU memory.
pub enum Registers {
    By(Way, String),
    No(Refusal),
}

/// Why a program does not use GPUDirect RDMA.
pub struct Refusal {
    /// Follows "because".
    pub because: String,
    /// What changes that, as a command; `None`: what makes the module work does.
    pub set: Option<String>,
    /// What was read.
    pub seen: String,
}

/// A GPU and a NIC, as a program sees them.
pub struct Setting<'a> {
    pub gpu: &'a Device,
    pub nic: &'a RdmaDevice,
    pub distance: Distance,
    /// Whether the GPU has a coherent link (NVLink-C2C) to the processor that the NIC hangs below.
    pub c2c: bool,
    /// Whether no other NIC is nearer to the GPU.
    pub nearest: bool,
}

/// What a program does with a GPU and a NIC.
#[derive(Serialize, JsonSchema)]
pub struct Verdict {
    pub consumer: &'static str,
    /// PCI address.
    pub gpu: String,
    /// Name of the RDMA device.
    pub nic: String,
    pub distance: Distance,
    /// `null` if it copies through host memory.
    pub direct_by: Option<Way>,
    pub because: String,
    /// What changes that.
    pub set: Option<String>,
}

/// Each pair of a GPU and a NIC with an active port, which is what all of them look for. Software
/// devices are left out: with them the CPU moves every byte.
pub fn settings<'a>(machine: &'a Machine) -> Vec<Setting<'a>> {
    let mut settings = Vec::new();
    for gpu in machine.gpus() {
        let nics = machine.rdma.iter().filter(|device| !device.software && device.is_active());
        let nics = nics.filter_map(|device| Some((device, machine.pci(device.pci.as_deref()?)?)));
        let pairs: Vec<_> = nics.map(|(device, nic)| (device, nic, gpu.way_to(nic).distance)).collect();
        let nearest = pairs.iter().map(|(.., distance)| *distance).min();
        settings.extend(pairs.into_iter().map(|(nic, at, distance)| Setting {
            gpu,
            nic,
            distance,
            c2c: machine.has_c2c(gpu) && gpu.numa.is_some() && gpu.numa == at.numa,
            nearest: nearest == Some(distance),
        }));
    }
    settings
}

/// What each program does with each GPU and NIC.
pub fn verdicts(machine: &Machine, environment: &Environment) -> Vec<Verdict> {
    let settings = settings(machine);
    let of = |consumer: &&'static Consumer| -> Vec<Verdict> {
        settings.iter().map(|setting| consumer.judge(setting, machine, environment)).collect()
    };
    ALL.iter().flat_map(of).collect()
}

impl Consumer {
    /// What it does with a GPU and a NIC.
    fn judge(&self, setting: &Setting, machine: &Machine, environment: &Environment) -> Verdict {
        let refusal = match (self.registers)(machine, environment) {
            Registers::By(way, seen) => (self.refuses)(setting, machine, environment).ok_or((way, seen)),
            Registers::No(refusal) => Ok(refusal),
        };
        let (direct_by, because, set) = match refusal {
            Ok(refusal) => (None, refusal.because, refusal.set),
            Err((way, seen)) => (Some(way), seen, None),
        };
        Verdict {
            consumer: self.name,
            gpu: setting.gpu.address.clone(),
            nic: setting.nic.name.clone(),
            distance: setting.distance,
            direct_by,
            because,
            set,
        }
    }
}

/// What all of them look at: a file by which they know the module, or dma-buf, which they prefer.
fn by_file(machine: &Machine, files: &[&str], dma_buf: Result<bool, String>, else_it: &str) -> Registers {
    if dma_buf == Ok(true) && machine.dma_buf() {
        return Registers::By(Way::DmaBuf, "the kernel, the GPU's and the NIC's driver offer dma-buf".to_owned());
    }
    if let Some(path) = files.iter().find(|path| machine.root.exists(path)) {
        return Registers::By(Way::PeerMemory, format!("{path} exists"));
    }
    let seen = format!("none of {}", files.join(", "));
    match dma_buf {
        Err(variable) if machine.dma_buf() => Registers::No(Refusal {
            because: format!("it does not find the module, {variable} keeps it from dma-buf, and it {else_it}"),
            set: Some(format!("unset {}", variable.split('=').next().unwrap_or(&variable))),
            seen,
        }),
        _ => Registers::No(Refusal { because: format!("it does not find the module and {else_it}"), set: None, seen }),
    }
}

/// Whether a list such as `mlx5_0:1,mlx5_3` names a NIC. A `^` in front means all others, a `=`
/// (NCCL) whole names only.
fn lists(list: &str, nic: &str) -> bool {
    let (others, list) = match list.strip_prefix('^') {
        Some(list) => (true, list),
        None => (false, list),
    };
    let (exact, list) = match list.strip_prefix('=') {
        Some(list) => (true, list),
        None => (false, list),
    };
    let names = list.split(',').map(|entry| entry.split(':').next().unwrap_or(entry).trim());
    let found = names.filter(|name| !name.is_empty()).any(|name| name == nic || !exact && nic.starts_with(name));
    found != others
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_nics() {
        assert!(lists("mlx5_0:1,mlx5_3", "mlx5_3") && !lists("mlx5_0", "mlx5_3"));
        assert!(lists("mlx5", "mlx5_3") && !lists("=mlx5", "mlx5_3") && lists("=mlx5_3:1", "mlx5_3"));
        assert!(!lists("^mlx5_3", "mlx5_3") && lists("^mlx5_3", "mlx5_4") && lists("^=mlx5_1", "mlx5_10"));
    }
}
