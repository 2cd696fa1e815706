// SPDX-License-Identifier: GPL-2.0
//! A throw-away boot in which a core of 24.10 hangs by its inverted stop test. It proves that the
//! core is responsible for what the other suites leave out on those cores (`Test::not_on`).

use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{bail, Result};

use crate::lab;
use crate::machine::{Generation, Mode};
use crate::test::{in_modes, skip, Env, Suite};

pub const NAME: &str = "stop_test";
const WHERE: &str = "ib_umem_stop_invalidation_notifier";

pub fn suite(nvidia_c: bool) -> Suite {
    Suite { name: NAME, tests: in_modes(nvidia_c, &[Mode::Legacy], "waits_for_itself", waits_for_itself) }
}

/// The NIC has no mkey left, and the registering process waits for good for the umem mapping lock
/// that it holds itself (docs/facts.md#core-bugs).
fn waits_for_itself(env: &Env) -> Result<()> {
    if env.generation != Generation::V2410 {
        skip("the stop test is right on this core");
        return Ok(());
    }
    lab::set_nic("fail_mkey", 1)?;
    let mut victim = Command::new("/proc/self/exe")
        .args(["helper", "hold", "2097152", "1"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        let stack = fs::read_to_string(format!("/proc/{}/stack", victim.id())).unwrap_or_default();
        if stack.contains(WHERE) {
            // It stays there, whatever signal it gets.
            victim.kill()?;
            std::thread::sleep(Duration::from_secs(1));
            let after = fs::read_to_string(format!("/proc/{}/stack", victim.id())).unwrap_or_default();
            match after.contains(WHERE) && victim.try_wait()?.is_none() {
                true => return Ok(()),
                false => bail!("it was killed in {WHERE}: {after}"),
            }
        }
        if let Some(status) = victim.try_wait()? {
            bail!("the registration ended ({status}), it did not hang");
        }
        if Instant::now() > end {
            bail!("the registering process is not in {WHERE}, but here:\n{stack}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
