//! The table of boots: which virtual machines there are, what runs in each, and in which runs each takes part.

use crate::alarms::Kind;
use crate::image::{Module, More};
use crate::machine::{Boot, Iommu};
use std::time::Duration;

/// What a person starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Run {
    /// `make test`
    Test,
    /// `make test RIVAL=1`: what differs is recorded, not judged.
    Rival,
    /// `make soak`
    Soak,
}

/// What a boot's console is to hold.
#[derive(Clone, Copy, Debug)]
pub enum Expect {
    /// Exactly these alarms, each so often. NVIDIA's module may raise others: they are recorded.
    Alarms(&'static [(Kind, usize)]),
    /// None of these scenarios comes out clean: a lab in which NVIDIA's module does would not see ours break either.
    Bite(&'static [&'static str]),
}

#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Names the boot in `ONLY=`, in the results and in build/lab/run.
    pub name: &'static str,
    /// Suites of tests/guest, in this order.
    pub suites: &'static [&'static str],
    /// More of the kernel's command line.
    pub append: &'static [&'static str],
    pub module: Module,
    /// What else is in its image.
    pub more: More,
    pub expect: Expect,
    pub iommu: Iommu,
    /// Two machines with a cable between them, or one.
    pub pair: bool,
    pub gpus: u32,
    /// Memory of each GPU.
    pub gpu_mib: u64,
    pub nics: u32,
    pub memory_mib: u32,
    /// Generation of the RDMA core, as its module parameter has it.
    pub generation: &'static str,
    /// Seconds on two idle cores; the longest start first. Six times that is too long for a boot on a busy machine.
    pub takes: u64,
    pub runs: &'static [Run],
}

/// What the module meets today: MLNX_OFED 25.04 and later.
const NEWEST: &str = "25.04";

/// What a row does not say.
const ROW: Row = Row {
    name: "",
    suites: &[],
    append: &[],
    module: Module::Ours,
    more: More::Nothing,
    expect: Expect::Alarms(&[]),
    iommu: Iommu::Off,
    pair: false,
    gpus: 1,
    gpu_mib: 256,
    nics: 1,
    memory_mib: 2048,
    generation: NEWEST,
    takes: 60,
    runs: &[Run::Test],
};

/// What is known to break NVIDIA's module: free before dma_map, foreign deregistration, free against deregistration.
const BITE: [&str; 3] = [
    "scenarios/25.04/legacy/free_before_dma_map",
    "scenarios/25.04/legacy/deregistered_by_a_child",
    "scenarios/25.04/legacy/free_during_dereg",
];
const BITE_ONLY: &str =
    "guest.only=25.04/legacy/free_before_dma_map,25.04/legacy/deregistered_by_a_child,25.04/legacy/free_during_dereg";

/// What every mode, generation and module is asked.
const SUITES: &[&str] = &["smoke", "callbacks", "refusals", "unfenced", "tables"];

/// What is asked of every older generation of the RDMA core in each `make test`: each mode, each order of callbacks, and
/// each place where a generation differs (tests/guest/README.md). The whole suites are in the soak.
const OLDER: &[&str] = &["smoke", "callbacks", "unfenced"];
const OLDER_ONLY: &[&str] = &["guest.only=callbacks/,mkey_fails,statistics,legacy/bytes_move,layouts,legacy/is_served"];

const BREADTH: Row =
    Row { name: "", suites: &["matrix", "verbs", "errors"], gpus: 2, nics: 2, takes: 150, runs: &[Run::Soak], ..ROW };

/// The kernel's check of the DMA API allocates, too, and where that fails it ends itself with an alarm.
const NO_DMA_DEBUG: &str = "dma_debug=off";

/// Registrations in each mode.
const LONG_STORM: &[&str] = &["guest.storm=100000"];
const STORM_TAKES: u64 = 12_000;

