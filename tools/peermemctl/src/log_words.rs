// SPDX-License-Identifier: GPL-2.0
//! The words of the kernel log that verdicts look for, in one place: what has none of them is neither
//! read nor recorded. Each was read in the source that writes it; "7.2" is Linux 7.2.13.

/// The words with which a fault of the kernel begins, and what they mean: kernel/watchdog.c,
/// arch/x86/mm/fault.c, arch/x86/kernel/traps.c, arch/x86/kernel/dumpstack.c and
/// arch/arm64/mm/fault.c of 7.2. "kernel BUG at" of lib/bug.c's callers, "Internal error" of
/// arch/arm64/kernel/traps.c, and the stalls of kernel/rcu/tree_stall.h come before such lines,
/// too.
pub const FAULTS: [(&str, &str); 13] = [
    ("BUG: soft lockup", STUCK),
    // Older kernels have no processor's number before it.
    ("Watchdog detected hard LOCKUP", STUCK),
    ("BUG: kernel NULL pointer", FAULTED),
    ("BUG: unable to handle", FAULTED),
    ("Unable to handle kernel", FAULTED),
    ("general protection fault", FAULTED),
    ("kernel BUG at", FAULTED),
    ("Internal error: ", FAULTED),
    ("self-detected stall", STUCK),
    ("detected stalls", STUCK),
    // "Oops: 0000 [#1] SMP", "Oops [#1]", "Oops - BUG: 0 [#1]"; a program may have a name that begins so.
    ("Oops: ", FAULTED),
    ("Oops [", FAULTED),
    ("Oops - ", FAULTED),
];
/// The meaning of a fault that may be over when it is read.
pub const STUCK: &str = "a processor did not come out of";
pub const FAULTED: &str = "the kernel faulted in";
/// The word with which the line of a program's own fault begins (arch/x86/kernel/traps.c of 7.2).
pub const OF_PROGRAM: &str = "traps: ";
/// The word with which the line of a warning begins (kernel/panic.c of 7.2). Its stack has a line
/// that says where, too, which must not be taken for that of a fault.
pub const WARNING: &str = "WARNING: ";

/// An access that an IOMMU blocked: drivers/iommu/intel/dmar.c, amd/iommu.c and arm/arm-smmu-v3 of 7.2, and
/// of older kernels, which write "DMAR:[DMA".
pub const IOMMU: [&str; 5] = ["DMAR: [DMA", "DMAR:[DMA", "AMD-Vi: Event logged", "IO_PAGE_FAULT", "arm-smmu"];
/// The words of an SMMU that do not say whose access it blocked: event 0x10 is a fault of translation.
pub const SMMU_NAMELESS: [&str; 2] = ["event 0x10 received", "Unhandled context fault"];

/// nvidia.ko writes this before it waits for the last user of a GPU that is taken away from it (nv_pci_remove_helper
/// in kernel-open/nvidia/nv-pci.c).
pub const TAKEN_AWAY: &str = "Attempting to remove device ";

/// The port above a device writes this when it has brought the device back after an error of PCIe:
/// drivers/pci/pcie/err.c of 7.2. Older kernels begin it with a capital letter.
pub const PCIE_RECOVERED: &str = "evice recovery successful";
/// The port writes this when it could not. Where the port contains errors (DPC), or the firmware takes
/// them first, no other line may tell of the error.
const PCIE_FAILED: &str = "evice recovery failed";

/// The bit of an uncorrectable error by which a port says that its ACS refused a transfer: the names of
/// drivers/pci/pcie/aer.c of 7.2, and of kernels before 4.17.
pub const ACS_VIOLATION: [&str; 2] = ["ACSViol", "ACS Violation"];

/// The command of mlx5's firmware that makes the key of a registration, as mlx5_cmd_out_err() of
/// drivers/net/ethernet/mellanox/mlx5/core/cmd.c of 7.2 writes it, and the words that follow where it fails. Older
/// kernels write the command in small letters.
pub const MAKES_KEY: [&str; 2] = ["CREATE_MKEY(", "create_mkey("];
pub const FAILED_STATUS: &str = "failed, status ";

