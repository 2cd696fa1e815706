// SPDX-License-Identifier: GPL-2.0
//! What the kernel says while a check runs.

use crate::root::{Missing, Root};
use peermem_proc::kernel_log::{is_report, message};

/// The words of drivers about an access that went wrong: the GPU's, or one that an IOMMU blocked.
const INSIDE: [&str; 3] = ["NVRM: Xid", "DMAR: [DMA", "IO_PAGE_FAULT"];

/// Returns whether a line is one that no check may cause.
fn is_alarm(line: &str) -> bool {
    is_report(line) || INSIDE.iter().any(|word| line.contains(word))
}

/// A place in the log.
pub struct Mark(Option<u64>);

impl Mark {
    /// Returns the end of the log, or `Err` if this user may not read it.
    pub fn now(root: &Root) -> Result<Self, Missing> {
        Ok(Self(root.kernel_log()?.0.lines().filter_map(message).map(|(number, _)| number).max()))
    }

    /// Returns the alarms since this mark.
    pub fn alarms(&self, root: &Root) -> Vec<String> {
        let (log, _) = root.kernel_log().unwrap_or_default();
        let is_new = |number: u64| self.0.is_none_or(|last| number > last);
        let alarms = log.lines().filter_map(message).filter(|(number, text)| is_new(*number) && is_alarm(text));
        alarms.map(|(_, text)| text.to_owned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_new_alarms_of_the_kernel_count() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::new(dir.path());
        std::fs::create_dir(dir.path().join("dev")).unwrap();
        let write = |log: &str| std::fs::write(dir.path().join("dev/kmsg"), log).unwrap();
        let old = "4,10,5,-;WARNING: CPU: 0 PID: 1 at old\n SUBSYSTEM=x\n";
        write(old);
        let mark = Mark::now(&root).unwrap();
        assert!(mark.alarms(&root).is_empty());
        let new =
            "12,11,6,-;BUG: says a program\n6,12,7,-;nvidia_peermem: fine\n3,13,8,-;NVRM: Xid (PCI:0000:18:00): 31\n";
        write(&format!("{old}{new}"));
        assert_eq!(mark.alarms(&root), ["NVRM: Xid (PCI:0000:18:00): 31"]);
    }
}
