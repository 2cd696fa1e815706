// SPDX-License-Identifier: GPL-2.0
//! Reads what the module reports in /proc/driver/nvidia-peermem (docs/proc.md), and what
//! `peermemctl` makes of it.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

const DIR: &str = "/proc/driver/nvidia-peermem";

fn read(file: &str) -> Result<String> {
    let path = format!("{DIR}/{file}");
    fs::read_to_string(&path).with_context(|| format!("read {path}"))
}

/// The content of the file `stats`.
#[derive(Debug, Clone)]
pub struct Stats(BTreeMap<String, String>);

impl Stats {
    pub fn read() -> Result<Self> {
        Ok(Self::parse(&read("stats")?))
    }

    fn parse(text: &str) -> Self {
        Self(text.lines().filter_map(|l| l.split_once(' ')).map(|(k, v)| (k.into(), v.into())).collect())
    }

    pub fn text(&self, key: &str) -> Result<&str> {
        self.0.get(key).map(String::as_str).with_context(|| format!("{DIR}/stats has no {key}"))
    }

    pub fn number(&self, key: &str) -> Result<i64> {
        self.text(key)?.parse().with_context(|| format!("{DIR}/stats: {key} is no number"))
    }

    /// Returns the keys and numbers below a prefix.
    pub fn below<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a str, i64)> + 'a {
        self.0.iter().filter_map(move |(k, v)| Some((k.strip_prefix(prefix)?, v.parse().ok()?)))
    }

    /// Returns the pairs of GPU and NIC, with what is known about each.
    pub fn pairs(&self) -> Vec<(&str, &str)> {
        self.0.iter().filter_map(|(k, v)| Some((k.strip_prefix("pair.")?, v.as_str()))).collect()
    }

    /// Returns the names of the client with persistent pins and, if there is one, of the client
    /// with revocable pins. A third client pins nothing.
    pub fn clients(&self) -> Result<(&str, Option<&str>)> {
        let mut names = self.text("clients")?.split(' ');
        let first = names.next().context("stats: a client")?;
        match self.text("mode")? {
            "legacy" => Ok((names.next().context("stats: two clients")?, Some(first))),
            _ => Ok((first, names.next())),
        }
    }

    /// Returns a figure of this client, or 0 if there is no client.
    pub fn of(&self, client: Option<&str>, key: &str) -> Result<i64> {
        client.map_or(Ok(0), |client| self.number(&format!("{client}.{key}")))
    }
}

/// Returns the rows of `registrations` or `callbacks`, each as its fields.
pub fn rows(file: &str) -> Result<Vec<BTreeMap<String, String>>> {
    let fields = |line: &str| -> BTreeMap<String, String> {
        line.split(' ').filter_map(|w| w.split_once('=')).map(|(k, v)| (k.into(), v.into())).collect()
    };
    Ok(read(file)?.lines().map(fields).collect())
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
    fn stats_are_read() {
        let s = Stats::parse(
            "mode legacy\nclients nv_mem nv_mem_nc\ntotal.pins 3\nrefused.busy 2\n\
             provider.get.histogram 1 0 2\npair.0000:00:08.0/0000:00:04.0 unasked\n",
        );
        assert_eq!(s.clients().unwrap(), ("nv_mem_nc", Some("nv_mem")));
        let three = Stats::parse("mode fallback\nclients nv_mem nv_mem_rv nv_mem_nc\n");
        assert_eq!(three.clients().unwrap(), ("nv_mem", Some("nv_mem_rv")));
        let one = Stats::parse("mode persistent\nclients nv_mem\nnv_mem.pins 2\n");
        assert_eq!(one.clients().unwrap(), ("nv_mem", None));
        assert_eq!((one.of(Some("nv_mem"), "pins").unwrap(), one.of(None, "pins").unwrap()), (2, 0));
        assert_eq!(s.number("total.pins").unwrap(), 3);
        assert_eq!(s.below("refused.").collect::<Vec<_>>(), [("busy", 2)]);
        assert_eq!(s.pairs(), [("0000:00:08.0/0000:00:04.0", "unasked")]);
        assert!(s.number("nothing").is_err());
    }
}
