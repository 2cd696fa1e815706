// SPDX-License-Identifier: GPL-2.0
//! Devices as people name them: a GPU by index or address, a NIC by name, index or address.

use crate::machine::Machine;
use crate::pci::Device;
use crate::rdma::RdmaDevice;
use anyhow::{Context, Result};

/// Returns the GPU that `text` means: `0`, `0000:18:00.0`, `18:00.0`, or nvidia-smi's
/// `00000000:18:00.0`.
pub fn gpu<'a>(machine: &'a Machine, text: &str) -> Result<&'a Device> {
    let gpus = machine.gpus();
    let found = match text.parse::<usize>() {
        Ok(index) => gpus.get(index).copied(),
        Err(_) => gpus.iter().find(|gpu| is_address(&gpu.address, text)).copied(),
    };
    found.with_context(|| format!("there is no GPU {text}; peermemctl topo lists those that there are"))
}

/// Returns the NIC that `text` means: `mlx5_0`, `0`, or an address.
pub fn nic<'a>(machine: &'a Machine, text: &str) -> Result<&'a RdmaDevice> {
    let by_index = || machine.rdma.get(text.parse::<usize>().ok()?);
    let is_at = |device: &&RdmaDevice| device.pci.as_deref().is_some_and(|address| is_address(address, text));
    let found = machine.rdma.iter().find(|device| device.name == text).or_else(by_index);
    found
        .or_else(|| machine.rdma.iter().find(is_at))
        .with_context(|| format!("there is no NIC {text}; peermemctl topo lists those that there are"))
}

/// Returns whether `text` means `address`: it may have more zeros in front of the domain, or no
/// domain.
fn is_address(address: &str, text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    let short = text.trim_start_matches('0');
    let is_whole = text.matches(':').count() == 2 && address.trim_start_matches('0') == short;
    is_whole || address.strip_prefix("0000:") == Some(&text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorded;
    use crate::root::Root;
    use std::path::Path;

    #[test]
    fn what_is_not_there_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/trees/one-pair.tree");
        recorded::unpack(&tree, dir.path()).unwrap();
        let root = Root::new(dir.path());
        let machine = Machine::look(&root);
        assert_eq!(gpu(&machine, "0").unwrap().address, "0000:19:00.0");
        let error = gpu(&machine, "7").unwrap_err().to_string();
        assert!(error.starts_with("there is no GPU 7;"), "{error}");
        let error = nic(&machine, "mlx5_9").err().unwrap().to_string();
        assert!(error.starts_with("there is no NIC mlx5_9;"), "{error}");
    }

    #[test]
    fn addresses_as_tools_write_them() {
        for text in ["0000:18:00.0", "18:00.0", "00000000:18:00.0", "0000:18:00.0"] {
            assert!(is_address("0000:18:00.0", text), "{text}");
        }
        assert!(is_address("0009:01:00.0", "00000009:01:00.0") && is_address("0000:1a:00.0", "1A:00.0"));
        for text in ["8:00.0", "0001:18:00.0", "18:00.1", "", "0"] {
            assert!(!is_address("0000:18:00.0", text), "{text}");
        }
        assert!(!is_address("0009:01:00.0", "01:00.0"));
    }
}
