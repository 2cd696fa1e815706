// SPDX-License-Identifier: GPL-2.0
//! Which findings follow from which others, and the one step that helps most.

use crate::check::{Check, Level};

/// What has to be there before anything else can work, in the order in which it does: hardware, GPU
/// driver, API, module.
const ORDER: [&[&str]; 6] = [
    // Nothing else can be mended while a task holds the GPU driver's lock.
    &["log.hung", "clients.callbacks"],
    &["gpus.present", "fabric.rdma"],
    &["driver.loaded", "driver.exports", "gpus.fabric"],
    &["api.exported", "api.driver"],
    &[
        "module.shut",
        "module.blocked",
        "module.file",
        "module.vermagic",
        "module.versions",
        "module.signature",
        "module.stub",
        "api.version",
        "driver.licence",
        "module.parameters",
        "clients.taken",
        "module.loaded",
    ],
    // Transfers fault where programs take that way, which they do by default.
    &["ways.refused"],
];

/// While these last, the GPU driver stands still.
const STANDS_STILL: [&str; 2] = ["log.hung", "clients.callbacks"];

/// The failures that keep what `id` is about from working, the first ones first.
fn causes(id: &str) -> Vec<&'static str> {
    let all = || ORDER.iter().flat_map(|group| group.iter().copied());
    let hangs = ["module.", "clients.", "registrations.", "refusals.", "gpus.answers", "consumers."];
    let hung = STANDS_STILL.into_iter().filter(|cause| *cause != id && hangs.iter().any(|start| id.starts_with(start)));
    let hung: Vec<&'static str> = hung.filter(|_| id != "clients.callbacks").collect();
    let rest = match id {
        "driver.loaded" => vec!["gpus.present"],
        // It loads without a NIC.
        "module.loaded" => all()
            .filter(|other| {
                !matches!(*other, "module.loaded" | "fabric.rdma" | "api.driver" | "gpus.answers" | "gpus.fabric")
            })
            .collect(),
        // Installed for nothing, as long as there is no core for it.
        "module.file" | "limits.autoload" => vec!["api.exported"],
        "gpus.nodes" => vec!["gpus.present", "driver.loaded"],
        "fabric.nodes" => vec!["fabric.rdma"],
        _ if id.starts_with("consumers.") => all().chain(["gpus.nodes", "fabric.nodes"]).collect(),
        _ => Vec::new(),
    };
    hung.into_iter().chain(rest).collect()
}

/// Says of each finding which failure it follows from.
pub fn trace(checks: &mut [&mut Check]) {
    let failed: Vec<&'static str> =
        checks.iter().filter(|check| check.level == Level::Fail).map(|check| check.id).collect();
    for check in checks.iter_mut().filter(|check| check.is_finding()) {
        let cause = causes(check.id).into_iter().find(|cause| *cause != check.id && failed.contains(cause));
        // Some know their cause by themselves.
        check.follows = cause.or(check.follows);
        // rmmod and modprobe would hang.
        if let Some(cause) = check.follows.filter(|cause| STANDS_STILL.contains(cause)) {
            check.fix = check.fix.take().map(|fix| format!("first what {cause} says; then: {fix}"));
        }
    }
    share(checks);
}