/// Returns whether a line says that a driver gave a device up: really_probe() and call_driver_probe() of
/// drivers/base/dd.c, which older kernels write with the device last, and mlx5's own.
pub fn is_failed_probe(line: &str) -> bool {
    line.contains("failed with error")
        && ["probe of ", "probe with driver ", "probe_one"].iter().any(|word| line.contains(word))
}

/// The function of nvidia.ko that warns where it has lost a GPU that it is to give back.
pub const LOST_GPU: &str = "nvidia_dev_put_uuid";

/// The words that a driver writes about the health of its NIC.
pub struct Nic {
    /// The name that its lines have for the driver. Those of an RDMA driver have the PCI function's
    /// driver, as `__ibdev_printk` of drivers/infiniband/core/device.c writes it.
    pub driver: &'static str,
    /// The check that tells of it.
    pub id: &'static str,
    pub sick: &'static [&'static str],
    /// Words that take all of the above back.
    pub well: &'static [&'static str],
}

pub const NICS: [Nic; 5] = [
    // health.c and cmd.c of drivers/net/ethernet/mellanox/mlx5/core of 7.2. Other "Fatal error" are
    // those of packet steering; of a line "Health issue observed" the severity decides.
    Nic {
        driver: "mlx5_core",
        id: "log.mlx5",
        sick: &[
            "device's health compromised",
            "Fatal error 1 detected",
            "Fatal error 2 detected",
            "Fatal error 3 detected",
            "Fatal error 4 detected",
            "Fatal error 5 detected",
            "handling bad device",
            "health recovery failed",
            "health recovery flow aborted",
            // print_health_info() writes as much of a warning, such as one of temperature: 0 to 3 are errors.
            "severity(0)",
            "severity(1)",
            "severity(2)",
            "severity(3)",
            // hsynd_str() of older kernels, which write no severity.
            "firmware internal error",
            "unrecoverable hardware error",
            "Will cause a leak of a command resource",
        ],
        // The second is written at each start of the driver (mlx5_load() of main.c).
        well: &["health recovery succeeded", "firmware version: "],
    },
    // bnxt.c of drivers/net/ethernet/broadcom/bnxt, and qplib_rcfw.c of drivers/infiniband/hw/bnxt_re, of 7.2.
    Nic {
        driver: "bnxt_en",
        id: "log.nic",
        sick: &["firmware fatal condition", "Firmware not responding", "Firmware reset aborted", "FW STALL Detected"],
        well: &[],
    },
    // icrdma_if.c, ig3rdma_if.c and i40iw_if.c of drivers/infiniband/hw/irdma of 7.2: for Intel's E800, E2100
    // and X722. What does not answer ends in a request for a reset, too.
    Nic { driver: "ice ", id: "log.nic", sick: &IRDMA, well: &[] },
    Nic { driver: "idpf ", id: "log.nic", sick: &IRDMA, well: &[] },
    Nic { driver: "i40e ", id: "log.nic", sick: &IRDMA, well: &[] },
];
const IRDMA: [&str; 4] = ["critical PE Error", "HMC Error", "PE Push Error", "Requesting a reset"];

/// Other words of lines about GPUs and RDMA.
const TOPICS: [&str; 11] = [
    "nvidia",
    "NVRM",
    "nv_mem",
    "ib_core",
    "ib_uverbs",
    "mlx5_",
    "bnxt_",
    "peer_mem",
    "Loading of",
    "Lockdown",
    ENCRYPTION,
];
/// The kernel writes this where memory is encrypted: arch/x86/mm/mem_encrypt.c of 7.2. Of a host it says "AMD SME",
/// of a guest "AMD SEV" or "Intel TDX".
pub const ENCRYPTION: &str = "Memory Encryption Features active:";
/// Words that count in configuration only.
const SETTINGS: [&str; 2] = ["memlock", "irdma"];
/// Modules that GPU memory goes through, beside those of the topics.
const OTHERS: [&str; 2] = ["[gdrdrv", "[efa"];
/// The words that the free callback of a client of the GPU driver has in its name.
pub const FREE_CALLBACK: &str = "free_callback";
/// The words with which the line begins that says where a fault was, in whatever module.
pub const WHERE: [&str; 2] = ["RIP: ", "pc : "];

