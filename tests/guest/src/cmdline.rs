// SPDX-License-Identifier: GPL-2.0
//! `guest.*` words of the kernel command line.

use std::collections::BTreeMap;

use anyhow::Result;

use crate::machine::Generation;

/// What the host asked for.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// `guest.run=a,b`: suites in this order.
    pub suites: Vec<String>,
    /// `guest.nvidia_c=1`: nvidia-peermem is NVIDIA's own.
    pub nvidia_c: bool,
    /// `guest.generation=25.10`: of the RDMA core, where a test does not say.
    pub generation: Generation,
    /// Every other `guest.<key>=<value>`, for the suites.
    pub values: BTreeMap<String, String>,
}

impl Request {
    pub fn parse(cmdline: &str) -> Result<Self> {
        let mut r = Self::default();
        for (key, value) in cmdline
            .split_whitespace()
            .filter_map(|w| w.strip_prefix("guest."))
            .map(|w| w.split_once('=').unwrap_or((w, "1")))
        {
            match key {
                "run" => r.suites = value.split(',').filter(|s| !s.is_empty()).map(str::to_string).collect(),
                "nvidia_c" => r.nvidia_c = value == "1",
                "generation" => r.generation = Generation::parse(value)?,
                _ => {
                    r.values.insert(key.to_string(), value.to_string());
                }
            }
        }
        Ok(r)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_others_are_left_alone() {
        let r = Request::parse(
            "console=ttyS0 guest.run=smoke,,demo guest.nvidia_c=1 guest.seed=7 guest.long guest.generation=24.10 quiet\n",
        )
        .unwrap();
        assert_eq!(r.suites, ["smoke", "demo"]);
        assert!(r.nvidia_c);
        assert_eq!(r.generation, Generation::V2410);
        assert_eq!(r.values["seed"], "7");
        assert_eq!(r.values["long"], "1");
        assert_eq!(Request::parse("console=ttyS0").unwrap(), Request::default());
        assert!(Request::parse("guest.generation=5.4").is_err());
    }
}