/// Lets a finding follow from another one of another kind that has the same cure, from the worst and of
/// these the first: a cure is told once.
fn share(checks: &mut [&mut Check]) {
    let kind = |id: &'static str| id.split('.').next();
    let mut given: Vec<(Level, &'static str, String)> = Vec::new();
    for check in checks.iter().filter(|check| check.is_finding() && check.follows.is_none()) {
        given.extend(check.fix.clone().map(|fix| (check.level, check.id, fix)));
    }
    given.sort_by_key(|(level, ..)| std::cmp::Reverse(*level));
    for check in checks.iter_mut().filter(|check| check.is_finding() && check.follows.is_none()) {
        let same = given.iter().find(|(.., fix)| Some(fix) == check.fix.as_ref());
        check.follows = same.map(|(_, id, _)| *id).filter(|id| kind(id) != kind(check.id));
    }
}

/// The finding to begin with: of those that follow from no other the worst, and of these the one
/// whose end unblocks most. What comes earlier in [`ORDER`] unblocks all that comes later, whatever
/// else is wrong there; a finding that another one follows from ranks with that.
pub fn first<'a>(checks: &[&'a Check]) -> Option<&'a Check> {
    let place = |id: &str| ORDER.iter().position(|group| group.contains(&id)).unwrap_or(ORDER.len());
    let rank = |check: &Check| {
        let behind = checks.iter().filter(|other| other.follows == Some(check.id));
        behind.map(|other| place(other.id)).chain([place(check.id)]).min()
    };
    let followers = |check: &Check| checks.iter().filter(|other| causes(other.id).contains(&check.id)).count();
    let roots = checks.iter().filter(|check| check.is_finding() && check.follows.is_none());
    // The first of those that are alike.
    roots
        .copied()
        .min_by_key(|check| (std::cmp::Reverse(check.level), rank(check), std::cmp::Reverse(followers(check))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn traced(ids: &[(&'static str, Level)]) -> (Option<&'static str>, Vec<Option<&'static str>>) {
        let mut checks: Vec<Check> = ids
            .iter()
            .map(|(id, level)| match level {
                Level::Fail => Check::fail(id, "", *id),
                Level::Warn => Check::warn(id, "", *id),
                _ => Check::ok(id, ""),
            })
            .collect();
        trace(&mut checks.iter_mut().collect::<Vec<_>>());
        let first = first(&checks.iter().collect::<Vec<_>>()).map(|check| check.id);
        (first, checks.iter().map(|check| check.follows).collect())
    }

    #[test]
    fn hardware_comes_first() {
        let (first, follows) = traced(&[
            ("api.exported", Level::Fail),
            ("module.loaded", Level::Fail),
            ("consumers.nccl", Level::Warn),
            ("fabric.rdma", Level::Fail),
        ]);
        assert_eq!(first, Some("fabric.rdma"));
        assert_eq!(follows, [None, Some("api.exported"), Some("fabric.rdma"), None]);
    }

    #[test]
    fn a_warning_blocks_nothing_and_comes_last() {
        let (first, follows) = traced(&[
            ("limits.memlock", Level::Warn),
            ("module.file", Level::Warn),
            ("gpus.bar1", Level::Fail),
            ("module.loaded", Level::Ok),
        ]);
        assert_eq!((first, follows), (Some("gpus.bar1"), vec![None; 4]));
    }

    #[test]
    fn transfers_that_fault_come_before_what_is_slow() {
        let (first, _) =
            traced(&[("fabric.port", Level::Warn), ("fabric.iommu", Level::Warn), ("ways.refused", Level::Warn)]);
        assert_eq!(first, Some("ways.refused"));
    }

    #[test]
    fn a_cure_is_told_once_with_the_worst() {
        let mut checks = [
            Check::warn("limits.autoload", "", "modprobe"),
            Check::fail("module.loaded", "", "modprobe"),
            Check::warn("module.taint", "", "modprobe"),
        ];
        trace(&mut checks.iter_mut().collect::<Vec<_>>());
        assert_eq!(checks.map(|check| check.follows), [Some("module.loaded"), None, None]);
    }

    /// rmmod and modprobe would hang as all else does.
    #[test]
    fn what_stands_still_comes_before_what_is_wrong_beside_it() {
        let (first, follows) = traced(&[
            ("api.exported", Level::Fail),
            ("clients.taken", Level::Fail),
            ("module.loaded", Level::Fail),
            ("log.hung", Level::Fail),
        ]);
        assert_eq!(first, Some("log.hung"));
        assert_eq!(follows, [None, Some("log.hung"), Some("log.hung"), None]);
    }
}