/// `ONLY=<suite>` takes the first row that has the suite.
pub const BOOTS: &[Row] = &[
    Row { name: "suites", suites: SUITES, takes: 175, runs: &[Run::Test, Run::Soak], ..ROW },
    // The scenario table: on the newest core here; soak runs it on all of them.
    Row { name: "scenarios-newest", suites: &["scenarios"], append: &["guest.only=25.04/"], takes: 170, ..ROW },
    Row { name: "pairwise", suites: &["pairwise"], takes: 170, runs: &[Run::Soak], ..ROW },
    Row { name: "scenarios", suites: &["scenarios"], takes: 400, runs: &[Run::Soak], ..ROW },
    Row {
        name: "alarms",
        suites: &["alarms"],
        expect: Expect::Alarms(&[(Kind::Kasan, 1), (Kind::Lockdep, 1), (Kind::Kmemleak, 1)]),
        takes: 33,
        ..ROW
    },
    // What module and peermemctl tell.
    Row { name: "observe", suites: &["observe", "reasons"], takes: 60, runs: &[Run::Soak], ..ROW },
    Row {
        name: "many",
        suites: &["observe"],
        append: &["guest.only=many_registrations", "guest.registrations=100000"],
        memory_mib: 8192,
        takes: 900,
        runs: &[Run::Soak],
        ..ROW
    },
    // Every address goes through the NIC's own translation.
    Row {
        name: "iommu-translating",
        suites: &["smoke", "iommu"],
        append: &["guest.only=bytes_move,layouts,iommu/"],
        iommu: Iommu::Translating,
        takes: 80,
        ..ROW
    },
    Row {
        name: "iommu-identity",
        suites: &["iommu"],
        append: &["guest.only=iommu/persistent"],
        iommu: Iommu::Identity,
        takes: 40,
        runs: &[Run::Soak],
        ..ROW
    },
    Row {
        name: "breadth",
        suites: &["matrix", "verbs", "errors", "iommu"],
        gpus: 2,
        nics: 2,
        takes: 150,
        runs: &[Run::Test, Run::Soak],
        ..ROW
    },
    // NVIDIA's module must move data in the same lab: it was not made to fit ours.
    Row { name: "rival", suites: &["smoke"], module: Module::Rival, takes: 66, ..ROW },
    // And what is known to break it must break it here. The order is the table's; the last one stops the machine.
    Row {
        name: "bite",
        suites: &["scenarios"],
        append: &[BITE_ONLY],
        module: Module::Rival,
        expect: Expect::Bite(&BITE),
        takes: 49,
        ..ROW
    },
    Row {
        name: "core-5.5",
        suites: OLDER,
        append: OLDER_ONLY,
        generation: "5.5",
        takes: 80,
        runs: &[Run::Soak],
        ..ROW
    },
    Row {
        name: "core-5.1",
        suites: OLDER,
        append: OLDER_ONLY,
        generation: "5.1",
        takes: 80,
        runs: &[Run::Soak],
        ..ROW
    },
    Row {
        name: "pair",
        suites: &["pair"],
        append: &["guest.only=persistent/ib_write_bw,persistent/rdma_cm/ib_send_bw"],
        pair: true,
        takes: 60,
        runs: &[Run::Soak],
        ..ROW
    },
    // Big tables in one mode: the other's provider calls are the same, and the soak has both.
    Row {
        name: "faults",
        suites: &["faults"],
        append: &[NO_DMA_DEBUG, "guest.only=contiguous,provider"],
        takes: 120,
        runs: &[Run::Soak],
        ..ROW
    },
    Row {
        name: "storm",
        suites: &["unload", "storm"],
        append: &["guest.storm=200"],
        takes: 120,
        runs: &[Run::Soak],
        ..ROW
    },
    Row { name: "rival-suites", suites: SUITES, module: Module::Rival, takes: 175, runs: &[Run::Rival], ..ROW },
    Row { name: "suites-5.5", suites: SUITES, generation: "5.5", takes: 200, runs: &[Run::Soak], ..ROW },
    Row { name: "suites-5.1", suites: SUITES, generation: "5.1", takes: 200, runs: &[Run::Soak], ..ROW },
    Row { name: "breadth-5.5", generation: "5.5", ..BREADTH },
    Row { name: "breadth-5.1", generation: "5.1", ..BREADTH },
    // Programs of others; the whole of rdma-core's tests is in the soak.
    Row {
        name: "consumers",
        suites: &["ucx", "pyverbs"],
        append: &["guest.pyverbs=test_mr,test_qp"],
        more: More::Consumers,
        takes: 130,
        runs: &[Run::Soak],
        ..ROW
    },
    Row {
        name: "consumers-all",
        suites: &["ucx", "pyverbs"],
        more: More::Consumers,
        takes: 600,
        runs: &[Run::Soak],
        ..ROW
    },
    Row { name: "pair-all", suites: &["pair"], pair: true, takes: 240, runs: &[Run::Soak], ..ROW },
    Row { name: "suites-iommu", suites: SUITES, iommu: Iommu::Translating, takes: 360, runs: &[Run::Soak], ..ROW },
    Row { name: "matrix-full", suites: &["matrix_full"], gpus: 2, nics: 2, takes: 3600, runs: &[Run::Soak], ..ROW },
    Row { name: "matrix-large", suites: &["matrix_large"], gpu_mib: 4096, takes: 120, runs: &[Run::Soak], ..ROW },
    Row {
        name: "breadth-iommu",
        suites: &["matrix", "verbs", "errors"],
        iommu: Iommu::Translating,
        gpus: 2,
        nics: 2,
        takes: 300,
        runs: &[Run::Soak],
        ..ROW
    },
    // Not a sample of a table's many allocations, but all of them.
    Row {
        name: "faults-full",
        suites: &["faults"],
        append: &[NO_DMA_DEBUG, "guest.every_allocation"],
        takes: 1500,
        runs: &[Run::Soak],
        ..ROW
    },
    Row { name: "loads", suites: &["unload"], append: &["guest.loads=1000"], takes: 600, runs: &[Run::Soak], ..ROW },
    Row { name: "storm-25.04", suites: &["storm"], append: LONG_STORM, takes: STORM_TAKES, runs: &[Run::Soak], ..ROW },
    Row {
        name: "storm-5.5",
        suites: &["storm"],
        append: LONG_STORM,
        generation: "5.5",
        takes: STORM_TAKES,
        runs: &[Run::Soak],
        ..ROW
    },
    Row {
        name: "storm-5.1",
        suites: &["storm"],
        append: LONG_STORM,
        generation: "5.1",
        takes: STORM_TAKES,
        runs: &[Run::Soak],
        ..ROW
    },
    Row { name: "suites-identity", suites: SUITES, iommu: Iommu::Identity, takes: 360, runs: &[Run::Soak], ..ROW },
];

