// SPDX-License-Identifier: GPL-2.0
//! Which findings follow from which others, and the one step that helps most.

use crate::check::{Check, Level};

/// The checks that must be well before anything else can work, in the order in which things work:
/// hardware, GPU driver, API, module.
const ORDER: [&[&str]; 6] = [
    // Nothing else can be mended while a task holds the GPU driver's lock.
    &["log.hung", "clients.callbacks"],
    &["gpus.present", "fabric.rdma"],
    &["driver.loaded", "driver.exports", "gpus.fabric", "gpus.context"],
    // The GPU driver's refusal does not depend on the loaded module.
    &["ways.refused"],
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
];

/// The checks that say that the GPU driver stands still, as long as they fail.
const STANDS_STILL: [&str; 2] = ["log.hung", "clients.callbacks"];

/// Returns the failures that keep what `id` is about from working, the first ones first.
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
                !matches!(
                    *other,
                    "module.loaded" | "fabric.rdma" | "api.driver" | "gpus.answers" | "gpus.fabric" | "gpus.context"
                )
            })
            .collect(),
        // An installed module is of no use as long as no core exports the API.
        "module.stub" => vec!["api.exported"],
        // Where NVIDIA's module has transfers fault, the cure of that names the other module.
        "module.file" => vec!["api.exported", "fabric.iommu"],
        "limits.autoload" => vec!["api.exported", "module.file"],
        "gpus.nodes" => vec!["gpus.present", "driver.loaded"],
        "fabric.nodes" => vec!["fabric.rdma"],
        _ if id.starts_with("consumers.") => all().chain(["fabric.port", "gpus.nodes", "fabric.nodes"]).collect(),
        _ => Vec::new(),
    };
    hung.into_iter().chain(rest).collect()
}

/// Says of each finding which failure it follows from. `broken` names those that are failures but for another way
/// that works: what programs do with that way does not follow from them.
pub fn trace(checks: &mut [&mut Check], broken: &[&'static str]) {
    let findings: Vec<(Level, &'static str)> =
        checks.iter().filter(|check| check.is_finding()).map(|check| (check.level, check.id)).collect();
    let has_failed = |id: &'static str| findings.contains(&(Level::Fail, id));
    let is_broken = |id: &'static str| broken.contains(&id) && findings.contains(&(Level::Warn, id));
    for check in checks.iter_mut().filter(|check| check.is_finding()) {
        let id = check.id;
        let of_program = id.starts_with("consumers.");
        let is_cause = |cause: &&'static str| *cause != id && (has_failed(cause) || !of_program && is_broken(cause));
        let cause = causes(id).into_iter().find(is_cause);
        // Some findings name their own cause.
        let own = check.follows.filter(|own| findings.iter().any(|(_, id)| id == own));
        check.follows = cause.or(own);
        // Until then rmmod and modprobe would hang.
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

/// Returns the finding to begin with: of those that follow from no other finding the worst, and of
/// several such the one that unblocks most when it is repaired. What comes earlier in [`ORDER`]
/// unblocks all that comes later, whatever else is wrong there. A finding that another one follows
/// from ranks with that one.
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
        trace(&mut checks.iter_mut().collect::<Vec<_>>(), &[]);
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

    /// Tests, for example, a machine where dma-buf works and the module is not installed.
    #[test]
    fn what_is_broken_is_a_cause_where_another_way_works() {
        let mut checks = [
            Check::warn("module.file", "", "make install"),
            Check::warn("module.loaded", "", "modprobe"),
            Check::warn("consumers.nccl", "", "set NCCL_NET_GDR_LEVEL=PHB"),
            Check { follows: Some("module.loaded"), ..Check::warn("consumers.operator", "", "modprobe") },
            Check { follows: Some("fabric.port"), ..Check::warn("consumers.ucx", "", "plug it in") },
        ];
        trace(&mut checks.iter_mut().collect::<Vec<_>>(), &["module.file", "module.loaded"]);
        // The cause of the last check is no finding.
        let wanted = [None, Some("module.file"), None, Some("module.loaded"), None];
        assert_eq!(checks.map(|check| check.follows), wanted);
    }

    #[test]
    fn a_cure_is_told_once_with_the_worst() {
        let mut checks = [
            Check::warn("limits.autoload", "", "modprobe"),
            Check::fail("module.loaded", "", "modprobe"),
            Check::warn("module.taint", "", "modprobe"),
        ];
        trace(&mut checks.iter_mut().collect::<Vec<_>>(), &[]);
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
