//! The table of boots: which virtual machines there are, what runs in each, and in which runs each takes part.

use crate::alarms::Kind;
use crate::image::{Module, More};
use crate::kernel::Flavour;
use crate::machine::{Boot, Clock, Iommu, COUNTED_CPU, CPU};
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
    /// `make scenarios`, with either module: its suites of the scenario table, with the debug kernel.
    Scenarios,
}

/// What a boot's console is to hold.
#[derive(Clone, Copy, Debug)]
pub enum Expect {
    /// Exactly these alarms, each so often. NVIDIA's module may raise others: they are recorded.
    Alarms(&'static [(Kind, usize)]),
    /// None of these scenarios comes out clean: a lab in which NVIDIA's module does would not see ours break either.
    Bite(&'static [&'static str]),
    /// No alarm; and what a plugin of QEMU's counts of ours in a free with one registration is at most so many instructions.
    FreeCost(u64),
    /// No alarm; and when it is booted a second time with the same seed, the guest's rows of this name are the same.
    Replay(&'static str),
}

#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Names the boot in `ONLY=`, in the results and in build/lab/run.
    pub name: &'static str,
    /// Suites of tests/guest, in this order.
    pub suites: &'static [&'static str],
    /// More of the kernel's command line.
    pub append: &'static [&'static str],
    pub flavour: Flavour,
    pub module: Module,
    /// What else is in its image.
    pub more: More,
    /// A model of QEMU's.
    pub cpu: &'static str,
    pub clock: Clock,
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
    flavour: Flavour::Debug,
    module: Module::Ours,
    more: More::Nothing,
    cpu: CPU,
    clock: Clock::Wall,
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

const BREADTH: Row = Row {
    name: "",
    suites: &["matrix", "verbs", "errors", "iommu"],
    gpus: 2,
    nics: 2,
    takes: 320,
    runs: &[Run::Soak],
    ..ROW
};

/// With what else does not depend on how many GPUs there are.
const WHOLE: &[&str] = &["smoke", "callbacks", "refusals", "unfenced", "tables", "observe", "reasons", "unload"];

/// The kernel's check of the DMA API allocates, too, and where that fails it ends itself with an alarm.
const NO_DMA_DEBUG: &str = "dma_debug=off";

/// A hundred registrations a second on the fast kernel, five to thirty on the debug one. Pins, tickets and references are in
/// the books of the stand-ins and the module, which need no KASAN.
const LONG_STORM: Row = Row {
    suites: &["storm"],
    append: &["guest.storm=100000"],
    flavour: Flavour::Fast,
    takes: 2000,
    runs: &[Run::Soak],
    ..ROW
};

/// What is not asked of the cores with the inverted stop test anywhere else: they hang, and lockdep says so.
const STOP_TEST: Row =
    Row { suites: &["stop_test"], expect: Expect::Alarms(&[(Kind::Lockdep, 1)]), takes: 35, runs: &[Run::Soak], ..ROW };
/// With room for a range that is longer than 1 GiB.
const ROOMY_FAULTS: Row =
    Row { suites: &["faults"], append: &[NO_DMA_DEBUG], gpu_mib: 4096, takes: 600, runs: &[Run::Soak], ..ROW };

/// Every address goes through the NIC's own translation. `stock-iommu` and `stock-iommu-legacy` ask whether bytes move and
/// whether what bypasses the IOMMU faults; which addresses the NIC is given, only this kernel can list.
const TRANSLATING: Row = Row { suites: &["iommu"], iommu: Iommu::Translating, takes: 150, runs: &[Run::Soak], ..ROW };

