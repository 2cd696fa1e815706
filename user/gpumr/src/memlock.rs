// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! Says whether the limit of locked memory is in the way of a registration. The kernel adds the pages of
//! each registration to `VmPin`, refuses with ENOMEM what exceeds RLIMIT_MEMLOCK, and asks the GPU driver
//! nothing then. Whoever has CAP_IPC_LOCK outside of user namespaces has no limit.

use crate::range::{page_size, Range};

/// The bit of CAP_IPC_LOCK.
const IPC_LOCK: u32 = 14;
/// The line of the initial user namespace, which maps all numbers to themselves. A child that root makes
/// may have the same line.
const INITIAL: [&str; 3] = ["0", "0", "4294967295"];

/// Returns whether the pages of `range` exceed the limit, or `None` if nobody can say.
pub(crate) fn exceeded(range: &Range) -> Option<bool> {
    // Capabilities are those of a thread.
    let read = |file: &str| std::fs::read_to_string(format!("/proc/thread-self/{file}")).ok();
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: A local.
    let status = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) };
    (status == 0).then(|| is_over(range, limit.rlim_cur, &read("status")?, &read("uid_map")?))?
}

fn is_over(range: &Range, limit: u64, status: &str, users: &str) -> Option<bool> {
    let value = |name: &str| status.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next();
    let pinned = value("VmPin:")?.parse::<u64>().ok()? << 10;
    let pages = range.widened(page_size())?.length();
    let capable = u64::from_str_radix(value("CapEff:")?, 16).ok()? >> IPC_LOCK & 1 != 0;
    if limit == libc::RLIM_INFINITY || pinned.saturating_add(pages) <= limit {
        return Some(false);
    }
    // In a user namespace the capability is worth nothing here.
    Some(!(capable && users.split_whitespace().eq(INITIAL)))
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_told_from_a_full_bar1() {
        let pages = page_size();
        let range = Range::new(3 * pages + 100, pages).unwrap();
        let status = |pinned: u64, capabilities: &str| {
            format!("VmLck:\t    4096 kB\nVmPin:\t  {} kB\nCapEff:\t{capabilities}\n", pinned >> 10)
        };
        let (none, all) = ("0000000000000000", "000001ffffffffff");
        let (initial, inner) = ("         0          0 4294967295\n", "         0       1000          1\n");
        for (limit, pinned, capabilities, users, over) in [
            (2 * pages, 0, none, initial, Some(false)),
            (2 * pages - 1, 0, none, initial, Some(true)),
            (8 * pages, 6 * pages, none, initial, Some(false)),
            (8 * pages, 7 * pages, none, initial, Some(true)),
            (libc::RLIM_INFINITY, u64::MAX >> 1, none, initial, Some(false)),
            (pages, 0, all, initial, Some(false)),
            (pages, 0, "0000000000004000", initial, Some(false)),
            (pages, 0, all, inner, Some(true)),
            (pages, 0, "nonsense", initial, None),
        ] {
            let said = is_over(&range, limit, &status(pinned, capabilities), users);
            assert_eq!(said, over, "{limit} {pinned} {capabilities} {users}");
        }
        assert_eq!(is_over(&range, 0, "", initial), None, "a kernel that does not say what is pinned");
        // This process has such files.
        assert!(exceeded(&range).is_some());
    }
}