impl Row {
    pub fn image(&self) -> (Module, More) {
        (self.module, self.more)
    }

    /// The machine of this row, with these of its suites.
    pub fn boot(&self, suites: &[&str]) -> Boot {
        let mut boot = Boot {
            append: self.append.iter().map(|w| w.to_string()).collect(),
            gpus: self.gpus,
            gpu_mib: self.gpu_mib,
            nics: self.nics,
            iommu: self.iommu,
            memory_mib: self.memory_mib,
            limit: self.limit(),
            ..Boot::new(self.name, &suites.join(","))
        };
        boot.append.extend(self.module.word());
        if self.generation != NEWEST {
            boot.append.push(format!("guest.generation={}", self.generation));
        }
        boot
    }

    /// A boot that has not ended by then hangs: there may be others beside it, and other programs on the machine.
    fn limit(&self) -> Duration {
        Duration::from_secs((6 * self.takes).max(300))
    }
}

/// The boots of a run that `only` names, by suite or by name, each with what is to run in it.
pub fn chosen(run: Run, only: Option<&[&str]>) -> Vec<(&'static Row, Vec<&'static str>)> {
    let rows = || BOOTS.iter().filter(|r| r.runs.contains(&run));
    let Some(only) = only else {
        return rows().map(|r| (r, r.suites.to_vec())).collect();
    };
    let home = |suite: &str| rows().position(|r| r.suites.contains(&suite));
    rows()
        .enumerate()
        .filter_map(|(i, row)| {
            let mut suites = row.suites.to_vec();
            if !only.contains(&row.name) {
                suites.retain(|s| only.contains(s) && home(s) == Some(i) && !rows().any(|r| r.name == *s));
            }
            (!suites.is_empty()).then_some((row, suites))
        })
        .collect()
}

