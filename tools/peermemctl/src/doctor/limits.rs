// SPDX-License-Identifier: GPL-2.0
//! Section 9: locked memory, device nodes, what is loaded at boot, DKMS.

use crate::check::Check;
use crate::kernel;
use crate::machine::{Machine, NAME, OLD_MODULE};
use crate::modprobe;
use crate::root::{Forbidden, Root};
use crate::setting::{APPTAINER, NSPAWN, PODMAN};
use crate::text;

/// Bit of CAP_IPC_LOCK, which lifts the limit.
const CAP_IPC_LOCK: u64 = 1 << 14;
/// A limit below this stops real applications.
const ENOUGH: u64 = 64 << 30;

pub fn checks(machine: &Machine) -> Vec<Check> {
    let mut checks: Vec<Check> = pages(machine).into_iter().collect();
    checks.push(login(machine));
    checks.extend(processes(machine));
    checks.extend(devices(machine.root));
    checks.push(boot(machine));
    checks.extend(dkms(machine));
    checks
}

const HUGE: &str = "/sys/kernel/mm/transparent_hugepage/hpage_pmd_size";

/// Returns the kernel's page size in KiB and where that was read. Huge pages tell it: a table of pages is a
/// page of eight-byte entries, and a huge page is what one of them covers. Kernels without huge pages have
/// it in their configuration, or in their name: 6.8.0-1015-nvidia-64k, 5.14.0-503.el9.aarch64+64k,
/// 6.4.0-150600.23.7-64kb.
pub fn page_kib(machine: &Machine) -> Option<(u32, String)> {
    let root = machine.root;
    let by_huge = match root.line(HUGE).as_deref() {
        Some("2097152") => Some(4),
        Some("33554432") => Some(16),
        Some("536870912") => Some(64),
        _ => None,
    };
    if let Some(page) = by_huge {
        return Some((page, HUGE.to_owned()));
    }
    let release = machine.release.as_deref()?;
    let by_configuration = || {
        let (file, text) = kernel::configuration(root, release)?;
        let has = |page: u32| text.lines().any(|line| line == format!("CONFIG_ARM64_{page}K_PAGES=y"));
        Some(([4, 16, 64].into_iter().find(|page| has(*page))?, file))
    };
    let by_name = || {
        let ends = |page: u32| {
            // The last is SUSE's.
            ["k", "k-debug", "kb"].iter().any(|unit| {
                let before = release.strip_suffix(&format!("{page}{unit}"));
                before.is_some_and(|name| name.ends_with(['-', '+']))
            })
        };
        Some(([16, 64].into_iter().find(|page| ends(*page))?, "/proc/sys/kernel/osrelease".to_owned()))
    };
    by_configuration().or_else(by_name)
}

fn pages(machine: &Machine) -> Option<Check> {
    let (page, seen) = page_kib(machine)?;
    let aligned = match page {
        4 => String::new(),
        _ => format!("; a program that registers a dma-buf has to export it from a multiple of {page} KiB on (docs/doctor.md, \"A dma-buf is refused\")"),
    };
    let what = format!("the kernel has pages of {page} KiB: locked memory is counted in them{aligned}");
    Some(Check::ok("limits.pages", what).seen(seen))
}

