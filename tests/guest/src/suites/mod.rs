// SPDX-License-Identifier: GPL-2.0
//! All suites, by name.

mod alarms;
mod bare;
mod bench;
mod cache;
mod callbacks;
mod closed;
mod coherent;
mod cost;
mod demo;
mod dma_buf;
mod doctor;
mod edu;
mod end;
mod errors;
mod faults;
mod fuzz;
mod iommu;
mod loading;
mod matrix;
mod neighbours;
mod observe;
mod one_class;
mod pages;
mod pair;
mod pieces;
mod preload;
mod programs;
mod pyverbs;
mod rdma_faults;
mod reach;
mod readers;
mod reasons;
mod refusals;
pub mod scenarios;
mod smoke;
mod standins;
mod stop_test;
mod storm;
mod tables;
mod tegra;
mod tool;
mod ucx;
mod unfenced;
mod unload;
mod verbs;
mod verify;

use anyhow::{bail, Context, Result};

use crate::cmdline::Request;
use crate::test::Suite;

/// Returns all suites, in no particular order.
pub fn all(nvidia_c: bool) -> Vec<Suite> {
    vec![
        demo::suite(nvidia_c),
        dma_buf::suite(),
        preload::suite(),
        cache::suite(),
        pair::suite(nvidia_c),
        smoke::suite(nvidia_c),
        callbacks::suite(nvidia_c),
        refusals::suite(),
        observe::suite(nvidia_c),
        reasons::suite(nvidia_c),
        cost::suite(),
        doctor::suite(),
        tool::suite(),
        verify::suite(),
        reach::suite(),
        standins::suite(),
        matrix::suite(nvidia_c),
        matrix::full(nvidia_c),
        matrix::large(nvidia_c),
        verbs::suite(nvidia_c),
        neighbours::suite(nvidia_c),
        errors::suite(nvidia_c),
        coherent::suite(),
        readers::suite(nvidia_c),
        iommu::suite(nvidia_c),
        pages::suite(),
        pieces::suite(nvidia_c),
        tables::suite(nvidia_c),
        unfenced::suite(nvidia_c),
        rdma_faults::suite(nvidia_c),
        rdma_faults::leaks(nvidia_c),
        faults::suite(nvidia_c),
        unload::suite(nvidia_c),
        storm::suite(nvidia_c),
        fuzz::suite(nvidia_c),
        ucx::suite(),
        pyverbs::suite(),
        programs::suite(nvidia_c),
        programs::pair(nvidia_c),
        programs::libfabric::suite(nvidia_c),
        programs::ucx::suite(nvidia_c),
        scenarios::suite(nvidia_c),
        scenarios::pairwise(nvidia_c),
        scenarios::once(nvidia_c),
        loading::suite(),
        bare::suite(),
        tegra::suite(),
        edu::suite(),
        edu::long(),
        closed::suite(),
        alarms::suite(),
        stop_test::suite(nvidia_c),
        one_class::suite(),
        bench::suite(),
        bench::suite_threads(),
        bench::suite_profile(),
        bench::suite_ways(),
        bench::suite_free_cost(),
        bench::kernel_crates::suite(),
        end::suite(),
    ]
}

/// Returns whether a suite raises alarms on purpose, for the host to judge.
pub fn raises_alarms(suite: &str) -> bool {
    [alarms::NAME, stop_test::NAME, one_class::NAME, rdma_faults::LEAKS].contains(&suite)
}

/// Returns whether the tests of a suite leave something on purpose that stays until reboot.
pub fn leaves_something(suite: &str) -> bool {
    [stop_test::NAME, rdma_faults::LEAKS].contains(&suite)
}

/// Returns the requested suites, in the order requested. Each boot ends with `end`, except one that
/// raises alarms on purpose and one without the lab's own stack.
pub fn chosen(request: &Request) -> Result<Vec<Suite>> {
    let mut all = all(request.nvidia_c);
    let of = request.values.get("of").map_or_else(|| request.suites.join(","), String::clone);
    // A word that is misspelt, or of a test that has another name now, would leave out its tests without any report.
    for word in request.values.get("only").into_iter().flat_map(|only| only.split(',')) {
        let mut suites = all.iter().filter(|s| s.name == "end" || of.split(',').any(|name| name == s.name));
        if !suites.any(|s| s.tests.iter().any(|t| format!("{}/{}", s.name, t.name).contains(word))) {
            bail!("guest.only={word}: no test of these suites has that in its name: {of}");
        }
    }
    let names: Vec<&str> = all.iter().map(|s| s.name).collect();
    let names = names.join(", ");
    let mut take = |name: &str| -> Result<Suite> {
        let at = all
            .iter()
            .position(|s| s.name == name)
            .with_context(|| format!("guest.run={name}: no such suite; there are {names}, and shell alone"))?;
        Ok(all.swap_remove(at))
    };
    if request.suites.is_empty() {
        bail!("guest.run= is missing on the kernel command line; suites: {names}, and shell alone");
    }
    let mut chosen = request.suites.iter().map(|s| take(s)).collect::<Result<Vec<_>>>()?;
    if !chosen.iter().any(|s| raises_alarms(s.name) || ["bare", "tegra", "end"].contains(&s.name)) {
        chosen.push(take("end")?);
    }
    Ok(chosen)
}
