// SPDX-License-Identifier: GPL-2.0
//! Programs of others (docs/consumers.md). On a disk of their own, as they are published: NIXL with the
//! UCX of its wheel, `ucx_perftest` on that UCX, and Mooncake's bench. In the image: libfabric's own
//! tests, and the `ucx_perftest` of Debian 12. What arrives is compared.

pub mod libfabric;
mod mooncake;
mod nixl;
mod program;
pub mod ucx;

use anyhow::{ensure, Result};

use crate::machine::{Level, Mode};
use crate::test::{in_modes, Suite, Test};
use program::{listed, mount_disk, Way};

pub fn suite(nvidia_c: bool) -> Suite {
    let mut tests = vec![Test::new("disk_tells_of_each_program", Level::Devices, |_| disk_tells_of_each_program())];
    tests.extend(nixl::tests(nvidia_c));
    tests.extend(ucx::tests(nvidia_c));
    tests.extend(mooncake::tests(nvidia_c));
    Suite { name: "programs", tests }
}

/// Makes the suite that moves bytes between two machines, each of which has a GPU.
pub fn pair(nvidia_c: bool) -> Suite {
    let modes = [Mode::Persistent, Mode::Legacy];
    let mut tests = in_modes(nvidia_c, &modes, "nixl", |env| nixl::two_machines(env, Way::PeerMemory));
    tests.extend(in_modes(nvidia_c, &modes, "mooncake/write", |env| {
        mooncake::two_machines(env, Way::PeerMemory, "write")
    }));
    tests.extend(in_modes(nvidia_c, &modes, "mooncake/read", |env| {
        mooncake::two_machines(env, Way::PeerMemory, "read")
    }));
    tests.push(Test::new("nixl/dma_buf", Level::Devices, |env| nixl::two_machines(env, Way::DmaBuf)));
    tests.push(Test::new("mooncake/dma_buf", Level::Devices, |env| mooncake::two_machines(env, Way::DmaBuf, "write")));
    Suite { name: "programs_pair", tests: tests.into_iter().map(|test| test.limit(600)).collect() }
}

/// Checks that each program is on the disk, or is named there as one that could not be fetched.
fn disk_tells_of_each_program() -> Result<()> {
    mount_disk()?;
    for program in ["nixl", "ucx", "mooncake"] {
        let found = (listed("versions", program)?, listed("missing", program)?);
        println!("{program}: {found:?}");
        ensure!(found.0.is_some() != found.1.is_some(), "the disk does not say whether it has {program}: {found:?}");
    }
    Ok(())
}