/// Returns the limit of locked memory of a process, `None` in it for no limit; `None` where that
/// cannot be read. procfs-core panics at lines that it does not know.
fn limit(root: &Root, pid: &str) -> Option<Option<u64>> {
    let text = root.text(&format!("/proc/{pid}/limits")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    match line.split_ascii_whitespace().next()? {
        "unlimited" => Some(None),
        bytes => bytes.parse().ok().map(Some),
    }
}

/// Returns the limit up to which a process may raise its own.
fn hard_limit(root: &Root, pid: &str) -> Option<Option<u64>> {
    let text = root.text(&format!("/proc/{pid}/limits")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    match line.split_ascii_whitespace().nth(1)? {
        "unlimited" => Some(None),
        bytes => bytes.parse().ok().map(Some),
    }
}

/// The limit of locked memory that binds this process.
pub fn memlock(root: &Root) -> Option<u64> {
    limit(root, "self")?.filter(|_| !is_exempt(root, "self"))
}

/// Whether no limit binds a process. A capability counts if it is one of the initial user
/// namespace, which root of a rootless container is not in.
fn is_exempt(root: &Root, pid: &str) -> bool {
    let status = root.text(&format!("/proc/{pid}/status")).unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    let map = root.text(&format!("/proc/{pid}/uid_map"));
    let is_initial = map.map_or(true, |map| map.split_ascii_whitespace().eq(["0", "0", "4294967295"]));
    is_initial && effective.is_some_and(|mask| mask & CAP_IPC_LOCK != 0)
}

/// The lines of a configuration file and then of those in its folder, with their files.
fn configured(root: &Root, file: &str, folder: &str) -> Vec<(String, String)> {
    let names = root.names(folder).into_iter().filter(|name| name.ends_with(".conf"));
    let names = names.map(|name| format!("{folder}/{name}"));
    let files = std::iter::once(file.to_owned()).chain(names);
    let lines = |file: String| {
        let text = root.text(&file).unwrap_or_default();
        text.lines().map(|line| (file.clone(), line.trim().to_owned())).collect::<Vec<_>>()
    };
    files.flat_map(lines).collect()
}

/// The limits of locked memory that files set for those who log in, and for services.
struct Configured {
    /// The users or services that may lock all memory, in words, and the place where that is written.
    allowed: Option<(String, String)>,
    /// The line that gives users less, with its file, and how much that is in bytes.
    lowered: Option<(String, String, u64)>,
}

impl Configured {
    /// Returns the same as a cure needs it.
    fn files(&self) -> Files<'_> {
        match (&self.allowed, &self.lowered) {
            (Some(_), _) => Files::Allow,
            (None, Some((line, file, _))) => Files::Lower(line, file),
            (None, None) => Files::Silent,
        }
    }
}

/// Reads the files as pam_limits(8) does: of the lines for the same users the last one counts.
fn by_configuration(root: &Root) -> Configured {
    // By users: the limit in KiB, `None` for none, with its line and file.
    let mut users: Vec<(String, Option<u64>, String, String)> = Vec::new();
    for (file, line) in configured(root, "/etc/security/limits.conf", "/etc/security/limits.d") {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let [who, "-" | "soft", "memlock", value, ..] = words.as_slice() else { continue };
        let limit = match *value {
            "unlimited" | "infinity" | "-1" => None,
            kib => match kib.parse().ok() {
                Some(kib) => Some(kib),
                None => continue,
            },
        };
        users.retain(|(known, ..)| known != who);
        users.push(((*who).to_owned(), limit, words.join(" "), file));
    }
    let of_all = users.iter().find(|(who, ..)| who == "*");
    let lowered =
        of_all.and_then(|(_, kib, line, file)| Some((line.clone(), file.clone(), kib.as_ref()?.checked_mul(1024)?)));
    let lowered = lowered.filter(|(.., bytes)| *bytes < ENOUGH);
    let seen = |file: &str| format!("memlock unlimited in {file}");
    let users_may = of_all.filter(|(_, limit, ..)| limit.is_none());
    let users_may = users_may.map(|(.., file)| ("users may lock all memory".to_owned(), seen(file)));
    let groups_may = || {
        users.iter().filter(|(_, limit, ..)| limit.is_none()).find_map(|(who, .., file)| {
            Some((format!("users of group {} may lock all memory", who.strip_prefix('@')?), seen(file)))
        })
    };
    let services = || {
        let lines = configured(root, "/etc/systemd/system.conf", "/etc/systemd/system.conf.d").into_iter();
        let mut values = lines.filter_map(|(file, line)| {
            let value = line.strip_prefix("DefaultLimitMEMLOCK")?.trim_start().strip_prefix('=')?.trim().to_owned();
            Some((file, value))
        });
        // It may have a soft limit and a hard one.
        let (file, _) = values.next_back().filter(|(_, value)| value.split(':').next() == Some("infinity"))?;
        Some(("services may lock all memory".to_owned(), format!("DefaultLimitMEMLOCK=infinity in {file}")))
    };
    Configured { allowed: users_may.or_else(groups_may).or_else(services), lowered }
}

/// Batch systems other than Slurm, by what a folder of their control groups begins with: a job has
/// the limit of the daemon that starts it, as each child has its parent's. Grid Engine has
/// parameters for it (execd_params of sge_conf(5)); LSF passes on other limits of the user by
/// `bsub -ul`, and not this one (IBM's description of that option). How the units of the others are
/// called differs, and `ps` tells.
pub const BATCH: [(&str, &str); 7] = [
    ("torque", "TORQUE: LimitMEMLOCK=infinity in the unit that starts pbs_mom (ps -o unit= -C pbs_mom), then restart it"),
    ("flux", "Flux: LimitMEMLOCK=infinity in flux.service, then restart it"),
    (
        "nomad",
        "Nomad: LimitMEMLOCK=infinity in the unit of its client (nomad.service), then restart it; a task of its docker driver: ulimit { memlock = \"-1\" } in that task's config",
    ),
    ("pbs", "PBS: LimitMEMLOCK=infinity in the unit that starts pbs_mom (ps -o unit= -C pbs_mom), then restart it"),
    ("lsf", "LSF: LimitMEMLOCK=infinity in the unit that starts sbatchd (ps -o unit= -C sbatchd), then restart it"),
    ("sge", "Grid Engine: S_MEMORYLOCKED=infinity,H_MEMORYLOCKED=infinity in execd_params (qconf -mconf)"),
    (
        "condor",
        "HTCondor: LimitMEMLOCK=infinity in the unit that starts condor_master (ps -o unit= -C condor_master), then restart it",
    ),
];

/// Returns whether a folder in the path of a control group begins with a word: flux.service does
/// with "flux", and influxdb.service does not.
pub fn has_component(cgroup: &str, word: &str) -> bool {
    cgroup.split(['/', '\n']).any(|folder| folder.starts_with(word))
}

/// Judges by the limit that this process has. Files say what others get, or why this one did not get it.
fn login(machine: &Machine) -> Check {
    const ID: &str = "limits.memlock";
    const SEEN: &str = "Max locked memory in /proc/self/limits";
    let root = machine.root;
    let configured = by_configuration(root);
    let cure = || memlock_cure(machine, "self", &configured.files());
    let Configured { allowed, lowered } = &configured;
    let of = match limit(root, "self") {
        None => {
            let check = Check::skip(ID, "the limit of locked memory cannot be read");
            return match allowed {
                Some((who, seen)) => check.seen(format!("{who} by configuration: {seen}")),
                None => check.seen("/proc/self/limits"),
            };
        }
        Some(None) => return Check::ok(ID, "programs started from here may lock all memory").seen(SEEN),
        Some(Some(bytes)) => bytes,
    };
    let bytes = text::bytes(of);
    if of >= ENOUGH {
        return Check::ok(ID, format!("programs started from here may lock {bytes}")).seen(SEEN);
    }
    if is_exempt(root, "self") {
        // Users get another limit where they log in, which the files tell.
        return match (allowed, lowered) {
            (Some((who, seen)), _) => {
                Check::ok(ID, format!("no limit binds root; {who} by configuration")).seen(seen).seen(SEEN)
            }
            (None, Some((line, file, limit))) => Check::warn(
                ID,
                format!(
                    "no limit binds root; users that log in may lock {} only by configuration: more than that of GPU memory fails with \"Cannot allocate memory\"",
                    text::bytes(*limit)
                ),
                format!("replace '{line}' in {file} by '* - memlock unlimited': of such lines the last one counts"),
            )
            .seen(format!("{line} in {file}"))
            .seen(SEEN),
            (None, None) => Check::skip(
                ID,
                format!("no limit binds root; programs that users start from here may lock {bytes} only: run doctor as one of them"),
            )
            .seen("CAP_IPC_LOCK in /proc/self/status")
            .seen(SEEN),
        };
    }
    let here = format!("programs started from here may lock {bytes} only: more than that of GPU memory fails with \"Cannot allocate memory\"");
    let check = match allowed {
        Some((who, _)) => {
            Check::warn(ID, format!("{here}; {who} by configuration, but this process did not get that"), cure())
        }
        None => {
            let why = match machine.setting.container.is_some() && is_root(root) {
                true => "; this is root without CAP_IPC_LOCK",
                false => ", unless they run as root",
            };
            Check::warn(ID, format!("{here}{why}"), cure())
        }
    };
    let check = check.brief(format!("programs started from here may lock {bytes} only"));
    match allowed {
        Some((_, seen)) => check.seen(SEEN).seen(seen),
        None => check.seen(SEEN),
    }
}

/// Whether this process is root's.
fn is_root(root: &Root) -> bool {
    let status = root.text("/proc/self/status").unwrap_or_default();
    let uids = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap_or_default();
    uids.split_ascii_whitespace().nth(1) == Some("0")
}

/// What the files of a login say of locked memory.
enum Files<'a> {
    Allow,
    Silent,
    /// The line that sets a limit, and its file.
    Lower(&'a str, &'a str),
}

