// SPDX-License-Identifier: GPL-2.0
//! Loads and unloads what a test needs. The state is read from the kernel each time, so a test that
//! leaves things behind does not spoil the next one.

use std::path::Path;
use std::sync::LazyLock;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};

use crate::init::run;
use crate::modules::{self, PEERMEM};

/// The soft NIC's RDMA device.
pub const RDMA_DEVICE: &str = "rxe0";
/// The RDMA device of a second soft NIC, in machines with two network cards. It exists only while a
/// test wants it.
const SECOND_DEVICE: &str = "rxe1";

/// A file that modprobe reads.
const CORE_OPTIONS: &str = "/etc/modprobe.d/peer_memory_core.conf";

/// Returns the module that contains the lab's peer-memory core: `ib_uverbs`, and from 7.x on
/// `ib_core`.
pub fn peer_memory_core() -> Result<String> {
    modules::exporter("ib_register_peer_memory_client")?.context("no installed module exports the peer-memory API")
}

/// The parameters with which nvidia-peermem is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// No parameter: persistent pins.
    Persistent,
    /// `revocable_fallback=1`: revocable pins where persistent ones are impossible.
    Fallback,
    /// `persistent_api_support=0`: revocable pins first.
    Legacy,
}

impl Mode {
    pub fn name(self) -> &'static str {
        match self {
            Self::Persistent => "persistent",
            Self::Fallback => "fallback",
            Self::Legacy => "legacy",
        }
    }

    /// Returns the mode of the boots that test this mode.
    pub fn boots(self) -> Self {
        match self {
            Self::Fallback => Self::Persistent,
            mode => mode,
        }
    }

    /// Returns the modes that the module has. NVIDIA's module has no fallback, and before driver
    /// 560 no persistent mode.
    pub fn all(nvidia_c: bool) -> &'static [Self] {
        match nvidia_c {
            false => &[Self::Persistent, Self::Fallback, Self::Legacy],
            true if nvidia_c_is_persistent() => &[Self::Persistent, Self::Legacy],
            true => &[Self::Legacy],
        }
    }

    pub fn parameters(self, nvidia_c: bool) -> &'static [&'static str] {
        match self {
            Self::Persistent => &[],
            Self::Fallback => &["revocable_fallback=1"],
            Self::Legacy if nvidia_c && !nvidia_c_is_persistent() => &[],
            Self::Legacy => &["persistent_api_support=0"],
        }
    }
}

/// Returns whether NVIDIA's module, which is installed in place of ours, pins persistently by
/// default.
fn nvidia_c_is_persistent() -> bool {
    static IS: LazyLock<bool> = LazyLock::new(|| {
        modules::has_parameter("nvidia-peermem", "persistent_api_support").expect("NVIDIA's module is installed")
    });
    *IS
}

/// The generation of the RDMA core that is loaded (docs/facts.md#core-versions).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Generation {
    #[default]
    V2510,
    /// 5.5 to 25.01: the inverted stop test (docs/facts.md#core-bugs). A registration of a revocable client that fails after
    /// its mapping hangs for good.
    V2410,
}

impl Generation {
    pub const ALL: [Self; 2] = [Self::V2510, Self::V2410];

    /// Returns the value of the core's parameter.
    pub fn name(self) -> &'static str {
        match self {
            Self::V2510 => "25.10",
            Self::V2410 => "24.10",
        }
    }

    pub fn parse(name: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|g| g.name() == name);
        found.with_context(|| format!("there is no core of generation {name}; there are 25.10 and 24.10"))
    }

    /// Returns the generation of the loaded core, or `None` if there is none or the mainline one.
    fn loaded() -> Result<Option<Self>> {
        let core = peer_memory_core()?;
        if !Path::new("/sys/module").join(&core).join("parameters/generation").exists() {
            return Ok(None);
        }
        Self::parse(&modules::attribute(&core, "parameters/generation")?).map(Some)
    }
}

/// The modules that are loaded when a test starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// Whatever the previous test left.
    Any,
    /// Neither the RDMA stack nor the GPU's driver.
    Bare,
    /// The soft NIC and the GPU, without nvidia-peermem.
    Devices,
    /// The GPU, and the soft NIC on the kernel's own RDMA core, which has no peer-memory API.
    Mainline,
    /// The devices and nvidia-peermem.
    Peermem(Mode),
}

