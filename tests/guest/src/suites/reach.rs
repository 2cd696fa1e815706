// SPDX-License-Identifier: GPL-2.0
//! Runs `peermemctl verify` and `matrix` on a machine with two GPUs and two NICs, each two below a
//! PCIe switch of their own. Where the GPU driver lets no other two meet, each pair that it refuses
//! is named with the cause, and the others are right. So it is where one of the NICs has no link.

use std::path::Path;

use anyhow::{ensure, Context, Result};
use serde_json::{json, Value};

use super::verify::reported;
use crate::gpu;
use crate::init::run;
use crate::machine::{wait_for, Level, Mode, SecondNic, RDMA_DEVICE};
use crate::modules::{self, PEERMEM};
use crate::peermem;
use crate::test::{emit, Env, NvidiaC, Suite, Test};

pub fn suite() -> Suite {
    const PERSISTENT: Level = Level::Peermem(Mode::Persistent);
    let tests = [
        // This comes before the kernel log has refusals, which name no pair.
        ("a_port_that_is_down", PERSISTENT, port_down as fn(&Env) -> Result<()>),
        ("pairs_that_do_not_reach_each_other", PERSISTENT, refused_pairs),
    ];
    let means = NvidiaC::Skip("it asks nothing of nvidia-peermem");
    let tests = tests.into_iter().map(|(name, level, f)| Test::new(name, level, f).nvidia_c(means).limit(600));
    Suite { name: "reach", tests: tests.collect() }
}

/// Checks that each GPU works with the NIC below its own switch, by peer memory and by dma-buf, and
/// that each way of the other pairs failed, for one of these reasons.
fn judge(pairs: &Value, refusals: &[&str]) -> Result<()> {
    let pairs = pairs.as_array().context("no pairs")?;
    let (mut right, mut refused) = (0, 0);
    for pair in pairs {
        let below_one_switch = pair["distance"] == "PIX";
        for way in pair["ways"].as_array().context("no ways")? {
            let level = way["level"].as_str().unwrap_or_default();
            let message = way["message"].as_str().unwrap_or_default();
            let registered = !way["register_us"].is_null();
            if below_one_switch {
                // In an emulator, a way may be slow.
                let works = registered && ["OK", "WARN"].contains(&level);
                ensure!(works || way["way"] == "preload library", "{} with {}: {way}", pair["gpu"], pair["nic"]);
                right += u32::from(works);
            } else {
                let named = refusals.iter().any(|words| message.contains(words));
                let failed = !registered && ["FAIL", "SKIP"].contains(&level);
                ensure!(failed && (named || way["way"] == "preload library"), "{pair}");
                refused += 1;
            }
        }
    }
    ensure!(pairs.len() == 4 && right >= 4 && refused >= 4, "{right} ways work, {refused} do not: {pairs:?}");
    Ok(())
}

fn refused_pairs(_: &Env) -> Result<()> {
    gpu::lab()?.set("unapproved_chipset", 1)?;
    let second = SecondNic::add()?;
    let (found, code, report) = reported(&["the lab, two GPUs and two NICs"])?;
    emit("ways", &json!({ "refuses": "pairs without a common switch", "report": report }));
    // By peer memory the module says so, and by dma-buf the errno.
    judge(&found["pairs"], &["cannot reach each other", "does not approve of where GPU and NIC are"])?;
    ensure!(code == Some(1), "exit {code:?}: {found}");
    ensure!(found["seconds"].as_f64() < Some(60.0), "took {}", found["seconds"]);
    ensure!(report.contains("verify: USABLE WITH WARNINGS, 2 of 4 pairs"), "the report: {report}");

    // The kernel log now has refusals that name no pair. They close no way of the pairs that work.
    let said = peermem::peermemctl(&["matrix", "--json"])?;
    // The preload library says something of its own behind it.
    let line = said.text.lines().next().unwrap_or_default();
    let matrix: Value = serde_json::from_str(line).with_context(|| said.text.clone())?;
    judge(&matrix["pairs"], &["cannot reach each other"])?;
    ensure!(said.code == Some(1) && matrix["measured"] == true, "exit {:?}: {matrix}", said.code);
    let said = peermem::peermemctl(&["matrix", "--gpu", "0", "--nic", second.name()])?;
    println!("{}", said.text);
    let flat = said.text.split_whitespace().collect::<Vec<_>>().join(" ");
    let cause = format!("GPU0 with {}, peer memory: not tried: the GPU driver says that GPU", second.name());
    ensure!(flat.contains(&cause) && flat.contains("PHB -"), "{}", said.text);

    let after = gpu::accounting()?;
    ensure!(after.is_clean(), "left behind: {:?}", after.dirt());
    // The module would remember these pairs.
    modules::rmmod(PEERMEM)
}

/// The NIC without a link is left out, and named. If it is asked for by name, the answer says why
/// it was not tried.
fn port_down(_: &Env) -> Result<()> {
    let second = SecondNic::add()?;
    let state = Path::new("/sys/class/infiniband").join(second.name()).join("ports/1/state");
    let is = |word: &str| std::fs::read_to_string(&state).is_ok_and(|state| state.contains(word));
    run("ip", &["link", "set", "eth1", "down"])?;
    let told = wait_for("a port without a link", || is("DOWN")).and_then(|()| {
        let of_all = reported(&["--quick", "--gpu", "0"])?;
        Ok((of_all, reported(&["--quick", "--gpu", "0", "--nic", second.name()])?))
    });
    run("ip", &["link", "set", "eth1", "up"])?;
    let ((all, code, report), (asked, asked_code, _)) = told?;
    let nics: Vec<&Value> = all["pairs"].as_array().into_iter().flatten().map(|pair| &pair["nic"]).collect();
    ensure!(nics == [RDMA_DEVICE] && matches!(code, Some(0 | 1)), "exit {code:?}: {all}");
    ensure!(all["nics_without_a_link"] == json!([second.name()]), "{}", all["nics_without_a_link"]);
    ensure!(report.contains("no link: rxe1"), "the report: {report}");
    let ways = asked["pairs"][0]["ways"].as_array().context("no pair")?;
    let named = |way: &Value| way["message"].as_str().is_some_and(|why| why.contains("no port of rxe1 is active"));
    ensure!(ways.iter().filter(|way| named(way)).count() >= 2, "{ways:?}");
    ensure!(asked_code == Some(3), "exit {asked_code:?}: {asked}");
    Ok(())
}
