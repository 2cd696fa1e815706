// SPDX-License-Identifier: GPL-2.0
//! `verify` as text.

use super::page::{style, without_a_link, Detail, Page};
use crate::answer::{Verify, VerifyPair, VerifyWay};
use crate::check::Level;
use crate::outcome::Outcome;
use crate::text;
use crate::way::Way;
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
    without_a_link(page, &verify.nics_without_a_link);
    each_way(page, &verify.pairs);
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

/// The most single pairs that one page tells of.
const MOST: usize = 20;

/// Prints a line for each way over all pairs, then the pairs that are not well, or every pair if
/// all is to be told.
fn each_way(page: &mut Page, pairs: &[VerifyPair]) {
    for way in Way::ALL {
        let found: Vec<&VerifyWay> = pairs.iter().flat_map(|pair| &pair.ways).filter(|it| it.way == way).collect();
        let Some(worst) = found.iter().map(|it| it.level).max() else { continue };
        let works: Vec<&&VerifyWay> = found.iter().filter(|it| it.works()).collect();
        let mut said = format!("{}: works for {} of {}", way.text(), works.len(), text::count(found.len(), "pair"));
        let mut add = |what: &str, of: fn(&VerifyWay) -> Option<f64>, unit: &str, by: f64| {
            let mut all: Vec<f64> = works.iter().filter_map(|it| of(it)).collect();
            all.sort_by(f64::total_cmp);
            if let (Some(least), Some(most)) = (all.first(), all.last()) {
                said += &match all.len() {
                    1 => format!("; {what} {:.1} {unit}", most / by),
                    _ => format!("; {what} {:.1} to {:.1} {unit}", least / by, most / by),
                };
            }
        };
        add("register", |it| it.register_us, "µs", 1.0);
        add("free", |it| it.free_us, "µs", 1.0);
        add("to the GPU", |it| it.to_gpu, "GB/s", 1e9);
        add("from it", |it| it.from_gpu, "GB/s", 1e9);
        let level = if works.is_empty() { worst } else { worst.max(Level::Ok) };
        page.behind(&format!("  {:<5}", level.text()), style(level), &said, Style::new().bold());
    }
    let all = || pairs.iter().flat_map(|pair| pair.ways.iter().map(move |way| (pair, way)));
    let in_full = page.detail == Detail::Verbose;
    // What was not tried for the same reason is told once.
    let mut told: Vec<(Way, &str)> = Vec::new();
    let mut count = 0;
    for (pair, way) in all() {
        let message = way.message.as_deref().unwrap_or_default();
        let again = told.contains(&(way.way, message)) && way.level == Level::Skip;
        if !in_full && (way.level == Level::Ok || again) {
            continue;
        }
        told.push((way.way, message));
        count += 1;
        if !in_full && count > MOST {
            page.line("         more of them are in the report");
            break;
        }
        one_way(page, pair, way, in_full);
    }
}

/// Prints one way of one pair.
fn one_way(page: &mut Page, pair: &VerifyPair, way: &VerifyWay, in_full: bool) {
    let distance = pair.distance.map_or("", |distance| distance.text());
    let done = match (way.offsets, way.operations.as_slice()) {
        (0, []) => String::new(),
        (offsets, done) => format!("{} compared, {}", text::count(offsets, "registration"), done.join(", ")),
    };
    let message = way.message.clone().unwrap_or(done);
    let said = format!("GPU {} with {} {distance}, {}: {message}", pair.gpu, pair.nic, way.way.text());
    page.behind(&format!("    {:<5}", way.level.text()), style(way.level), &said, Style::new());
    if !in_full {
        return;
    }
    let time = |what: &str, us: Option<f64>| us.map(|us| format!("{what} {us:.1} µs"));
    let rate = |what: &str, rate: Option<f64>| rate.map(|rate| format!("{what} {:.2} GB/s", rate / 1e9));
    let figures = [
        time("register", way.register_us),
        time("deregister", way.deregister_us),
        time("free", way.free_us),
        way.register_us.map(|_| match way.page_bytes {
            Some(bytes) => format!("pages of {}", text::bytes(bytes)),
            None => "pages of unknown size".to_owned(),
        }),
        rate("to the GPU", way.to_gpu),
        rate("from it", way.from_gpu),
        way.limit.zip(way.limit_by.as_ref()).map(|(rate, by)| format!("of {:.2} GB/s ({by})", rate / 1e9)),
    ];
    let figures: Vec<String> = figures.into_iter().flatten().collect();
    if !figures.is_empty() {
        page.wrapped("           ", &figures.join(", "), Style::new());
    }
    for detail in &way.details {
        page.wrapped("           ", detail, Style::new());
    }
    if let Some(nccl) = &pair.nccl {
        page.wrapped("           ", &format!("NCCL here: {nccl}"), Style::new());
    }
}