/// Returns what raises the limit of those who start a process: a container's runtime, Slurm, systemd or
/// the login. `pid` is `self`, or the number of another process.
fn memlock_cure(machine: &Machine, pid: &str, files: &Files) -> String {
    const SLURM: &str = "Slurm: PropagateResourceLimitsExcept=MEMLOCK in slurm.conf and LimitMEMLOCK=infinity in slurmd.service, then restart slurmd";
    const SERVICE: &str = "services: LimitMEMLOCK=infinity in their unit";
    const KUBERNETES: &str = "Kubernetes: securityContext.capabilities.add: [\"IPC_LOCK\"] of the container, for a program that runs as root; for others LimitMEMLOCK=infinity in the unit of the container runtime on the node (containerd.service, crio.service; RKE2 and K3s: rke2-agent.service, k3s-agent.service or those of the server), then restart it and the pod";
    let root = machine.root;
    // Whoever starts the program may raise it.
    match hard_limit(root, pid) {
        Some(None) => return "ulimit -l unlimited before the program starts: the hard limit allows it, and only the soft one is low".to_owned(),
        Some(Some(bytes)) if bytes >= ENOUGH => return format!("ulimit -l {} before the program starts: the hard limit allows that, and only the soft one is low", bytes >> 10),
        _ => {}
    }
    let cgroup = root.text(&format!("/proc/{pid}/cgroup")).unwrap_or_default();
    // Slurm may run in pods itself.
    if cgroup.contains("kubepods") {
        return format!("no file of a container raises it. {KUBERNETES}");
    }
    if cgroup.contains("slurm") {
        return SLURM.to_owned();
    }
    if let Some((_, cure)) = BATCH.iter().find(|(word, _)| has_component(&cgroup, word)) {
        return (*cure).to_owned();
    }
    let is_own = pid == "self";
    if is_own && root.exists(APPTAINER) {
        return format!("Apptainer passes on the limit of the shell or job that starts it, so raise it there: {SLURM}; a shell: ulimit -l unlimited, or memlock in /etc/security/limits.d of the host");
    }
    if cgroup.contains("lxc") {
        return "LXC, LXD and Incus: limits.kernel.memlock=unlimited (LXC: lxc.prlimit.memlock = unlimited) of this container, set on the host; then start it again".to_owned();
    }
    if cgroup.contains("/ecs/") {
        return "Amazon ECS: ulimits with name memlock, softLimit -1 and hardLimit -1 in the container's definition of the task, then start a new task".to_owned();
    }
    if is_own && root.line(NSPAWN).as_deref() == Some("systemd-nspawn") {
        return "systemd-nspawn: LimitMEMLOCK=infinity in section [Exec] of the container's .nspawn file (or --rlimit=RLIMIT_MEMLOCK=infinity), then start it again".to_owned();
    }
    // CRI-O makes an empty file of that name (cri-o/cri-o#5463).
    let podman = root.text(PODMAN).ok().filter(|_| is_own).unwrap_or_default();
    if podman.lines().any(|line| line.starts_with("engine=\"podman")) {
        const RUN: &str = "podman run --ulimit memlock=-1:-1";
        return match podman.lines().any(|line| line.trim() == "rootless=1") {
            true => format!("{RUN}, which without root gets no further than the hard limit of the user who starts it: raise that on the host (memlock in /etc/security/limits.d, and LimitMEMLOCK=infinity in user@.service), then log in again there"),
            false => format!("{RUN}; no file of a container raises it"),
        };
    }
    if is_own && machine.setting.container.is_some()
        || ["docker", "libpod", "containerd"].iter().any(|word| cgroup.contains(word))
    {
        return format!("no file of a container raises it: docker run --ulimit memlock=-1, or --cap-add=IPC_LOCK for a program that runs as root. {KUBERNETES}");
    }
    // What systemd's manager of a user starts has that manager's limit; PAM never sees it.
    if cgroup.contains("/user@") {
        return "LimitMEMLOCK=infinity in a drop-in of user@.service (systemctl edit user@.service), then end all sessions of that user and log in again".to_owned();
    }
    if cgroup.contains("/system.slice/") {
        return SERVICE.to_owned();
    }
    match files {
        Files::Allow => format!("{SLURM}; {SERVICE}; a shell: log in again, through PAM (sshd: UsePAM yes)"),
        Files::Silent => format!(
            "echo '* - memlock unlimited' > /etc/security/limits.d/rdma.conf and log in again; {SERVICE}; {SLURM}"
        ),
        Files::Lower(line, file) => format!(
            "replace '{line}' in {file} by '* - memlock unlimited', as of such lines the last one counts, and log in again; {SERVICE}; {SLURM}"
        ),
    }
}

