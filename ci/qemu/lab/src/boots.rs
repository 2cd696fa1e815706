// SPDX-License-Identifier: GPL-2.0

//! Reads the boots of `ci/qemu/boots.toml`: which virtual machines there are, what runs in each,
//! and which of them a person chooses.

use anyhow::{ensure, Context, Result};
use lab::alarms;
use lab::arch::{Arch, Iommu};
use lab::artefacts::Kind;
use lab::axes::{Also, Clock, Core, Kernel, Mode, Module, Named, Run};
use lab::machine::{Boot, COUNTED_CPU};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const TEXT: &str = include_str!("../../boots.toml");

/// What a boot must show besides passing its tests. The head of the file explains each.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Expect {
    Alarms(BTreeMap<alarms::Kind, usize>),
    Canary(Vec<String>),
    FreeCost(u64),
    Replay(String),
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Topology {
    gpus: u32,
    nics: u32,
    #[serde(default)]
    iommu: Iommu,
    /// The number of address bits that the devices `edu`, which the sample driver drives, put on
    /// the bus. `None`: no such devices.
    edu: Option<u32>,
    /// Tells whether each GPU is below a PCIe switch with the network card of the same number.
    #[serde(default)]
    switches: bool,
    /// Whether the boot has two machines with a cable between them.
    #[serde(default)]
    pair: bool,
}

/// The reason for which tests of some boots may be skipped.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Skip {
    /// The patterns of the boots' names.
    boots: Vec<String>,
    /// The beginnings of the reasons that the guest gives.
    reasons: Vec<String>,
    /// Whether it is fine if no boot of `make test` runs the test, because the soak does.
    #[serde(default)]
    pub soak: bool,
}

impl Skip {
    /// Returns whether this entry allows a skip in this boot for this reason.
    pub fn expects(&self, boot: &str, reason: &str) -> bool {
        let matches = |pattern: &String| glob::Pattern::new(pattern).is_ok_and(|pattern| pattern.matches(boot));
        self.boots.iter().any(matches) && self.reasons.iter().any(|begin| reason.starts_with(begin))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    topology: BTreeMap<String, Topology>,
    #[serde(default)]
    skip: Vec<Skip>,
    /// The values for whatever an entry leaves out.
    default: toml::Table,
    /// The entries. Each stands for one boot per combination of its axes.
    boot: Vec<toml::Table>,
}

/// The axes in the order in which a boot's name has them.
const AXES: [&str; 4] = ["kernel", "core", "mode", "topology"];

/// One boot of the table, with a value for each axis.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// The values of its axes. The boot has this name in `ONLY=`, in the results and in
    /// build/lab/run.
    #[serde(skip)]
    pub name: String,
    pub kernel: Kernel,
    pub core: Core,
    pub mode: Mode,
    topology: String,
    what: Option<String>,
    pub suites: Vec<String>,
    pub runs: Vec<Run>,
    /// The time that the boot takes on two idle cores. The longest boots start first, and the time
    /// limit of a boot comes from it.
    pub seconds: u64,
    words: Vec<String>,
    pub module: Module,
    pub also: Also,
    cpu: Option<String>,
    clock: Clock,
    cpus: u32,
    gpu_mib: u64,
    memory_mib: u32,
    pub expect: Expect,
    #[serde(skip)]
    machine: Topology,
    /// The reasons for which its tests may be skipped.
    #[serde(skip)]
    pub skips: Vec<Skip>,
}

/// Returns all boots, in the order of the file.
pub fn all() -> Result<Vec<Row>> {
    read(TEXT).context("ci/qemu/boots.toml")
}

fn read(text: &str) -> Result<Vec<Row>> {
    let table: Table = toml::from_str(text)?;
    let mut rows: Vec<Row> = Vec::new();
    for entry in &table.boot {
        let mut whole = table.default.clone();
        whole.extend(entry.clone());
        let mut boots = vec![whole];
        for axis in AXES {
            boots = boots.iter().flat_map(|boot| by_value(boot, axis)).collect();
        }
        ensure!(!boots.is_empty(), "a boot lacks one of {AXES:?}: {entry:?}");
        for boot in boots {
            let mut row: Row = boot.try_into().with_context(|| format!("the boot {entry:?}"))?;
            ensure!(!row.suites.is_empty() && row.seconds > 0, "a boot lacks suites or seconds: {entry:?}");
            let machine = table.topology.get(&row.topology);
            row.machine = machine.with_context(|| format!("there is no topology {}", row.topology))?.clone();
            row.name = format!("{}/{}/{}/{}", row.kernel.name(), row.core.name(), row.mode.name(), row.topology);
            row.name.extend(row.what.iter().flat_map(|what| ["/", what]));
            row.skips.clone_from(&table.skip);
            let twice = rows.iter().any(|other| other.name == row.name);
            ensure!(!twice, "two boots are called {}: give one of them `what`", row.name);
            rows.push(row);
        }
    }
    Ok(rows)
}