impl Level {
    pub fn mode(self) -> Option<Mode> {
        match self {
            Self::Peermem(m) => Some(m),
            _ => None,
        }
    }
}

/// Brings the machine to a level from any other.
pub struct Machine {
    nvidia_c: bool,
    /// The mode in which this program loaded nvidia-peermem.
    mode: Option<Mode>,
    /// This is true while the kernel's own RDMA core is loaded because a test asked for
    /// [`Level::Mainline`].
    mainline: bool,
}

impl Machine {
    pub fn new(nvidia_c: bool) -> Self {
        Self { nvidia_c, mode: None, mainline: false }
    }

    pub fn reach(&mut self, level: Level, generation: Generation) -> Result<()> {
        if level == Level::Any {
            return Ok(());
        }
        let was_mainline = std::mem::replace(&mut self.mainline, level == Level::Mainline);
        let other_core = modules::loaded("ib_core")?
            && match level {
                Level::Mainline => !was_mainline,
                _ => Generation::loaded()? != Some(generation),
            };
        if !modules::loaded(PEERMEM)? {
            self.mode = None;
        } else if other_core || self.mode.is_none() || self.mode != level.mode() {
            modules::rmmod(PEERMEM)?;
            self.mode = None;
        }
        if other_core {
            unload_rdma()?;
        }
        // The file also serves other programs that load the core, such as a test's own modprobe.
        let options = format!("options {} generation={}\n", peer_memory_core()?, generation.name());
        std::fs::write(CORE_OPTIONS, options).with_context(|| format!("write {CORE_OPTIONS}"))?;
        match level {
            Level::Any => Ok(()),
            Level::Bare => unload_devices(),
            Level::Devices => load_devices(),
            Level::Mainline => load_mainline_dma_buf(),
            Level::Peermem(mode) => {
                load_devices()?;
                if !modules::loaded(PEERMEM)? {
                    modules::modprobe("nvidia-peermem", mode.parameters(self.nvidia_c))?;
                    self.mode = Some(mode);
                }
                Ok(())
            }
        }
    }
}

/// Returns the PCI function that does the DMA of a soft NIC.
pub fn pci_function(rdma_device: &str) -> Result<String> {
    let file = format!("/sys/class/infiniband/{rdma_device}/parent");
    let card = std::fs::read_to_string(&file).with_context(|| format!("read {file}"))?;
    let link = format!("/sys/class/net/{}/device", card.trim());
    let device = std::fs::canonicalize(&link).with_context(|| format!("follow {link}"))?;
    let is_pci = |p: &&Path| std::fs::read_link(p.join("subsystem")).is_ok_and(|s| s.ends_with("bus/pci"));
    let function = device.ancestors().find(is_pci).and_then(Path::file_name);
    Ok(function.with_context(|| format!("{link}: no PCI function above {device:?}"))?.to_string_lossy().into_owned())
}

fn rdma_device_exists(name: &str) -> bool {
    Path::new("/sys/class/infiniband").join(name).exists()
}

/// The soft NIC on the second network card. Dropping it removes the NIC, so it must be dropped
/// after everything that uses it.
pub struct SecondNic(());

impl SecondNic {
    pub fn add() -> Result<Self> {
        run("rdma", &["link", "add", SECOND_DEVICE, "type", "rxe", "netdev", "eth1"])
            .context("a second network card is needed: the boot has nics = 2")?;
        let this = Self(());
        wait_for("/dev/infiniband/uverbs1", || Path::new("/dev/infiniband/uverbs1").exists())?;
        Ok(this)
    }

    pub fn name(&self) -> &'static str {
        SECOND_DEVICE
    }
}

impl Drop for SecondNic {
    fn drop(&mut self) {
        // A link that is left is removed with the RDMA stack.
        let _ = run("rdma", &["link", "delete", SECOND_DEVICE]);
    }
}

/// rdma_rxe with other parameters. The next test gets it with the usual ones.
pub struct OtherRxe(());

impl OtherRxe {
    pub fn load(parameters: &[&str]) -> Result<Self> {
        let this = Self(());
        unload_rxe()?;
        load_rdma_with(parameters)?;
        Ok(this)
    }
}