/// Debian's own kernel. It has no Rust, so the module is built with kernel-lite, and stays loaded after the first revocable
/// pin: each mode needs a boot of its own, in which what has the module unloaded comes first.
const STOCK: Row = Row { flavour: Flavour::Stock, takes: 40, ..ROW };
const STOCK_FIRST: &[&str] = &["refusals", "smoke", "callbacks", "unfenced", "scenarios"];
const STOCK_SUITES: &[&str] = &["smoke", "callbacks", "unfenced", "scenarios"];
/// What the modes with peerdirect_support=1 are asked; `old` has no revocable pins, and `callbacks` nothing
/// else for it.
const STOCK_OLD_SUITES: &[&str] = &["smoke", "unfenced"];
const STOCK_OLD_LEGACY_SUITES: &[&str] = &["smoke", "callbacks", "unfenced"];
/// With two GPUs and two network cards.
const STOCK_MORE: &[&str] =
    &["tables", "reasons", "observe", "unload", "matrix", "verbs", "iommu", "faults", "storm", "errors"];
/// What stays loaded cannot be unloaded.
const STOCK_MORE_STAYS: &[&str] =
    &["tables", "reasons", "observe", "matrix", "verbs", "iommu", "faults", "storm", "errors"];
const STOCK_BREADTH: Row =
    Row { suites: STOCK_MORE, gpus: 2, nics: 2, takes: 60, runs: &[Run::Test, Run::Soak], ..STOCK };
const PERSISTENT: &[&str] = &["guest.mode=persistent"];
const LEGACY: &[&str] = &["guest.mode=legacy"];
const OLD: &[&str] = &["guest.mode=old"];
const OLD_LEGACY: &[&str] = &["guest.mode=old_legacy"];
/// On an older core.
const STOCK_OLDER: Row = Row { suites: STOCK_SUITES, takes: 60, runs: &[Run::Soak], ..STOCK };
const STOCK_TABLE: Row = Row {
    suites: &["smoke", "unfenced", "scenarios", "matrix", "verbs", "errors"],
    gpus: 2,
    nics: 2,
    takes: 40,
    runs: &[Run::Test, Run::Soak],
    ..STOCK
};
/// Of the table's own suite what other boots of that core leave out.
const TABLE_ONLY: &str =
    "guest.only=smoke/,unfenced/,matrix/,verbs/,errors/,/again_with_reused_tables,/free_of_the_fallback";
/// Debian 12's first.
const OLDEST: Row =
    Row { suites: &["bare"], flavour: Flavour::Oldest, takes: 20, runs: &[Run::Test, Run::Soak], ..ROW };
/// A kernel that could have its own crate, and kernel-lite all the same.
const LITE: Row = Row { module: Module::Lite, ..ROW };
/// What STOCK_MORE has, but for what needs another command line.
const LITE_BREADTH: Row = Row {
    suites: &["tables", "reasons", "observe", "unload", "matrix", "verbs", "storm", "errors"],
    gpus: 2,
    nics: 2,
    takes: 400,
    runs: &[Run::Soak],
    ..LITE
};
const LITE_FAULTS: Row = Row { suites: &["faults"], gpu_mib: 4096, takes: 120, runs: &[Run::Soak], ..LITE };