/// Processes that have an RDMA device open and a limit that will stop them.
fn processes(machine: &Machine) -> Vec<Check> {
    let root = machine.root;
    let configured = by_configuration(root);
    let uses_rdma = |pid: &String| root.open_files(pid).iter().any(|file| file.contains("/dev/infiniband/uverbs"));
    root.names("/proc")
        .into_iter()
        .filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
        .filter(uses_rdma)
        .filter_map(|pid| {
            let bytes = limit(root, &pid)?.filter(|bytes| *bytes < ENOUGH)?;
            if is_exempt(root, &pid) {
                return None;
            }
            let comm = root.line(&format!("/proc/{pid}/comm")).unwrap_or_default();
            Some(
                Check::warn(
                    "limits.process",
                    format!("process {pid} ({comm}) uses RDMA and may lock {} only: larger registrations fail with \"Cannot allocate memory\"", text::bytes(bytes)),
                    format!("prlimit --pid {pid} --memlock=unlimited; for good: {}", memlock_cure(machine, &pid, &configured.files())),
                )
                .seen(format!("/proc/{pid}/limits, no CAP_IPC_LOCK in /proc/{pid}/status")),
            )
        })
        .collect()
}

fn boot(machine: &Machine) -> Check {
    const ID: &str = "limits.autoload";
    let file = |file: String| file.rsplit('/').next().unwrap_or_default().to_owned();
    if let Some(found) = modprobe::loaded_at_boot(machine.root, NAME) {
        return Check::ok(ID, "the module is loaded at boot").seen(found);
    }
    if let Some(line) = modprobe::loaded_by_udev(machine.root, NAME) {
        let rule = file(line.file.clone());
        return Check::ok(ID, format!("the module is loaded at boot by the udev rule {rule}"))
            .seen(format!("{}: {}", line.file, line.text));
    }
    let comes = |with: &str| !machine.modules_read || machine.modules.contains_key(with.replace('-', "_").as_str());
    let softdeps = modprobe::softdeps(machine.root, NAME).into_iter();
    if let Some((line, with)) = softdeps.into_iter().find(|(_, with)| comes(with)) {
        return Check::ok(ID, format!("the module is loaded at boot with {with}, by a softdep of it in {}", line.file))
            .seen(format!("{}: {}", line.file, line.text));
    }
    if let Some(unit) = modprobe::loaded_by_service(machine.root, NAME) {
        return Check::ok(ID, format!("the module is loaded at boot by {}", file(unit.file.clone())))
            .seen(format!("{}: {}", unit.file, unit.text));
    }
    if machine.old_module_serves() {
        return Check::skip(ID, format!("nothing loads nvidia_peermem at boot; {OLD_MODULE} is loaded in its place"));
    }
    if machine.setting.modules_in_containers() {
        return Check::ok(ID, "the modules of this node come from containers, which load them")
            .seen("/run/nvidia, /run/mellanox");
    }
    let is_of_image = machine.file.is_none() && machine.setting.adds_packages().is_none();
    if let Some(name) = machine.setting.fixed_system.as_ref().filter(|_| is_of_image) {
        return Check::skip(ID, format!("what {name} loads at boot is in its image"));
    }
    if machine.setting.container.is_some() {
        return Check::skip(ID, "what the host loads at boot cannot be told from inside a container");
    }
    Check::warn(
        ID,
        "nothing loads the module at boot",
        "echo nvidia-peermem > /etc/modules-load.d/nvidia-peermem.conf",
    )
    .seen("no nvidia-peermem in modules-load.d, /etc/modules, the lists of the initial RAM disk, rules of udev, softdeps of modprobe.d, the kernel's command line, enabled units of systemd and their scripts, rc.local or @reboot jobs of cron")
}