/// Returns whether a line of the log or of configuration is about GPUs or RDMA. A kernel command line
/// names disks and hosts. Logs are long and most of their lines have nothing of this: short words go first.
pub fn is_on_topic(line: &str) -> bool {
    let has = |words: &[&str]| words.iter().any(|word| line.contains(word));
    let is_one = has(&TOPICS)
        || has(&SETTINGS)
        || has(&OTHERS)
        || has(&WHERE)
        || has(&IOMMU)
        || has(&["Error", "Requesting"]) && has(&IRDMA)
        || line.contains(FREE_CALLBACK)
        || line.contains("free_cb")
        || line.contains(PCIE_RECOVERED)
        || has(&ACS_VIOLATION)
        || is_pcie_error(line)
        || is_failed_probe(line)
        || has(&["BUG", "LOCKUP", "handle", "fault", "Oops", "Internal", "stall"])
            && FAULTS.iter().any(|(head, _)| line.contains(head))
        || blocked_task(line).is_some()
        || line.starts_with(WARNING)
        || line.split_once(';').is_some_and(|(_, text)| text.starts_with(WARNING));
    is_one && !line.contains("ommand line")
}

/// Returns whether a line tells of an uncorrectable error of PCIe, or that a device was not brought back
/// after one: drivers/pci/pcie/aer.c and err.c of 7.2. Older kernels write "Uncorrected".
pub fn is_pcie_error(line: &str) -> bool {
    line.contains("Bus Error: ") && line.contains("Uncorrect") || line.contains(PCIE_FAILED)
}

/// Returns the task that a line reports as blocked, such as `python3:777`: kernel/hung_task.c of 7.2 and
/// of older kernels, which do not tell waits for input and output.
pub fn blocked_task(line: &str) -> Option<&str> {
    let (task, rest) = line.split_once("task ")?.1.split_once(" blocked ")?;
    (rest.starts_with("for more than ") || rest.starts_with("in I/O wait for more than ")).then_some(task)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocked_tasks_of_old_and_new_kernels() {
        let head = "INFO: task python3:777 blocked for more than 122 seconds.";
        assert_eq!(blocked_task(head), Some("python3:777"));
        assert_eq!(blocked_task(&head.replace("blocked", "blocked in I/O wait")), Some("python3:777"));
        assert_eq!(blocked_task("INFO: task python3:777 blocked on a mutex likely owned by task x:1."), None);
    }

    /// What is not kept is not found.
    #[test]
    fn whatever_a_verdict_looks_for_is_kept() {
        for nic in &NICS {
            for words in nic.sick.iter().chain(nic.well) {
                let line = format!("{} 0000:18:00.0: {words}", nic.driver.trim_end());
                assert!(is_on_topic(&line), "{line}");
            }
        }
        assert!(is_on_topic(&format!("NVRM: {TAKEN_AWAY}0000:19:00.0 with non-zero usage count!")));
        assert!(is_on_topic("watchdog: CPU3: Watchdog detected hard LOCKUP on cpu 3"));
        for (head, _) in FAULTS {
            assert!(is_on_topic(&format!("{head} x")), "{head}");
        }
        assert!(ACS_VIOLATION.iter().all(|words| is_on_topic(&format!("pcieport 0000:17:00.0:    [21] {words}"))));
        assert!(is_on_topic("pcieport 0000:17:00.0: PCIe Bus Error: severity=Uncorrectable (Fatal)"));
        assert!([PCIE_RECOVERED, PCIE_FAILED].iter().all(|words| is_on_topic(&format!("AER: d{words}"))));
        assert!(is_on_topic("RIP: 0010:mlx5_ib_invalidate_range+0x1d0/0x5e0 [mlx5_ib]"));
        assert!(is_on_topic("4,902,90000002,-;WARNING: mm/memory.c:1 at f+0x1/0x2, CPU#3: x/77"));
        assert!(is_on_topic("ice 0000:18:00.0: probe with driver ice failed with error -5"));
        assert!(!is_on_topic("Kernel command line: root=/dev/nvidia") && !is_on_topic("usb 1-1: new device"));
    }
}
