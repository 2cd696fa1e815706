// SPDX-License-Identifier: GPL-2.0
//! Reads what the module reports in /proc/driver/nvidia-peermem (docs/proc.md), and what
//! `peermemctl` makes of it.

use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{bail, Context, Result};
use peermem_proc::{Row, DIR};
use serde_json::Value;

fn read(file: &str) -> Result<String> {
    let path = format!("{DIR}/{file}");
    fs::read_to_string(&path).with_context(|| format!("read {path}"))
}

/// The content of the file `stats`. A key that it lacks is an error.
#[derive(Debug, Clone)]
pub struct Stats(peermem_proc::Stats);

impl Stats {
    pub fn read() -> Result<Self> {
        Ok(Self(peermem_proc::Stats::parse(&read("stats")?)))
    }

    pub fn text(&self, key: &str) -> Result<&str> {
        self.0.text(key).with_context(|| format!("{DIR}/stats has no {key}"))
    }

    pub fn number(&self, key: &str) -> Result<i64> {
        let number = self.0.number(key).with_context(|| format!("{DIR}/stats has no number {key}"))?;
        Ok(i64::try_from(number)?)
    }

    /// Returns the keys and numbers below a prefix.
    pub fn below<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a str, i64)> + 'a {
        self.0.below(prefix).filter_map(|(key, number)| Some((key, i64::try_from(number).ok()?)))
    }

    /// Returns each pair of GPU and NIC, with what is known about it.
    pub fn pairs(&self) -> Vec<(&str, &str, &str)> {
        self.0.pairs().collect()
    }

    /// Returns the names of the client with persistent pins and, if there is one, of the client
    /// with revocable pins. A third client pins nothing.
    pub fn clients(&self) -> Result<(&str, Option<&str>)> {
        match (self.text("mode")?, self.0.clients().as_slice()) {
            ("legacy", &[revocable, persistent, ..]) => Ok((persistent, Some(revocable))),
            ("persistent" | "fallback", &[persistent, ref others @ ..]) => Ok((persistent, others.first().copied())),
            (mode, clients) => bail!("stats: clients {clients:?} in mode {mode}"),
        }
    }

    /// Returns a figure of this client, or 0 if there is no client.
    pub fn of(&self, client: Option<&str>, key: &str) -> Result<i64> {
        client.map_or(Ok(0), |client| self.number(&format!("{client}.{key}")))
    }
}

/// Returns the rows of `registrations`, `failures` or `callbacks`.
pub fn rows(file: &str) -> Result<Vec<Row>> {
    let row = |line| Row::parse(line).with_context(|| format!("{file} has a line that names no process: {line:?}"));
    read(file)?.lines().map(row).collect()
}

/// A row of `failures`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub seq: u64,
    pub pid: u32,
    pub va: u64,
    pub length: u64,
    pub errno: i32,
    pub reason: String,
}

/// Returns the newest row of `failures`.
pub fn last_failure() -> Result<Option<Failure>> {
    let failure = |row: &Row| {
        Some(Failure {
            seq: row.number("seq")?,
            pid: u32::try_from(row.number("pid")?).ok()?,
            va: row.number("va")?,
            length: row.number("length")?,
            errno: i32::try_from(row.number("errno")?).ok()?,
            reason: row.text("reason")?.to_string(),
        })
    };
    let last = rows("failures")?.pop();
    last.map(|row| failure(&row).with_context(|| format!("a field is missing: {row:?}"))).transpose()
}

/// The output and exit code of `peermemctl`.
pub struct Said {
    pub text: String,
    pub code: Option<i32>,
}

pub fn peermemctl(args: &[&str]) -> Result<Said> {
    said(Command::new("peermemctl").args(args))
}

fn said(command: &mut Command) -> Result<Said> {
    let out = command.output().context("start peermemctl")?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    Ok(Said { text, code: out.status.code() })
}

/// Runs `peermemctl` with `--json`.
pub fn peermemctl_json(args: &[&str]) -> Result<(Value, Option<i32>)> {
    let said = peermemctl(&[args, &["--json"]].concat())?;
    let value = serde_json::from_str(&said.text).with_context(|| format!("peermemctl {args:?}: {:?}", said.text))?;
    Ok((value, said.code))
}

/// Removes a capability from the program that `command` will run.
pub fn without_capability(command: &mut Command, capability: libc::c_ulong) {
    // SAFETY: Between fork and exec there is one system call, which takes numbers only and
    // allocates nothing.
    unsafe {
        command.pre_exec(move || match libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        });
    }
}

/// Runs `peermemctl doctor --json` as root without CAP_IPC_LOCK, who is bound by the limit of
/// locked memory, as an ordinary user is.
pub fn doctor_with_memlock() -> Result<(Value, Option<i32>)> {
    const CAP_IPC_LOCK: libc::c_ulong = 14;
    let mut command = Command::new("peermemctl");
    command.args(["doctor", "--json"]);
    without_capability(&mut command, CAP_IPC_LOCK);
    let said = said(&mut command)?;
    let value = serde_json::from_str(&said.text).with_context(|| format!("doctor with memlock: {:?}", said.text))?;
    Ok((value, said.code))
}

#[cfg(test)]
mod tests {
    use super::Stats;

    #[test]
    fn each_mode_has_its_clients_in_an_order_of_its_own() {
        for (mode, clients, persistent, revocable) in [
            ("persistent", "nv_mem", "nv_mem", None),
            ("fallback", "nv_mem nv_mem_rv nv_mem_nc", "nv_mem", Some("nv_mem_rv")),
            ("legacy", "nv_mem nv_mem_nc", "nv_mem_nc", Some("nv_mem")),
        ] {
            let text = format!("mode {mode}\nclients {clients}\nnv_mem.pins 2\n");
            let stats = Stats(peermem_proc::Stats::parse(&text));
            assert_eq!(stats.clients().unwrap(), (persistent, revocable));
            assert_eq!((stats.of(Some("nv_mem"), "pins").unwrap(), stats.of(None, "pins").unwrap()), (2, 0));
            assert!(stats.number("total.pins").is_err());
        }
    }
}