/// Where DKMS keeps what it knows: package, version, kernel, architecture.
pub const DKMS: &str = "/var/lib/dkms";

/// Whether DKMS has built the neighbours (the GPU driver, OFED) for this kernel and for those that
/// may be booted next.
fn dkms(machine: &Machine) -> Vec<Check> {
    const ID: &str = "limits.dkms";
    // What DKMS builds on the host is not what such a node loads.
    if machine.setting.modules_in_containers() {
        return Vec::new();
    }
    let root = machine.root;
    let Some(running) = machine.release.as_deref() else { return Vec::new() };
    let mut wanted = kernel::newer(root, running);
    wanted.insert(0, running.to_owned());
    let is_version = |name: &&String| name.starts_with(|c: char| c.is_ascii_digit());
    let known = root.names(DKMS).into_iter().filter(|name| name.starts_with("nvidia") || name.starts_with("mlnx-of"));
    known
        .filter_map(|package| {
            Some((root.names(&format!("{DKMS}/{package}")).iter().rfind(is_version)?.clone(), package))
        })
        .map(|(version, package)| {
            let dir = format!("{DKMS}/{package}/{version}");
            let (built, missing): (Vec<String>, Vec<String>) =
                wanted.clone().into_iter().partition(|release| root.exists(&format!("{dir}/{release}")));
            match missing.first() {
                None => Check::ok(ID, format!("DKMS has built {package} {version} for {}", built.join(", "))),
                Some(first) => Check::warn(
                    ID,
                    format!("DKMS has not built {package} {version} for kernel {}", missing.join(", ")),
                    format!("dkms install {package}/{version} -k {first} (it needs that kernel's headers)"),
                ),
            }
            .seen(dir)
        })
        .collect()
}

