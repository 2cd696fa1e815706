// SPDX-License-Identifier: GPL-2.0
//! `verify` as text.

use super::{style, Page};
use crate::answer::Verify;
use crate::check::Level;
use anstyle::Style;

pub(super) fn print(page: &mut Page, verify: &Verify) {
    let plain = Style::new();
    let command = format!("peermemctl {} (version {})", verify.arguments.join(" "), verify.version);
    page.wrapped("command: ", &command, plain);
    let seconds = verify.seconds.round();
    page.wrapped("begun: ", &format!("{}, {seconds} s, --seed {}", verify.begun, verify.seed), plain);
    for fact in &verify.facts {
        page.wrapped(&format!("{}: ", fact.name), &fact.value, plain);
    }
    for pass in &verify.passes {
        let counts = if pass.counts { "" } else { " (for comparison)" };
        page.wrapped("module: ", &format!("{}{counts}", pass.module), Style::new().bold());
        for check in &pass.checks {
            let first = format!("  {:<5}", check.level.text());
            let said = format!("[{}] {:.1} s: {}", check.id, check.ms as f64 / 1000.0, check.message);
            page.behind(&first, style(check.level), &said, plain);
            for detail in &check.details {
                page.wrapped("         ", detail, plain);
            }
        }
    }
    for missing in &verify.missing {
        page.behind("  MISSING ", style(Level::Fail), missing, plain);
    }
    page.wrapped("", &verdict(verify), Style::new().bold());
}

fn verdict(verify: &Verify) -> String {
    let checks = || verify.passes.iter().filter(|pass| pass.counts).flat_map(|pass| &pass.checks);
    let count = |level: Level| checks().filter(|check| check.level == level).count();
    let [ok, skip, fail] = [Level::Ok, Level::Skip, Level::Fail].map(count);
    let figures = format!("{ok} held, {fail} failed, {skip} not tried");
    match verify.exit_code() {
        0 => format!("verify: PASS, {figures}"),
        1 => format!("verify: PASS as far as it was tried, {figures}"),
        3 => format!("verify: NOTHING TO TEST, this machine lacks what is MISSING above; {figures}"),
        _ => format!("verify: FAIL, {figures}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::{self, Answer, Fact, VerifyCheck, VerifyPass};
    use crate::print::fits;

    fn verify(level: Level, missing: &[&str]) -> Verify {
        let check = VerifyCheck {
            id: "bytes.write".to_owned(),
            level,
            message: "the target: 3 of 4096 bytes differ ".repeat(5),
            details: vec!["to the GPU 12.25 GB/s ".repeat(9)],
            ms: 1234,
        };
        let pass =
            |counts: bool| VerifyPass { module: "nvidia_peermem".to_owned(), counts, checks: vec![check.clone()] };
        let mut verify = Verify {
            level,
            version: answer::VERSION.to_owned(),
            arguments: vec!["verify".to_owned(), "about ".repeat(40)],
            begun: "2026-11-24 02:41:29.553Z".to_owned(),
            seconds: 1234.5,
            seed: u64::MAX,
            missing: missing.iter().map(|&text| text.to_owned()).collect(),
            facts: vec![Fact { name: "NIC".to_owned(), value: "mlx5_0 ".repeat(30) }],
            passes: vec![pass(level != Level::Fail), pass(true)],
        };
        verify.level = verify.worst();
        verify
    }

    #[test]
    fn verify_fits_and_its_verdict_is_its_exit_code() {
        for (level, missing, code, words) in [
            (Level::Ok, &[][..], 0, "verify: PASS, 2 held, 0 failed, 0 not tried"),
            (Level::Skip, &[], 1, "verify: PASS as far as it was tried, 0 held, 0 failed, 2 not tried"),
            // The other failure is of a module that is there for comparison.
            (Level::Fail, &[], 2, "verify: FAIL, 0 held, 1 failed, 0 not tried"),
            (Level::Ok, &["a NIC"], 3, "verify: NOTHING TO TEST"),
        ] {
            let verify = verify(level, missing);
            assert_eq!(verify.exit_code(), code, "{level:?} {missing:?}");
            let text = fits(&Answer::Verify(Box::new(verify)));
            assert!(text.contains(words), "{text}");
        }
    }
}
