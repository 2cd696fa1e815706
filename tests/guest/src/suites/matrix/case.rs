// SPDX-License-Identifier: GPL-2.0
//! The factors of the matrix, all pairs of their values, and their whole product.

use std::collections::BTreeSet;

use nvlab::Layout;

use crate::common::{GPU_PAGE, KIB, MIB};

/// The operation that moves the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    Write,
    WriteImm,
    Read,
    Send,
    SendImm,
    FetchAdd,
    CmpSwap,
}

/// The source and target of the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Path {
    /// Within GPU 0.
    GpuToGpu,
    GpuToHost,
    HostToGpu,
    /// From GPU 0 to GPU 1.
    ToOtherGpu,
    FromOtherGpu,
    /// Within GPU 0. Then a second NIC reads the result and writes, and the first NIC reads that.
    TwoNics,
}

/// The alignment of a registration's first byte. The exact place is random.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    Unaligned,
    Page,
    GpuPage,
    Block,
}

impl Start {
    /// Returns an offset below 4 MiB with exactly this alignment. For an atomic, it is a multiple
    /// of 8.
    pub fn pick(self, rng: &mut fastrand::Rng, atomic: bool) -> usize {
        const ROOM: usize = 4 * MIB;
        let (unit, next) = match self {
            Self::Unaligned => (if atomic { 8 } else { 1 }, 4 * KIB),
            Self::Page => (4 * KIB, GPU_PAGE),
            Self::GpuPage => (GPU_PAGE, 2 * MIB),
            Self::Block => return 2 * MIB * rng.usize(0..=2),
        };
        loop {
            let at = unit * rng.usize(0..ROOM / unit);
            if at % next != 0 {
                return at;
            }
        }
    }
}

pub const MOVING: [Verb; 5] = [Verb::Write, Verb::WriteImm, Verb::Read, Verb::Send, Verb::SendImm];
pub const ATOMIC: [Verb; 2] = [Verb::FetchAdd, Verb::CmpSwap];
pub const PATHS: [Path; 6] =
    [Path::GpuToGpu, Path::GpuToHost, Path::HostToGpu, Path::ToOtherGpu, Path::FromOtherGpu, Path::TwoNics];
/// The layouts. `Shuffled` is what a discontiguous BAR looks like.
pub const LAYOUTS: [Layout; 4] = [Layout::Contiguous, Layout::Broken2M, Layout::Broken64K, Layout::Shuffled];
pub const STARTS: [Start; 4] = [Start::Unaligned, Start::Page, Start::GpuPage, Start::Block];
/// The lengths in bytes, on both sides of each boundary.
pub const LENGTHS: [usize; 13] = [
    1,
    2,
    7,
    4 * KIB - 1,
    4 * KIB,
    4 * KIB + 1,
    GPU_PAGE - 1,
    GPU_PAGE,
    GPU_PAGE + 1,
    2 * MIB - 1,
    2 * MIB,
    2 * MIB + 1,
    3 * MIB + 12_345,
];

#[derive(Debug, Clone, Copy)]
pub struct Case {
    pub verb: Verb,
    pub path: Path,
    /// The layout of the near end, like the start. Those of the far end are random.
    pub layout: Layout,
    pub start: Start,
    pub len: usize,
}

impl Case {
    pub fn is_atomic(&self) -> bool {
        ATOMIC.contains(&self.verb)
    }

    /// Returns the case with these values of the factors.
    fn moving(v: &[usize]) -> Self {
        Self { verb: MOVING[v[0]], path: PATHS[v[1]], layout: LAYOUTS[v[2]], start: STARTS[v[3]], len: LENGTHS[v[4]] }
    }

    fn atomic(v: &[usize]) -> Self {
        Self { verb: ATOMIC[v[0]], path: PATHS[v[1]], layout: LAYOUTS[v[2]], start: STARTS[v[3]], len: 8 }
    }
}

const MOVING_SIZES: [usize; 5] = [MOVING.len(), PATHS.len(), LAYOUTS.len(), STARTS.len(), LENGTHS.len()];
const ATOMIC_SIZES: [usize; 4] = [ATOMIC.len(), PATHS.len(), LAYOUTS.len(), STARTS.len()];