impl Drop for OtherRxe {
    fn drop(&mut self) {
        if let Err(e) = unload_rxe() {
            println!("{e:#}");
        }
    }
}

fn unload_rxe() -> Result<()> {
    for name in [RDMA_DEVICE, SECOND_DEVICE] {
        if rdma_device_exists(name) {
            run("rdma", &["link", "delete", name])?;
        }
    }
    modules::unload_with_users("rdma_rxe")
}

/// Loads the RDMA stack with its soft NIC, and the GPU.
pub fn load_devices() -> Result<()> {
    load_rdma()?;
    modules::load("nvidia", &[])
}

pub fn load_rdma() -> Result<()> {
    load_rdma_with(&[])
}

fn load_rdma_with(rxe: &[&str]) -> Result<()> {
    modules::load("ib_uverbs", &[])?;
    modules::load("rdma_rxe", rxe)?;
    add_rdma_device()
}

/// Loads the kernel's own RDMA stack with its soft NIC, as if the lab's had never been installed.
pub fn load_mainline_rdma(more: &[&str]) -> Result<()> {
    load_from("/run/mainline", None, &[&["ib_uverbs", "rdma_rxe"], more].concat())
}

/// Loads the kernel's own RDMA core, which has no peer-memory API, with the lab's soft NIC, which
/// imports dma-bufs, and the GPU.
fn load_mainline_dma_buf() -> Result<()> {
    load_from("/run/mainline-dma-buf", Some("/usr/lib/mainline"), &["ib_uverbs", "rdma_rxe"])?;
    modules::load("nvidia", &[])
}

/// Loads modules of the kernel, preferring those in the folder `other`, and makes the soft NIC.
/// modprobe finds them below `root`.
fn load_from(root: &str, other: Option<&str>, names: &[&str]) -> Result<()> {
    let tree = modules::tree()?;
    let release = tree.file_name().and_then(|n| n.to_str()).context("the folder of modules has no name")?;
    let own = Path::new(root).join("lib/modules").join(release);
    if !own.exists() {
        std::fs::create_dir_all(&own)?;
        for name in ["kernel", "modules.order", "modules.builtin", "modules.builtin.modinfo"] {
            std::os::unix::fs::symlink(tree.join(name), own.join(name))?;
        }
        if let Some(other) = other {
            std::os::unix::fs::symlink(other, own.join("updates"))?;
        }
        run("depmod", &["-b", root, release])?;
    }
    for name in names {
        let outcome = modules::try_modprobe("-d", &[root, name])?;
        if !outcome.ok {
            bail!("modprobe -d {root} {name}: {}{}", outcome.said, outcome.kernel.join("\n"));
        }
    }
    if Generation::loaded()?.is_some() {
        bail!("modprobe -d {root} loaded the lab's ib_core");
    }
    add_rdma_device()
}

fn add_rdma_device() -> Result<()> {
    if !rdma_device_exists(RDMA_DEVICE) {
        run("rdma", &["link", "add", RDMA_DEVICE, "type", "rxe", "netdev", "eth0"])?;
    }
    let uverbs = Path::new("/dev/infiniband/uverbs0");
    wait_for("/dev/infiniband/uverbs0", || uverbs.exists())
}

pub fn unload_rdma() -> Result<()> {
    unload_rxe()?;
    modules::unload_with_users("ib_core")
}

pub fn unload_devices() -> Result<()> {
    if modules::loaded(PEERMEM)? {
        modules::rmmod(PEERMEM)?;
    }
    unload_rdma()?;
    modules::unload_with_users("nvidia")?;
    modules::unload_with_users("lab_pcie")
}

/// Waits up to 30 s until `ready` holds.
pub fn wait_for(what: &str, mut ready: impl FnMut() -> bool) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(30);
    while !ready() {
        if Instant::now() > end {
            bail!("{what}: not there after 30 s");
        }
        sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Reads a file that contains one number.
pub fn number(path: &str) -> Result<u64> {
    let text = std::fs::read_to_string(path).with_context(|| format!("read {path}"))?;
    text.trim().parse().with_context(|| format!("{path} holds {text:?}, not a number"))
}
