// SPDX-License-Identifier: GPL-2.0
//! Tests integrity, byte by byte: every way to move bytes, over every layout, start and length.
//! `matrix` takes each pair of values, `matrix_full` their whole product. Needs a machine with two
//! GPUs and two network cards.

mod cap;
mod card;
mod case;
mod rig;
mod two_nics;

use std::time::Instant;

use anyhow::Result;
use serde_json::json;

use crate::machine::Mode;
use crate::test::{emit, in_modes, Env, NvidiaC, Suite, Test};
use case::{Case, Path};
use rig::Rig;

const NVIDIA_C: NvidiaC = NvidiaC::Recorded;

pub fn suite(nvidia_c: bool) -> Suite {
    let mut tests = Vec::new();
    let mut add = |modes: &[Mode], name: &str, run: fn(&Env) -> Result<()>| {
        tests.extend(in_modes(nvidia_c, modes, name, run).into_iter().map(|t: Test| t.nvidia_c(NVIDIA_C).limit(400)));
    };
    add(&[Mode::Persistent], "every_pair_of_factors_moves_the_right_bytes", every_pair_of_factors);
    add(&[Mode::Persistent], "card_ends", card::ends);
    add(&[Mode::Persistent], "segment_limit_cuts_long_runs", cap::segment_limit_cuts_long_runs);
    add(&[Mode::Legacy], "card_ends", card::ends);
    add(&[Mode::Legacy], "every_pair_of_factors_moves_the_right_bytes", every_pair_of_factors);
    add(&[Mode::Legacy], "segment_limit_cuts_long_runs", cap::segment_limit_cuts_long_runs);
    add(&[Mode::Legacy], "freed_under_two_nics", two_nics::freed);
    Suite { name: "matrix", tests }
}

/// Returns the tests for `make soak`, which may take hours.
pub fn full(nvidia_c: bool) -> Suite {
    let mut tests = Vec::new();
    for mode in [Mode::Persistent, Mode::Legacy] {
        let mut add = |name: &str, run: fn(&Env) -> Result<()>| {
            tests.extend(
                in_modes(nvidia_c, &[mode], name, run).into_iter().map(|t: Test| t.nvidia_c(NVIDIA_C).limit(7200)),
            );
        };
        add("gpu_to_gpu", |env| product(env, Path::GpuToGpu));
        add("gpu_to_host", |env| product(env, Path::GpuToHost));
        add("host_to_gpu", |env| product(env, Path::HostToGpu));
        add("to_other_gpu", |env| product(env, Path::ToOtherGpu));
        add("from_other_gpu", |env| product(env, Path::FromOtherGpu));
        add("two_nics", |env| product(env, Path::TwoNics));
        add("card_to_card", card::whole);
        add("every_pair_of_factors_moves_the_right_bytes", every_pair_of_factors);
    }
    Suite { name: "matrix_full", tests }
}

/// Returns the tests that need a card of 4 GiB.
pub fn large(nvidia_c: bool) -> Suite {
    let mut tests = in_modes(
        nvidia_c,
        &[Mode::Persistent, Mode::Legacy],
        "long_runs_are_cut_at_one_gibibyte",
        cap::long_runs_are_cut_at_one_gibibyte,
    );
    tests.extend(in_modes(
        nvidia_c,
        &[Mode::Persistent, Mode::Legacy],
        "long_range_without_a_large_block_is_mapped_in_pieces",
        cap::long_range_without_a_large_block_is_mapped_in_pieces,
    ));
    Suite { name: "matrix_large", tests: tests.into_iter().map(|t| t.nvidia_c(NVIDIA_C).limit(400)).collect() }
}

/// Combines each value of each factor with each value of every other factor.
fn every_pair_of_factors(env: &Env) -> Result<()> {
    let mut rng = env.rng()?;
    let cases = case::pairwise(&mut rng);
    all(&cases, &mut rng)
}

fn product(env: &Env, path: Path) -> Result<()> {
    all(&case::product(path), &mut env.rng()?)
}

fn all(cases: &[Case], rng: &mut fastrand::Rng) -> Result<()> {
    let begin = Instant::now();
    let mut rig = Rig::new()?;
    for case in cases {
        rig.run(case, rng)?;
    }
    rig.check_all()?;
    emit("matrix", &json!({"cases": cases.len(), "bytes": rig.bytes, "ms": begin.elapsed().as_millis()}));
    Ok(())
}