/// The nodes that a program opens which registers GPU memory.
pub fn device_nodes(root: &Root) -> Vec<String> {
    let gpus = root.names("/dev").into_iter().filter(|name| match name.strip_prefix("nvidia") {
        Some("ctl" | "-uvm") => true,
        Some(number) => !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()),
        None => false,
    });
    let gpus = gpus.map(|name| format!("/dev/{name}"));
    let nics = root.names("/dev/infiniband").into_iter().filter(|name| name.starts_with("uverbs"));
    gpus.chain(nics.map(|name| format!("/dev/infiniband/{name}"))).collect()
}

/// Device nodes that are there and that this process, in its container, may not open.
fn devices(root: &Root) -> Option<Check> {
    const ID: &str = "limits.devices";
    let all = device_nodes(root);
    let of = |why: Forbidden| {
        let closed = all.iter().filter(|path| root.forbidden(path) == Some(why));
        closed.cloned().collect::<Vec<_>>().join(", ")
    };
    let (by_cgroup, by_mode) = (of(Forbidden::ByCgroup), of(Forbidden::ByMode));
    if !by_cgroup.is_empty() {
        let fix = "docker: --gpus all --device=/dev/infiniband; Kubernetes: ask for nvidia.com/gpu and for what the RDMA device plugin offers";
        return Some(
            Check::fail(ID, format!("the device cgroup of this container forbids {by_cgroup}"), fix)
                .seen("access() says EPERM"),
        );
    }
    if !by_mode.is_empty() {
        let fix = format!("chmod a+rw {}; for good: a udev rule", by_mode.replace(',', ""));
        return Some(Check::warn(ID, format!("this user may not open {by_mode}"), fix).seen("access() says EACCES"));
    }
    let seen = all.join(", ");
    (!all.is_empty()).then(|| Check::ok(ID, "the device nodes of GPUs and NICs may be opened").seen(seen))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batch_systems_by_their_control_groups() {
        let of = |cgroup: &str| BATCH.iter().find(|(word, _)| has_component(cgroup, word)).map(|(word, _)| *word);
        for (cgroup, wanted) in [
            ("0::/system.slice/flux.service", Some("flux")),
            ("12:memory:/flux-fA2b/job\n0::/user.slice", Some("flux")),
            ("0::/nomad.slice/share.slice/1f-train.scope", Some("nomad")),
            ("0::/nomad/1f-train", Some("nomad")),
            ("0::/pbspro.slice/pbspro-7.slice", Some("pbs")),
            ("0::/system.slice/condor.service/htcondor", Some("condor")),
            ("0::/system.slice/influxdb.service", None),
            ("0::/system.slice/gnomad.service", None),
            ("0::/user.slice/user-1000.slice", None),
        ] {
            assert_eq!(of(cgroup), wanted, "{cgroup}");
        }
    }

    /// Kernels whose page is not 4 KiB, by whatever tells it.
    #[test]
    fn the_size_of_a_page_is_read_where_it_stands() {
        let page = |release: &str, files: &[(&str, &str)]| {
            let dir = tempfile::tempdir().unwrap();
            let all = [("proc/sys/kernel/osrelease", release)].into_iter().chain(files.iter().copied());
            for (path, text) in all {
                let path = dir.path().join(path);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, text).unwrap();
            }
            let root = Root::new(dir.path());
            page_kib(&Machine::look(&root)).map(|(page, _)| page)
        };
        let huge = "sys/kernel/mm/transparent_hugepage/hpage_pmd_size";
        assert_eq!(page("6.8.0-64k", &[(huge, "2097152\n")]), Some(4));
        assert_eq!(page("6.8.0", &[(huge, "536870912\n")]), Some(64));
        assert_eq!(page("6.8.0", &[("boot/config-6.8.0", "CONFIG_ARM64_64K_PAGES=y\n")]), Some(64));
        assert_eq!(page("6.8.0-1015-nvidia-64k", &[]), Some(64));
        assert_eq!(page("5.14.0-503.11.1.el9_5.aarch64+64k", &[]), Some(64));
        assert_eq!(page("5.14.0-503.11.1.el9_5.aarch64+64k-debug", &[]), Some(64));
        assert_eq!(page("6.8.0-1015-nvidia", &[]), None);
        assert_eq!(page("6.4.0-150600.23.7-64kb", &[]), Some(64));
        assert_eq!(page("6.8.0-164k", &[]), None);
    }
}