/// Returns one entry for each value in the entry's list for `axis`.
fn by_value(entry: &toml::Table, axis: &str) -> Vec<toml::Table> {
    let values = entry.get(axis).and_then(toml::Value::as_array).cloned().unwrap_or_default();
    let with = |value| entry.clone().into_iter().chain([(axis.to_string(), value)]).collect();
    values.into_iter().map(with).collect()
}

impl Row {
    /// Returns the kind of image that the boot needs.
    pub fn image(&self) -> Kind {
        (self.module, self.also)
    }

    /// Returns the boot for one core alone, made from a boot that tests several.
    pub fn on(&self, core: Core) -> Self {
        Row { core, name: format!("{}-{}", self.name, core.name()), ..self.clone() }
    }

    pub fn is_pair(&self) -> bool {
        self.machine.pair
    }

    /// Returns the machine that runs these suites of the boot.
    pub fn boot(&self, suites: &[String]) -> Boot {
        let Topology { gpus, nics, iommu, edu, switches, .. } = self.machine;
        let Row { gpu_mib, memory_mib, clock, cpus, .. } = *self;
        let cpu = self.cpu.as_deref().map(|cpu| if cpu == "counted" { COUNTED_CPU } else { cpu }.to_string());
        // Other boots, and other programs of the host, may run at the same time.
        let limit = Duration::from_secs((12 * self.seconds).max(900));
        let new = Boot::new(&self.name, &suites.join(","));
        let mut boot = Boot { gpus, nics, iommu, edu, switches, gpu_mib, memory_mib, cpu, clock, cpus, limit, ..new };
        boot.append.extend(self.words.iter().cloned());
        // The words of guest.only= are for all suites of the boot.
        boot.append.extend((suites != self.suites).then(|| format!("guest.of={}", self.suites.join(","))));
        boot.append.extend(edu.map(|bits| format!("guest.dma_bits={bits}")));
        if let Expect::Canary(tests) = &self.expect {
            boot.append.push(format!("guest.only={}", tests.join(",")));
        }
        boot.append.extend(self.mode.word());
        boot.append.extend(self.module.word(self.kernel));
        boot.append.extend(self.core.word());
        boot
    }

    /// Returns whether `run` has this boot on `host`. On arm64, `make test` has those marked
    /// `test_arm64`, too.
    fn is_in(&self, run: Run, host: Arch) -> bool {
        let more = run == Run::Test && host == Arch::Arm64 && self.runs.contains(&Run::TestArm64);
        self.kernel.is_built_on(host) && (more || self.runs.contains(&run))
    }

    /// Returns whether `only` of `ONLY=` names this boot, by its name, by its first axes, or by a
    /// pattern.
    fn is_named(&self, only: &str) -> bool {
        let below = self.name.strip_prefix(only).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        below || glob::Pattern::new(only).is_ok_and(|pattern| pattern.matches(&self.name))
    }
}

/// The chosen boots, each with the suites that run in it.
pub type Chosen<'a> = Vec<(&'a Row, Vec<String>)>;

/// Returns the boots that a run on `host` has, or those that `only` chooses by name or suite.
/// `others` lists further words that `only` may contain.
pub fn chosen<'a>(rows: &'a [Row], run: Run, host: Arch, only: Option<&[&str]>, others: &[&str]) -> Result<Chosen<'a>> {
    let rows: Vec<&Row> = rows.iter().filter(|row| row.is_in(run, host)).collect();
    ensure!(
        !rows.is_empty(),
        "make test NVIDIA_C=1 has boots of x86-64 alone, and this is an arm64 host: leave NVIDIA_C=1 out"
    );
    let Some(only) = only else {
        return Ok(rows.into_iter().map(|row| (row, row.suites.clone())).collect());
    };
    let is_named = |name: &str| rows.iter().any(|row| row.is_named(name));
    // Returns the boot in which a suite runs if only the suite is named.
    let home = |name: &str| rows.iter().find(|row| row.suites.iter().any(|suite| suite == name) && !is_named(name));
    for name in only {
        ensure!(
            is_named(name) || home(name).is_some() || others.contains(name),
            "ONLY={name}: this run has no such boot and no such suite{}. `make boots` lists the boots; the suites are: {}",
            if host == Arch::Arm64 { " on an arm64 host" } else { "" },
            suites(&rows, others)
        );
    }
    let of = |row: &&'a Row| {
        let whole = only.iter().any(|name| row.is_named(name));
        let alone = |suite: &str| only.contains(&suite) && home(suite).is_some_and(|home| home.name == row.name);
        (*row, row.suites.iter().filter(|suite| whole || alone(suite)).cloned().collect::<Vec<_>>())
    };
    Ok(rows.iter().map(of).filter(|(_, suites)| !suites.is_empty()).collect())
}