/// Returns cases in which every value of every factor meets every value of every other factor.
pub fn pairwise(rng: &mut fastrand::Rng) -> Vec<Case> {
    let moving = all_pairs(&MOVING_SIZES, rng).into_iter().map(|v| Case::moving(&v));
    let mut cases: Vec<Case> = moving.collect();
    cases.extend(all_pairs(&ATOMIC_SIZES, rng).into_iter().map(|v| Case::atomic(&v)));
    cases
}

/// Returns every case of one path.
pub fn product(path: Path) -> Vec<Case> {
    let moving = every(&MOVING_SIZES).into_iter().map(|v| Case::moving(&v));
    moving.chain(every(&ATOMIC_SIZES).into_iter().map(|v| Case::atomic(&v))).filter(|c| c.path == path).collect()
}

fn every(sizes: &[usize]) -> Vec<Vec<usize>> {
    let mut all = vec![Vec::new()];
    for &size in sizes {
        all = all
            .iter()
            .flat_map(|head: &Vec<usize>| (0..size).map(move |v| head.iter().copied().chain([v]).collect()))
            .collect();
    }
    all
}

/// Returns rows that together contain each pair of values of two factors. They are few, but not
/// necessarily the fewest.
fn all_pairs(sizes: &[usize], rng: &mut fastrand::Rng) -> Vec<Vec<usize>> {
    const TRIES: usize = 24;
    let pairs_of = |row: &[usize]| -> Vec<(usize, usize, usize, usize)> {
        let ends = (0..row.len()).flat_map(|a| (0..a).map(move |b| (b, a)));
        ends.map(|(b, a)| (b, row[b], a, row[a])).collect()
    };
    let mut open: BTreeSet<_> = every(sizes).iter().flat_map(|row| pairs_of(row)).collect();
    let mut rows = Vec::new();
    while let Some(&(a, x, b, y)) = open.first() {
        let candidate = |rng: &mut fastrand::Rng| {
            let mut row: Vec<usize> = sizes.iter().map(|&n| rng.usize(0..n)).collect();
            (row[a], row[b]) = (x, y);
            row
        };
        let news = |row: &[usize]| pairs_of(row).into_iter().filter(|p| open.contains(p)).count();
        let best = (0..TRIES).map(|_| candidate(rng)).max_by_key(|row| news(row));
        let best = best.unwrap_or_else(|| candidate(rng));
        for pair in pairs_of(&best) {
            open.remove(&pair);
        }
        rows.push(best);
    }
    rng.shuffle(&mut rows);
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pair_of_values_is_in_some_row() {
        let rows = all_pairs(&MOVING_SIZES, &mut fastrand::Rng::with_seed(1));
        assert!(rows.len() < 110, "{} rows", rows.len());
        for a in 0..MOVING_SIZES.len() {
            for b in 0..a {
                for x in 0..MOVING_SIZES[a] {
                    for y in 0..MOVING_SIZES[b] {
                        assert!(rows.iter().any(|r| r[a] == x && r[b] == y), "factor {a}={x}, factor {b}={y}");
                    }
                }
            }
        }
    }

    #[test]
    fn the_product_is_whole() {
        let all: usize = PATHS.iter().map(|p| product(*p).len()).sum();
        assert_eq!(all, MOVING_SIZES.iter().product::<usize>() + ATOMIC_SIZES.iter().product::<usize>());
    }

    #[test]
    fn starts_are_aligned_so_and_no_better() {
        let mut rng = fastrand::Rng::with_seed(2);
        for _ in 0..200 {
            assert_ne!(Start::Unaligned.pick(&mut rng, false) % (4 * KIB), 0);
            let atomic = Start::Unaligned.pick(&mut rng, true);
            assert!(atomic % 8 == 0 && atomic % (4 * KIB) != 0);
            let page = Start::Page.pick(&mut rng, false);
            assert!(page % (4 * KIB) == 0 && page % GPU_PAGE != 0);
            assert_eq!(Start::Block.pick(&mut rng, false) % (2 * MIB), 0);
        }
    }
}