/// What `ONLY=` may name in a run, besides the tests of this machine.
pub fn names(run: Run) -> Vec<&'static str> {
    let mut names: Vec<&str> = Vec::new();
    for row in BOOTS.iter().filter(|r| r.runs.contains(&run)) {
        for name in row.suites.iter().copied().chain([row.name]) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn of(run: Run, only: Option<&[&str]>) -> Vec<(&'static str, String)> {
        chosen(run, only).into_iter().map(|(row, suites)| (row.name, suites.join(","))).collect()
    }

    #[test]
    fn names_are_unique_and_rows_are_whole() {
        let names: BTreeSet<&str> = BOOTS.iter().map(|r| r.name).collect();
        assert_eq!(names.len(), BOOTS.len());
        for row in BOOTS {
            assert!(!row.suites.is_empty() && !row.runs.is_empty() && row.takes > 0, "{row:?}");
            if let Expect::Bite(tests) = row.expect {
                let only = row.append.iter().find_map(|w| w.strip_prefix("guest.only=")).unwrap();
                let wanted: Vec<&str> = tests.iter().filter_map(|t| t.split_once('/')).map(|(_, name)| name).collect();
                assert_eq!(only.split(',').collect::<Vec<_>>(), wanted);
            }
            assert!(!row.append.iter().any(|w| w.starts_with("guest.generation")), "{}: use the column", row.name);
        }
    }

    #[test]
    fn every_row_of_a_run_or_what_was_named() {
        let all: Vec<&str> = of(Run::Test, None).into_iter().map(|(name, _)| name).collect();
        for name in ["suites", "alarms", "iommu-translating", "rival", "bite"] {
            assert_eq!(all.iter().filter(|n| **n == name).count(), 1, "{name} in {all:?}");
        }
        assert_eq!(of(Run::Test, Some(&["smoke"])), [("suites", "smoke".to_string())]);
        assert_eq!(of(Run::Test, Some(&["bite"])), [("bite", "scenarios".to_string())]);
        assert_eq!(of(Run::Test, Some(&["alarms", "smoke"])).len(), 2);
        assert!(of(Run::Test, Some(&["host"])).is_empty());
        assert_eq!(of(Run::Rival, Some(&["callbacks"])), [("rival-suites", "callbacks".to_string())]);
        assert!(names(Run::Test).contains(&"callbacks") && names(Run::Test).contains(&"bite"));
    }

    #[test]
    fn what_the_machine_is_told() {
        let row = Row { name: "x", module: Module::Rival, generation: "5.5", append: &["guest.only=a"], ..ROW };
        let boot = row.boot(&["smoke", "callbacks"]);
        assert_eq!(boot.append, ["guest.only=a", "guest.rival=1", "guest.generation=5.5"]);
        assert_eq!(boot.run, "smoke,callbacks");
        assert!(ROW.boot(&["smoke"]).append.is_empty());
        assert_eq!(Row { takes: 10, ..ROW }.limit(), Duration::from_secs(300));
        assert_eq!(Row { takes: 100, ..ROW }.limit(), Duration::from_secs(600));
    }
}