fn suites(rows: &[&Row], others: &[&str]) -> String {
    let suites = rows.iter().flat_map(|row| &row.suites).map(String::as_str).chain(others.iter().copied());
    suites.collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(" ")
}

/// Returns the kinds of images that the boots need, for each kernel.
pub fn images(chosen: &Chosen) -> BTreeMap<Kernel, Vec<Kind>> {
    let mut images: BTreeMap<_, Vec<_>> = BTreeMap::new();
    chosen.iter().for_each(|(row, _)| images.entry(row.kernel).or_default().push(row.image()));
    images
}

/// Returns the list that `lab boots` prints: the boots on `host` that `only` names, or all.
pub fn list(rows: &[Row], host: Arch, only: Option<&str>) -> String {
    let is_named = |row: &Row| only.is_none_or(|only| only.split(',').any(|only| row.is_named(only)));
    let mut text = String::new();
    for row in rows.iter().filter(|row| row.kernel.is_built_on(host) && is_named(row)) {
        let runs: Vec<String> = row.runs.iter().map(|run| run.name()).collect();
        text += &format!("{:<44} {:>5} s  {:<20} {}\n", row.name, row.seconds, runs.join(","), row.suites.join(" "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(run: Run, only: Option<&[&str]>) -> Vec<(String, String)> {
        let rows = all().unwrap();
        let chosen = chosen(&rows, run, Arch::X86, only, &["host"]).unwrap();
        chosen.into_iter().map(|(row, suites)| (row.name.clone(), suites.join(","))).collect()
    }

    /// Reads the file with its list of boots replaced by this one entry.
    fn with(entry: &str) -> Result<Vec<Row>> {
        let head = TEXT.split("[[boot]]").next().unwrap();
        let boot = "kernel = [\"debian-6.12\"]\nsuites = [\"smoke\", \"callbacks\"]\nseconds = 100\n";
        read(&format!("{head}[[boot]]\n{boot}{entry}"))
    }

    #[test]
    fn an_entry_is_a_boot_for_each_combination_of_its_axes() {
        let axes = "core = [\"25.10\", \"24.10\"]\nmode = [\"legacy\"]\ntopology = [\"1gpu\", \"2gpu\"]\n";
        let rows = with(&format!("{axes}words = [\"quiet\"]\nmodule = \"nvidia_c\"\n")).unwrap();
        let names: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
        let tail = ["25.10/legacy/1gpu", "25.10/legacy/2gpu", "24.10/legacy/1gpu", "24.10/legacy/2gpu"];
        assert_eq!(names, tail.map(|tail| format!("debian-6.12/{tail}")));
        let boot = rows[3].boot(&rows[3].suites);
        assert_eq!(boot.append, ["quiet", "guest.mode=legacy", "guest.nvidia_c=1", "guest.generation=24.10"]);
        assert_eq!((boot.run.as_str(), boot.gpus, boot.limit), ("smoke,callbacks", 2, Duration::from_secs(1200)));
        // One suite alone is told whose words of guest.only= it may be given.
        let boot = rows[3].boot(&["smoke".to_string()]);
        assert_eq!((boot.run.as_str(), boot.append[1].as_str()), ("smoke", "guest.of=smoke,callbacks"));
    }

    #[test]
    fn what_the_file_gets_wrong_is_said() {
        let error = |entry: &str| format!("{:#}", with(entry).unwrap_err());
        assert!(with("").is_ok());
        assert!(error("topology = [\"3gpu\"]").contains("no topology 3gpu"));
        assert!(error("core = [\"5.4\"]").contains("5.4"));
        assert!(error("secnods = 3").contains("secnods"));
        assert!(error("mode = []").contains("lacks"));
        let twice = "[[boot]]\nkernel = [\"debian-6.12\"]\nsuites = [\"smoke\"]\nseconds = 1\n";
        assert!(error(twice).contains("two boots are called debian-6.12/25.10/both/1gpu"));
    }

    #[test]
    fn the_runs_have_what_keeps_the_lab_honest() {
        let names: Vec<String> = of(Run::Test, None).into_iter().map(|(name, _)| name).collect();
        for name in [
            "debug-7.2/25.10/both/1gpu",
            "debug-7.2/25.10/both/1gpu/alarms",
            "debug-7.2/25.10/legacy/1gpu/canary",
            "debian-6.12/25.10/legacy/1gpu/nvidia_c-smoke",
            "debian-6.12/25.10/both/1gpu-iommu",
        ] {
            assert!(names.iter().any(|n| n == name), "{name} in {names:?}");
        }
        for row in all().unwrap() {
            assert!(row.expect_is_of_its_module(), "{}", row.name);
        }
    }

    impl Row {
        /// The canary proves that NVIDIA's module gets caught; a boot cannot have it together with
        /// another module.
        fn expect_is_of_its_module(&self) -> bool {
            match &self.expect {
                Expect::Canary(tests) => self.module == Module::NvidiaC && tests.len() >= 3,
                Expect::Alarms(alarms) => self.module != Module::NvidiaC || alarms.is_empty(),
                _ => self.module == Module::Ours,
            }
        }
    }

    #[test]
    fn an_arm64_host_has_boots_of_arm64_alone() {
        let rows = all().unwrap();
        let all_of = |run| chosen(&rows, run, Arch::Arm64, None, &[]).unwrap();
        let (test, soak) = (all_of(Run::Test), all_of(Run::Soak));
        assert!(test.iter().chain(&soak).all(|(row, _)| row.kernel.arch() == Arch::Arm64));
        let has = |name: &str| test.iter().any(|(row, _)| row.name == name);
        assert!(has("debian-6.12-arm64/25.10/both/1gpu") && has("debug-7.2-arm64-64k/24.10/both/1gpu"));
        assert!(soak.len() > test.len());
        let error = |run, only| chosen(&rows, run, Arch::Arm64, only, &[]).unwrap_err().to_string();
        let named = error(Run::Test, Some(&["debug-7.2"][..]));
        assert!(named.contains("ONLY=debug-7.2") && named.contains("on an arm64 host"), "{named}");
        assert!(error(Run::NvidiaC, None).contains("leave NVIDIA_C=1 out"));
    }

    #[test]
    fn a_boot_is_named_by_its_axes_and_a_suite_by_itself() {
        let canary = ("debug-7.2/25.10/legacy/1gpu/canary".to_string(), "scenarios".to_string());
        let leaks = ("debug-7.2/25.10/legacy/1gpu/leaks".to_string(), "rdma_leaks".to_string());
        assert_eq!(of(Run::Test, Some(&["debug-7.2/25.10/legacy"])), [canary.clone(), leaks]);
        assert_eq!(of(Run::Test, Some(&["*/canary"])), [canary]);
        assert_eq!(of(Run::Test, Some(&["smoke"])), [("debug-7.2/25.10/both/1gpu".to_string(), "smoke".to_string())]);
        assert_eq!(of(Run::Test, Some(&["callbacks", "smoke"]))[0].1, "smoke,callbacks", "the boot's own order");
        assert_eq!(of(Run::Test, Some(&["alarms", "smoke"])).len(), 2);
        assert!(of(Run::Test, Some(&["debian-6.12"])).len() > 5 && of(Run::Test, Some(&["host"])).is_empty());
        assert!(of(Run::Soak, Some(&["*/24.10/*"])).iter().all(|(name, _)| name.contains("/24.10/")));
        let rows = all().unwrap();
        let error = chosen(&rows, Run::Test, Arch::X86, Some(&["smok"]), &["host"]).unwrap_err().to_string();
        assert!(error.contains("ONLY=smok") && error.contains("smoke") && error.contains("host"), "{error}");
        assert!(chosen(&rows, Run::NvidiaC, Arch::X86, Some(&["host"]), &[]).is_err());
    }

    #[test]
    fn the_list_says_what_a_boot_has() {
        let text = list(&all().unwrap(), Arch::X86, Some("debian-6.1/bare"));
        let line = text.lines().next().unwrap();
        assert!(line.starts_with("debian-6.1/bare/both/1gpu ") && line.ends_with("bare"), "{line}");
        assert!(line.contains("20 s  test,soak"), "{line}");
    }
}