/// `ONLY=<suite>` takes the first row that has the suite.
pub const BOOTS: &[Row] = &[
    Row {
        name: "suites",
        suites: &["smoke", "callbacks", "unfenced", "observe", "iommu", "refusals", "unload", "storm"],
        // `make test` asks the rest on Debian's kernel, where it takes an eighth of the time: `stock-more-persistent` and
        // `-legacy` have 500 registrations of the storm each.
        append: &[
            "guest.only=smoke/,callbacks/,unfenced/,observe/,iommu/,name_taken,unload/,storm/",
            "guest.registrations=300",
            "guest.storm=150",
        ],
        takes: 230,
        ..ROW
    },
    Row {
        name: "suites-25.04",
        suites: &["smoke", "callbacks", "refusals", "unfenced", "tables", "observe", "reasons", "iommu"],
        takes: 700,
        runs: &[Run::Soak, Run::Scenarios],
        ..ROW
    },
    // Each scenario in each mode and on each generation but 5.4 (each with each in the soak).
    Row { name: "generations", suites: &["pairwise"], takes: 300, runs: &[Run::Test, Run::Soak], ..ROW },
    // What else differs on older cores.
    Row { name: "older", suites: &["older"], takes: 230, runs: &[Run::Soak], ..ROW },
    Row { name: "scenarios", suites: &["scenarios"], takes: 400, runs: &[Run::Soak, Run::Scenarios], ..ROW },
    Row {
        name: "alarms",
        suites: &["alarms"],
        expect: Expect::Alarms(&[(Kind::Kasan, 1), (Kind::Lockdep, 1), (Kind::Kmemleak, 1)]),
        takes: 33,
        ..ROW
    },
    Row {
        name: "doctor",
        suites: &["doctor", "peermemctl", "standins"],
        append: PERSISTENT,
        runs: &[Run::Test, Run::Soak],
        ..STOCK
    },
    Row { name: "doctor-debug", suites: &["doctor"], takes: 60, runs: &[Run::Soak], ..ROW },
    // What is asked is whether the list survives so many, which needs no alarms.
    Row {
        name: "many",
        suites: &["observe"],
        append: &["guest.mode=persistent", "guest.only=many_registrations", "guest.registrations=100000"],
        memory_mib: 8192,
        takes: 400,
        runs: &[Run::Soak],
        ..STOCK
    },
    Row { name: "iommu-translating", runs: &[Run::Soak, Run::Scenarios], ..TRANSLATING },
    // A core of 5.1 unmaps by itself, also inside the free.
    Row { name: "iommu-translating-5.5", generation: "5.5", ..TRANSLATING },
    Row { name: "iommu-translating-5.4", generation: "5.4", ..TRANSLATING },
    Row { name: "iommu-translating-5.1", generation: "5.1", ..TRANSLATING },
    Row {
        name: "iommu-identity",
        suites: &["iommu"],
        iommu: Iommu::Identity,
        takes: 60,
        runs: &[Run::Soak, Run::Scenarios],
        ..ROW
    },
    // NVIDIA's module must move data in the same lab: it was not made to fit ours.
    Row { name: "rival", suites: &["smoke"], module: Module::Rival, takes: 15, ..STOCK },
    // And what is known to break it must break it here. The order is the table's; the last one stops the machine.
    Row {
        name: "bite",
        suites: &["scenarios"],
        // KASAN is quiet after its first report otherwise.
        append: &[BITE_ONLY, "kasan_multi_shot"],
        module: Module::Rival,
        expect: Expect::Bite(&BITE),
        takes: 49,
        ..ROW
    },
    // Of memory in one piece; big tables are for the soak.
    Row {
        name: "faults",
        suites: &["faults"],
        append: &[NO_DMA_DEBUG, "guest.only=contiguous,provider_calls,calls_of_the_fallback"],
        takes: 170,
        runs: &[Run::Test, Run::Soak, Run::Scenarios],
        ..ROW
    },
    Row { name: "storm", suites: &["unload", "storm"], takes: 400, runs: &[Run::Soak, Run::Scenarios], ..ROW },
    Row { name: "stock-persistent", suites: STOCK_FIRST, append: PERSISTENT, ..STOCK },
    // `make test` asks this of the core 5.4.
    Row { name: "stock-legacy", suites: STOCK_SUITES, append: LEGACY, runs: &[Run::Soak], ..STOCK },
    Row { name: "stock-old", suites: STOCK_OLD_SUITES, append: OLD, runs: &[Run::Soak], ..STOCK },
    Row { name: "stock-old-legacy", suites: STOCK_OLD_LEGACY_SUITES, append: OLD_LEGACY, runs: &[Run::Soak], ..STOCK },
    Row { name: "stock-more-persistent", append: PERSISTENT, ..STOCK_BREADTH },
    Row { name: "stock-more-legacy", suites: STOCK_MORE_STAYS, append: LEGACY, ..STOCK_BREADTH },
    Row {
        name: "stock-iommu",
        suites: &["smoke", "iommu"],
        append: &["guest.mode=persistent", "guest.only=bytes_move,layouts,iommu/"],
        iommu: Iommu::Translating,
        takes: 10,
        runs: &[Run::Test, Run::Soak],
        ..STOCK
    },
    Row {
        name: "stock-iommu-legacy",
        suites: &["smoke", "iommu"],
        append: &["guest.mode=legacy", "guest.only=bytes_move,layouts,iommu/"],
        iommu: Iommu::Translating,
        takes: 10,
        runs: &[Run::Test, Run::Soak],
        ..STOCK
    },
    Row { name: "stock-persistent-5.5", append: PERSISTENT, generation: "5.5", ..STOCK_OLDER },
    Row { name: "stock-persistent-5.4", append: PERSISTENT, generation: "5.4", ..STOCK_OLDER },
    Row { name: "stock-persistent-5.1", append: PERSISTENT, generation: "5.1", ..STOCK_OLDER },
    Row { name: "stock-legacy-5.5", append: LEGACY, generation: "5.5", ..STOCK_OLDER },
    // `generations` leaves this core out.
    Row {
        name: "stock-legacy-5.4",
        append: LEGACY,
        generation: "5.4",
        takes: 40,
        runs: &[Run::Test, Run::Soak],
        ..STOCK_OLDER
    },
    Row { name: "stock-legacy-5.1", append: LEGACY, generation: "5.1", ..STOCK_OLDER },
    Row { name: "stock-old-5.5", suites: STOCK_OLD_SUITES, append: OLD, generation: "5.5", ..STOCK_OLDER },
    Row { name: "stock-old-5.4", suites: STOCK_OLD_SUITES, append: OLD, generation: "5.4", ..STOCK_OLDER },
    Row { name: "stock-old-5.1", suites: STOCK_OLD_SUITES, append: OLD, generation: "5.1", ..STOCK_OLDER },
    Row {
        name: "stock-old-legacy-5.5",
        suites: STOCK_OLD_LEGACY_SUITES,
        append: OLD_LEGACY,
        generation: "5.5",
        ..STOCK_OLDER
    },
    Row {
        name: "stock-old-legacy-5.4",
        suites: STOCK_OLD_LEGACY_SUITES,
        append: OLD_LEGACY,
        generation: "5.4",
        ..STOCK_OLDER
    },
    Row {
        name: "stock-old-legacy-5.1",
        suites: STOCK_OLD_LEGACY_SUITES,
        append: OLD_LEGACY,
        generation: "5.1",
        ..STOCK_OLDER
    },
    // What of the table other suites stand for, on the older cores, and what of the table's own suite `generations` and
    // `stock-legacy-5.4` leave to others there.
    Row {
        name: "stock-table-5.5",
        append: &["guest.mode=persistent", "guest.table", TABLE_ONLY],
        generation: "5.5",
        ..STOCK_TABLE
    },
    Row {
        name: "stock-table-5.4",
        append: &["guest.mode=persistent", "guest.table", TABLE_ONLY],
        generation: "5.4",
        ..STOCK_TABLE
    },
    Row {
        name: "stock-table-5.1",
        append: &["guest.mode=legacy", "guest.table", TABLE_ONLY],
        generation: "5.1",
        ..STOCK_TABLE
    },
    // No module with a GPL-only import loads here.
    Row {
        name: "stock-closed",
        suites: &["closed", "smoke"],
        append: &["guest.only=closed/,/bytes_move,/odd_ranges"],
        module: Module::Closed,
        takes: 20,
        ..STOCK
    },
    // Processors for which the kernel patches each call and return of each module.
    Row {
        name: "stock-stuffing",
        suites: &["loading", "smoke"],
        append: &["guest.only=loading/,persistent/bytes_move", "retbleed=stuff", "guest.retbleed=Stuffing"],
        cpu: "Skylake-Server",
        takes: 30,
        runs: &[Run::Soak],
        ..STOCK
    },
    Row {
        name: "stock-unret",
        suites: &["loading", "smoke"],
        append: &["guest.only=loading/,persistent/bytes_move", "retbleed=unret", "guest.retbleed=untrained"],
        cpu: "EPYC",
        takes: 30,
        runs: &[Run::Soak],
        ..STOCK
    },
    // `make` and `make install` as README says it.
    Row {
        name: "stock-installed",
        suites: &["loading", "smoke"],
        append: &["guest.only=installed_wins,persistent/bytes_move", "guest.installed"],
        module: Module::Installed,
        takes: 15,
        runs: &[Run::Soak],
        ..STOCK
    },
    // Registrations only: no RDMA stack of the lab's on this kernel.
    Row { name: "oldest", append: &["guest.loads=25"], ..OLDEST },
    Row {
        name: "oldest-installed",
        append: &["guest.installed"],
        module: Module::Installed,
        runs: &[Run::Soak],
        ..OLDEST
    },
    Row { name: "lite", suites: &["smoke"], append: PERSISTENT, takes: 80, runs: &[Run::Soak], ..LITE },
    Row { name: "lite-persistent", suites: STOCK_FIRST, append: PERSISTENT, takes: 240, runs: &[Run::Soak], ..LITE },
    Row { name: "lite-legacy", suites: STOCK_SUITES, append: LEGACY, takes: 120, runs: &[Run::Soak], ..LITE },
    Row { name: "lite-old", suites: STOCK_OLD_SUITES, append: OLD, runs: &[Run::Soak], ..LITE },
    Row { name: "lite-old-legacy", suites: STOCK_OLD_LEGACY_SUITES, append: OLD_LEGACY, runs: &[Run::Soak], ..LITE },
    Row { name: "lite-more-persistent", append: PERSISTENT, ..LITE_BREADTH },
    Row {
        name: "lite-more-legacy",
        suites: &["tables", "reasons", "observe", "matrix", "verbs", "storm", "errors"],
        append: LEGACY,
        ..LITE_BREADTH
    },
    Row { name: "lite-faults-persistent", append: &["guest.mode=persistent", NO_DMA_DEBUG], ..LITE_FAULTS },
    Row { name: "lite-faults-legacy", append: &["guest.mode=legacy", NO_DMA_DEBUG], ..LITE_FAULTS },
    Row {
        name: "lite-iommu",
        suites: &["smoke", "iommu"],
        append: &["guest.mode=persistent", "guest.only=bytes_move,layouts,iommu/"],
        iommu: Iommu::Translating,
        takes: 80,
        runs: &[Run::Soak],
        ..LITE
    },
    // What of a free with one registration is ours, beside the core's invalidate (docs/bench.md): 542 when it was set.
    Row {
        name: "free-cost",
        suites: &["free_cost"],
        append: &["tsc=reliable"],
        flavour: Flavour::Fast,
        cpu: COUNTED_CPU,
        clock: Clock::Instructions,
        expect: Expect::FreeCost(550),
        gpu_mib: 4096,
        memory_mib: 4096,
        runs: &[Run::Soak],
        ..ROW
    },
    // What a registration costs with each provider, by instructions.
    Row {
        name: "providers",
        suites: &["providers"],
        append: &["tsc=reliable"],
        flavour: Flavour::Fast,
        more: More::Lite,
        cpu: COUNTED_CPU,
        clock: Clock::Instructions,
        gpu_mib: 4096,
        memory_mib: 4096,
        runs: &[Run::Soak],
        ..ROW
    },
    Row { name: "rival-suites", suites: SUITES, module: Module::Rival, takes: 175, runs: &[Run::Rival], ..ROW },
    Row {
        name: "stock-rival",
        suites: SUITES,
        module: Module::Rival,
        takes: 60,
        runs: &[Run::Rival, Run::Soak],
        ..STOCK
    },
    Row {
        name: "stock-rival-more",
        suites: &["matrix", "verbs", "errors"],
        module: Module::Rival,
        gpus: 2,
        nics: 2,
        takes: 60,
        runs: &[Run::Rival, Run::Soak],
        ..STOCK
    },
    Row { name: "suites-5.5", suites: WHOLE, generation: "5.5", takes: 300, runs: &[Run::Soak], ..ROW },
    Row { name: "suites-5.4", suites: WHOLE, generation: "5.4", takes: 300, runs: &[Run::Soak], ..ROW },
    Row { name: "suites-5.1", suites: WHOLE, generation: "5.1", takes: 300, runs: &[Run::Soak], ..ROW },
    Row { name: "stop-test-5.5", generation: "5.5", ..STOP_TEST },
    Row { name: "stop-test-5.4", generation: "5.4", ..STOP_TEST },
    Row { name: "breadth-25.04", runs: &[Run::Soak, Run::Scenarios], ..BREADTH },
    Row { name: "breadth-5.5", generation: "5.5", ..BREADTH },
    Row { name: "breadth-5.4", generation: "5.4", ..BREADTH },
    Row { name: "breadth-5.1", generation: "5.1", ..BREADTH },
    // Programs of others.
    Row {
        name: "consumers",
        suites: &["ucx", "pyverbs"],
        more: More::Consumers,
        takes: 600,
        runs: &[Run::Soak],
        ..ROW
    },
    Row {
        name: "stock-consumers",
        // UCX 1.13 looks for the module where this kernel has nothing.
        suites: &["pyverbs"],
        more: More::Consumers,
        takes: 120,
        runs: &[Run::Soak],
        ..STOCK
    },
    Row { name: "stock-large", suites: &["matrix_large"], gpu_mib: 4096, takes: 30, runs: &[Run::Soak], ..STOCK },
    // All of it; what `make demo` shows is a part.
    Row { name: "pair", suites: &["pair"], pair: true, takes: 120, runs: &[Run::Soak], ..STOCK },
    Row { name: "pair-5.1", suites: &["pair"], pair: true, generation: "5.1", takes: 120, runs: &[Run::Soak], ..STOCK },
    Row { name: "suites-iommu", suites: SUITES, iommu: Iommu::Translating, takes: 360, runs: &[Run::Soak], ..ROW },
    // Each byte of 13 000 cases: on a kernel without alarms, which are asked for in `breadth-25.04`.
    Row { name: "matrix-full", suites: &["matrix_full"], gpus: 2, nics: 2, takes: 1800, runs: &[Run::Soak], ..STOCK },
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
    Row { name: "faults-full", append: &[NO_DMA_DEBUG, "guest.every_allocation"], takes: 1500, ..ROOMY_FAULTS },
    Row { name: "faults-5.5", generation: "5.5", ..ROOMY_FAULTS },
    Row { name: "faults-5.4", generation: "5.4", ..ROOMY_FAULTS },
    Row { name: "faults-5.1", generation: "5.1", ..ROOMY_FAULTS },
    Row { name: "storm-25.04", ..LONG_STORM },
    Row { name: "storm-5.5", generation: "5.5", ..LONG_STORM },
    Row { name: "storm-5.4", generation: "5.4", ..LONG_STORM },
    Row { name: "storm-5.1", generation: "5.1", ..LONG_STORM },
    Row {
        name: "storm-debug",
        suites: &["storm"],
        append: &["guest.storm=10000"],
        takes: 1500,
        runs: &[Run::Soak],
        ..ROW
    },
    // Few, with all alarms.
    Row { name: "storm-debug-5.5", suites: &["storm"], generation: "5.5", takes: 150, runs: &[Run::Soak], ..ROW },
    Row { name: "storm-debug-5.4", suites: &["storm"], generation: "5.4", takes: 150, runs: &[Run::Soak], ..ROW },
    Row { name: "storm-debug-5.1", suites: &["storm"], generation: "5.1", takes: 150, runs: &[Run::Soak], ..ROW },
    Row {
        name: "loads",
        suites: &["unload"],
        append: &["guest.loads=1000"],
        flavour: Flavour::Fast,
        takes: 1400,
        runs: &[Run::Soak],
        ..ROW
    },
    // The same seed, the same interleaving.
    Row {
        name: "storm-replay",
        suites: &["storm"],
        append: &["guest.storm=256"],
        clock: Clock::Instructions,
        expect: Expect::Replay("replay"),
        takes: 400,
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
            cpu: self.cpu.to_string(),
            clock: self.clock,
            limit: self.limit(),
            ..Boot::new(self.name, &suites.join(","))
        };
        boot.append.extend(self.module.word(self.flavour));
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
        for name in ["suites", "alarms", "stock-iommu", "rival", "bite"] {
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