fn verdict(verify: &Verify) -> String {
    if let Some(outcome) = verify.outcome() {
        let works = verify.pairs.iter().filter(|pair| pair.ways.iter().any(VerifyWay::works)).count();
        let said = format!("{works} of {} with a way that works", text::count(verify.pairs.len(), "pair"));
        let deceives = verify.pairs.iter().flat_map(|pair| &pair.ways).any(VerifyWay::deceives);
        let why = match (outcome, deceives) {
            (Outcome::NotUsable, true) => "; a way registers and does not work, which programs do not notice",
            _ => "",
        };
        return format!("verify: {}, {said}{why}", outcome.text());
    }
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
    use crate::answer::{Answer, Fact, VerifyCheck, VerifyPass};
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
            version: crate::VERSION.to_owned(),
            arguments: vec!["verify".to_owned(), "about ".repeat(40)],
            begun: "2026-11-24 02:41:29.553Z".to_owned(),
            seconds: 1234.5,
            seed: u64::MAX,
            missing: missing.iter().map(|&text| text.to_owned()).collect(),
            nics_without_a_link: Vec::new(),
            facts: vec![Fact { name: "NIC".to_owned(), value: "mlx5_0 ".repeat(30) }],
            pairs: Vec::new(),
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
            // The other failure belongs to a module that is there for comparison.
            (Level::Fail, &[], 2, "verify: FAIL, 0 held, 1 failed, 0 not tried"),
            (Level::Ok, &["a NIC"], 3, "verify: NOTHING TO TEST"),
        ] {
            let verify = verify(level, missing);
            assert_eq!(verify.exit_code(), code, "{level:?} {missing:?}");
            let text = fits(&Answer::Verify(Box::new(verify)));
            assert!(text.contains(words), "{text}");
        }
    }

    /// Eight GPUs with eight NICs fit on a page; in the report is each.
    #[test]
    fn pairs_fit_a_page_and_their_verdict_is_the_exit_code() {
        let way = |way: Way, level: Level, works: bool| VerifyWay {
            level,
            message: (level > Level::Ok).then(|| "what is wrong is said in some words ".repeat(4)),
            register_us: works.then_some(123.4),
            to_gpu: works.then_some(45e9),
            from_gpu: works.then_some(4e10),
            offsets: 28,
            operations: vec!["write".to_owned(), "read".to_owned()],
            ..VerifyWay::of(way)
        };
        let dma_buf = |level, works| way(Way::DmaBuf, level, works);
        let peers = |level, works| way(Way::PeerMemory, level, works);
        for (ways, code, words) in [
            (vec![dma_buf(Level::Ok, true)], 0, "verify: USABLE, 64 of 64 pairs"),
            (vec![dma_buf(Level::Ok, true), peers(Level::Skip, false)], 0, "verify: USABLE, 64"),
            (vec![dma_buf(Level::Warn, true)], 1, "verify: USABLE WITH WARNINGS"),
            (vec![dma_buf(Level::Ok, true), peers(Level::Fail, false)], 1, "verify: USABLE WITH WARNINGS"),
            (vec![dma_buf(Level::Ok, true), peers(Level::Fail, true)], 2, "registers and does not work"),
            (vec![dma_buf(Level::Skip, false)], 2, "verify: NOT USABLE, 0 of 64 pairs"),
            (vec![VerifyWay::skipped(Way::DmaBuf, "not tried: x".to_owned())], 3, "verify: UNKNOWN"),
        ] {
            let pair = |n: usize| VerifyPair {
                gpu: format!("0000:{n:02x}:00.0"),
                nic: format!("mlx5_{n}"),
                distance: None,
                nccl: Some("dma-buf".to_owned()),
                ways: ways.clone(),
            };
            let verify = Verify { passes: Vec::new(), pairs: (0..64).map(pair).collect(), ..verify(Level::Ok, &[]) };
            assert_eq!(verify.exit_code(), code, "{words}");
            let all = Page::of_width(100, Detail::Verbose).show(&Answer::Verify(Box::new(verify.clone())));
            assert!(all.contains("mlx5_63"), "{all}");
            let text = fits(&Answer::Verify(Box::new(verify)));
            let unwrapped = text.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(unwrapped.contains(words) && text.lines().count() < 110, "{text}");
        }
    }
}
