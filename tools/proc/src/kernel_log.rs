// SPDX-License-Identifier: GPL-2.0
//! Reads the kernel's own messages in /dev/kmsg, and recognises those that no test may cause.

/// The beginnings of the lines by which the kernel reports a bug of its own, or a stuck task (lib/,
/// mm/kasan, kernel/locking, kernel/dma/debug.c, kernel/panic.c, kernel/rcu, and the faults of
/// arch/). The lab, which judges whole consoles, takes each of them for an alarm, too.
pub const REPORTS: [&str; 14] = [
    "BUG: ",
    "DMA-API: ",
    "INFO: task ",
    "Internal error: ",
    "Oops",
    "UBSAN: ",
    "Unable to handle kernel",
    "WARNING: ",
    "general protection fault",
    "kernel BUG at ",
    "list_add corruption",
    "list_del corruption",
    "rcu: INFO: ",
    "watchdog: BUG: soft lockup",
];

/// Returns whether the text of a message begins a report.
pub fn is_report(text: &str) -> bool {
    REPORTS.iter().any(|begin| text.starts_with(begin))
}

/// Returns the number and the text of a record, `level,number,time,flags;text`, or `None` if it is
/// no record or a program wrote it.
pub fn message(record: &str) -> Option<(u64, &str)> {
    let (head, text) = record.split_once(';')?;
    let mut words = head.split(',');
    let from_kernel = words.next()?.parse::<u32>().ok()? >> 3 == 0;
    let number = words.next()?.parse().ok()?;
    from_kernel.then_some((number, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_known_by_their_first_line() {
        assert!(is_report("BUG: KASAN: slab-use-after-free in nv_dma_map+0x4ef/0x570 [nvidia_peermem]"));
        assert!(is_report("general protection fault, probably for non-canonical address: 0000 [#1] SMP"));
        assert!(!is_report("traps: python3[777] general protection fault ip:7f1 sp:7ff error:0 in libcuda.so"));
        assert!(!is_report("kmemleak: Kernel memory leak detector initialized (mem pool available: 35472)"));
        assert!(!is_report("rxe0: pd#20 rxe_reg_user_mr: returned err = -14"));
    }

    #[test]
    fn a_record_of_the_kernel_is_cut_to_its_text() {
        let text = "NET: Registered; family 10";
        assert_eq!(message(&format!("6,339,5140900,-;{text}")), Some((339, text)));
        assert_eq!(message("12,340,5140901,-;systemd says hello"), None);
        assert_eq!(message("nonsense"), None);
    }
}
