// SPDX-License-Identifier: GPL-2.0
//! Section 9: locked memory, device nodes, what is loaded at boot, DKMS.

use super::devices;
use crate::batch::{has_component, is_adopted, is_of_slurm, Batch, SESSION};
use crate::check::Check;
use crate::giver::Unit;
use crate::kernel;
use crate::machine::{Machine, NAME, OFED_MODULE, OLD_MODULE};
use crate::modprobe;
use crate::module_file;
use crate::rights::{has_capability, has_initial_users, is_exempt, is_root, is_root_of, of_status};
use crate::root::Root;
use crate::runtime::{is_here, Runtime};
use crate::setting::SERVICE_ACCOUNT;
use crate::text;

/// A limit below this stops real applications.
const ENOUGH: u64 = 64 << 30;

pub fn checks(machine: &Machine) -> Vec<Check> {
    let mut checks: Vec<Check> = pages(machine).into_iter().collect();
    checks.push(login(machine));
    checks.extend(processes(machine));
    checks.extend(devices::check(machine));
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
            // SUSE writes "kb".
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
    limit_of(root, pid, 0)
}

/// Returns the limit up to which a process may raise its own.
fn hard_limit(root: &Root, pid: &str) -> Option<Option<u64>> {
    limit_of(root, pid, 1)
}

/// Returns a limit of locked memory by its column in /proc/PID/limits: 0 is the soft one, 1 the hard one.
fn limit_of(root: &Root, pid: &str, column: usize) -> Option<Option<u64>> {
    let text = root.text(&format!("/proc/{pid}/limits")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    match line.split_ascii_whitespace().nth(column)? {
        "unlimited" => Some(None),
        bytes => bytes.parse().ok().map(Some),
    }
}

/// Returns the limit of locked memory that binds this process.
pub fn memlock(root: &Root) -> Option<u64> {
    limit(root, "self")?.filter(|_| !is_exempt(root, "self"))
}

/// Returns the lines of a configuration file, and then those of the files in its folder, each with
/// its file.
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
    /// The group whose users alone may lock all memory.
    group: Option<String>,
    /// The line that gives users less, with its file, and how much that is in bytes.
    lowered: Option<(String, String, u64)>,
    /// The line that gives a user or a group less than all get, and may be about this process.
    own: Option<Limit>,
}

impl Configured {
    /// Returns what the files say in the form that a cure needs.
    fn files(&self) -> Files<'_> {
        match (&self.own, &self.allowed, &self.lowered, &self.group) {
            (Some(own), ..) => Files::Own(own),
            (_, Some(_), _, Some(group)) => Files::Group(group),
            (_, Some(_), ..) => Files::Allow,
            (_, None, Some((line, file, _)), _) => Files::Lower(line, file),
            (_, None, None, _) => Files::Silent,
        }
    }
}

/// Reads the files as pam_limits(8) does: of the lines for the same users the last one counts, and that of a user
/// or a group before that of all. What systemd gives to services says nothing of a process in the session of a login.
fn by_configuration(root: &Root, pid: &str) -> Configured {
    let soft = limits_of_users(root, &["-", "soft"]);
    // A soft limit goes no further than the hard one.
    let hard = limits_of_users(root, &["-", "hard"]);
    let of_all = |users: &[Limit]| users.iter().find(|limit| limit.who == "*").cloned();
    let is_low = |limit: &Limit| limit.kib.is_some_and(|kib| kib.saturating_mul(1024) < ENOUGH);
    let low_hard = of_all(&hard).filter(is_low);
    let lowered = low_hard.clone().or_else(|| of_all(&soft).filter(is_low));
    let lowered = lowered.and_then(|limit| Some((limit.line, limit.file, limit.kib?.checked_mul(1024)?)));
    let seen = |limit: &Limit| format!("memlock unlimited in {}", limit.file);
    let users_may = of_all(&soft).filter(|limit| limit.kib.is_none() && low_hard.is_none());
    let users_may = users_may.map(|limit| ("users may lock all memory".to_owned(), seen(&limit)));
    let group_of = |limit: &Limit| limit.who.strip_prefix('@').filter(|_| limit.kib.is_none()).map(str::to_owned);
    let group = soft.iter().find_map(|limit| Some((group_of(limit)?, seen(limit)))).filter(|_| users_may.is_none());
    let group_may = group.clone().map(|(group, seen)| (format!("users of group {group} may lock all memory"), seen));
    let cgroup = root.text(&format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let is_login = has_component(&cgroup, SESSION) || is_adopted(&cgroup);
    let own: Vec<&Limit> =
        soft.iter().chain(&hard).filter(|limit| is_low(limit) && may_be_of(root, pid, &limit.who)).collect();
    let has = |own: &&&Limit| own.kib.and_then(|kib| kib.checked_mul(1024)) == limit(root, pid).flatten();
    // The one whose limit this process has, or else any that may keep it from what all get.
    let own = own.iter().find(has).or_else(|| own.first().filter(|_| users_may.is_some()));
    let own = own.map(|limit| (*limit).clone());
    let services = || {
        let lines = configured(root, "/etc/systemd/system.conf", "/etc/systemd/system.conf.d").into_iter();
        let mut values = lines.filter_map(|(file, line)| {
            let value = line.strip_prefix("DefaultLimitMEMLOCK")?.trim_start().strip_prefix('=')?.trim().to_owned();
            Some((file, value))
        });
        // It may have a soft limit and a hard one.
        let last = values.next_back().filter(|(_, value)| value.split(':').next() == Some("infinity"));
        let (file, _) = last.filter(|_| !is_login)?;
        Some(("services may lock all memory".to_owned(), format!("DefaultLimitMEMLOCK=infinity in {file}")))
    };
    let allowed = users_may.or(group_may).or_else(services);
    Configured { allowed, group: group.map(|(group, _)| group), lowered, own }
}

/// A limit of locked memory in a file of pam_limits.
#[derive(Clone)]
struct Limit {
    /// A user, `@` and a group, or `*` for all users.
    who: String,
    /// The limit in KiB; `None` for no limit.
    kib: Option<u64>,
    line: String,
    file: String,
}

impl Limit {
    /// Returns whom it binds, in words.
    fn whom(&self) -> String {
        let many = if self.who.contains(':') { "s" } else { "" };
        self.who
            .strip_prefix('@')
            .map_or_else(|| format!("user{many} {}", self.who), |group| format!("group{many} {group}"))
    }
}

/// Returns whether a line for a user or a group may be about a process, as far as the files of users and groups
/// tell. One of root is about root alone, and root is asked what others get.
fn may_be_of(root: &Root, pid: &str, who: &str) -> bool {
    // The last is about the number of logins.
    if ["*", "root"].contains(&who) || who.starts_with('%') {
        return false;
    }
    let numbers = |word: &str| {
        let line = of_status(root, pid, word).unwrap_or_default();
        line.split_ascii_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    if let Some((from, to)) = who.trim_start_matches('@').split_once(':') {
        let is_group = who.starts_with('@');
        let own = numbers(if is_group { "Gid:" } else { "Uid:" });
        let is_root = own.is_empty() || is_root_of(root, pid);
        let value = |number: &String| number.parse::<u64>().ok();
        return is_root
            || match (from.parse::<u64>().ok(), to.parse::<u64>().ok()) {
                // One number alone is that of any group of the user.
                (None, Some(one)) if is_group => {
                    [numbers("Groups:"), own].concat().iter().any(|number| value(number) == Some(one))
                }
                (None, Some(one)) => own.iter().any(|number| value(number) == Some(one)),
                (Some(from), to) => {
                    own.iter().filter_map(value).any(|number| from <= number && to.is_none_or(|to| number <= to))
                }
                (None, None) => false,
            };
    }
    let named = |file: &str, number: &String| {
        let text = root.text_once(file).ok()?;
        let mut rows = text.lines().map(|row| row.split(':').collect::<Vec<_>>());
        rows.find_map(|row| {
            (row.get(2) == Some(&number.as_str())).then(|| row.first().map(|name| (*name).to_owned()))?
        })
    };
    let (file, numbers, name) = match who.strip_prefix('@') {
        Some(group) => ("/etc/group", [numbers("Groups:"), numbers("Gid:")].concat(), group),
        None => ("/etc/passwd", numbers("Uid:"), who),
    };
    let names: Vec<Option<String>> = numbers.iter().map(|number| named(file, number)).collect();
    let is_root = numbers.is_empty() || is_root_of(root, pid);
    is_root || names.iter().any(|of| of.as_deref().is_none_or(|of| of == name))
}

/// Returns the limits of these types (`-`, `soft`, `hard`).
fn limits_of_users(root: &Root, types: &[&str]) -> Vec<Limit> {
    let mut users: Vec<Limit> = Vec::new();
    for (file, line) in configured(root, "/etc/security/limits.conf", "/etc/security/limits.d") {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let [who, kind, "memlock", value, ..] = words.as_slice() else { continue };
        if !types.contains(kind) {
            continue;
        }
        let kib = match *value {
            "unlimited" | "infinity" | "-1" => None,
            kib => match kib.parse().ok() {
                Some(kib) => Some(kib),
                None => continue,
            },
        };
        users.retain(|limit| limit.who != *who);
        users.push(Limit { who: (*who).to_owned(), kib, line: words.join(" "), file });
    }
    users
}

/// Judges by the limit that this process has. Files say what others get, or why this one did not get it.
fn login(machine: &Machine) -> Check {
    const ID: &str = "limits.memlock";
    const SEEN: &str = "Max locked memory in /proc/self/limits";
    let root = machine.root;
    let configured = by_configuration(root, "self");
    let cure = || memlock_cure(machine, "self", &configured.files());
    let Configured { allowed, lowered, .. } = &configured;
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
                let less = configured.own.as_ref().map_or(String::new(), |own| {
                    format!("; '{}' in {} gives {} less", own.line, own.file, own.whom())
                });
                Check::ok(ID, format!("no limit binds root; {who} by configuration{less}")).seen(seen).seen(SEEN)
            }
            (None, Some((line, file, limit))) => Check::warn(
                ID,
                format!(
                    "no limit binds root; users that log in may lock {} only by configuration: {COUNTED}",
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
    let here = format!("programs started from here may lock {bytes} only: {COUNTED}");
    let check = match allowed {
        Some((who, _)) => {
            let but = configured.own.as_ref().map_or("this process did not get that".to_owned(), |own| {
                format!("'{}' in {} gives {} less, and counts before the line of all", own.line, own.file, own.whom())
            });
            Check::warn(ID, format!("{here}; {who} by configuration, but {but}"), cure())
        }
        None => {
            let why = match machine.setting.container.is_some() && is_root(root) {
                true if has_capability(root, "self") => {
                    "; this is root with CAP_IPC_LOCK in a user namespace of its own, where that lifts no limit"
                }
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

/// The limit of locked memory that the files of a login set.
enum Files<'a> {
    Allow,
    Silent,
    /// Only users of this group may lock all memory.
    Group(&'a str),
    /// The line that sets a limit, and its file.
    Lower(&'a str, &'a str),
    /// The line of a user or group, which counts before that of all.
    Own(&'a Limit),
}

impl Files<'_> {
    /// Returns what raises the limit of a login.
    fn login(&self) -> String {
        match self {
            Self::Allow => "a shell: log in again, through PAM (sshd: UsePAM yes)".to_owned(),
            Self::Group(group) => format!(
                "usermod -aG {group} USER where the user is not of that group, and log in again, through PAM (sshd: UsePAM yes)"
            ),
            Self::Silent => {
                "echo '* - memlock unlimited' > /etc/security/limits.d/rdma.conf and log in again".to_owned()
            }
            Self::Lower(line, file) => format!(
                "replace '{line}' in {file} by '* - memlock unlimited', as of such lines the last one counts, and log in again"
            ),
            Self::Own(own) => format!(
                "replace '{}' in {} by '{} - memlock unlimited', as the line of a user counts before that of a group, and both before one of '*', and log in again",
                own.line, own.file, own.who
            ),
        }
    }
}

/// The meaning of the limit.
const COUNTED: &str =
    "registering more than that of host memory, or of GPU memory by peer memory, fails with \"Cannot allocate memory\"";

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
    let own_users = !has_initial_users(root, pid);
    // Slurm may run in pods itself.
    if cgroup.contains("kubepods") || own_users && is_here(machine, pid) && root.exists(SERVICE_ACCOUNT) {
        return match own_users {
            true => "no file of a container raises it, and no capability of a user namespace does. Kubernetes: hostUsers: true in the pod's specification, beside securityContext.capabilities.add: [\"IPC_LOCK\"]; or LimitMEMLOCK=infinity in the unit of the container runtime on the node (containerd.service, crio.service), then restart it and the pod".to_owned(),
            false => format!("no file of a container raises it. {KUBERNETES}"),
        };
    }
    if is_adopted(&cgroup) {
        return format!("this session is sshd's, which pam_slurm_adopt put into a job: {}; or run it as a step of the job: srun --overlap --jobid=JOB", files.login());
    }
    if is_of_slurm(&cgroup) {
        return SLURM.to_owned();
    }
    if let Some(batch) = Batch::of(&cgroup) {
        return batch.memlock.to_owned();
    }
    if let Some(runtime) = Runtime::of(machine, pid) {
        return match runtime.memlock() {
            Some(cure) => cure,
            None if !runtime.confines() => {
                let name = match runtime {
                    Runtime::Apptainer => "Apptainer",
                    Runtime::Enroot => "Enroot",
                    _ => "a container that is started without a daemon (Charliecloud)",
                };
                format!("{name} passes on the limit of the shell or job that starts it, so raise it there: {SLURM}; a shell: ulimit -l unlimited, or memlock in /etc/security/limits.d of the host")
            }
            None if own_users => format!("no file of a container raises it, and no capability of a user namespace does: docker run --ulimit memlock=-1, which gets no further than the limit of the daemon: LimitMEMLOCK=infinity in its unit (without root: in a drop-in of user@.service), then restart it. {KUBERNETES}"),
            None => format!("no file of a container raises it: docker run --ulimit memlock=-1 (Compose: ulimits: {{ memlock: -1 }} of its service), or --cap-add=IPC_LOCK for a program that runs as root. {KUBERNETES}"),
        };
    }
    // What systemd's manager of a user starts has that manager's limit; PAM never sees it.
    if cgroup.contains("/user@") {
        return "LimitMEMLOCK=infinity in a drop-in of user@.service (systemctl edit user@.service), then end all sessions of that user and log in again".to_owned();
    }
    if cgroup.contains("/system.slice/") {
        return match Unit::of(root, &cgroup) {
            // A login that has no session of its own shows that sshd did not ask PAM.
            Some(unit) if unit.is_sshd() => {
                "UsePAM yes in sshd_config, so that pam_limits sets the limit of a login, then log in again".to_owned()
            }
            Some(unit) if unit.is_scope() => {
                format!("a scope has the limit of the shell that started it, so raise it there: {}", files.login())
            }
            Some(unit) => unit.with(&["LimitMEMLOCK=infinity".to_owned()]),
            None => SERVICE.to_owned(),
        };
    }
    match files {
        Files::Allow => format!("{SLURM}; {SERVICE}; {}", files.login()),
        Files::Own(_) => files.login(),
        _ => format!("{}; {SERVICE}; {SLURM}", files.login()),
    }
}

/// Finds processes that have an RDMA device open and a limit that will stop them.
fn processes(machine: &Machine) -> Vec<Check> {
    let root = machine.root;
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
            let now = match &machine.setting.container {
                Some(_) => "on the host, not in this container, as root and with the number that the process has there: prlimit --pid NUMBER --memlock=unlimited".to_owned(),
                None => format!("prlimit --pid {pid} --memlock=unlimited"),
            };
            let cure = memlock_cure(machine, &pid, &by_configuration(root, &pid).files());
            let capability = match has_capability(root, &pid) {
                true => format!("CAP_IPC_LOCK of another user namespace (/proc/{pid}/uid_map)"),
                false => format!("no CAP_IPC_LOCK in /proc/{pid}/status"),
            };
            Some(
                Check::warn(
                    "limits.process",
                    format!("process {pid} ({comm}) uses RDMA and may lock {} only: larger registrations fail with \"Cannot allocate memory\"", text::bytes(bytes)),
                    format!("{now}; for good: {cure}"),
                )
                .seen(format!("/proc/{pid}/limits, {capability}")),
            )
        })
        .collect()
}

fn boot(machine: &Machine) -> Check {
    const ID: &str = "limits.autoload";
    let file = |file: String| file.rsplit('/').next().unwrap_or_default().to_owned();
    let is_blacklisted = matches!(modprobe::blocked(machine.root, NAME), Some((_, modprobe::Block::Alias)));
    if is_blacklisted && modprobe::heeds_blacklists(machine.root, NAME) {
        return Check::skip(ID, "what loads the module at boot heeds the blacklist that [module.blocked] names");
    }
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
    if let Some(script) = modprobe::loaded_by_prolog(machine.root, NAME) {
        return Check::ok(ID, "nothing loads the module at boot; Slurm does so before each job, by its prolog")
            .seen(script);
    }
    if machine.old_module_serves() {
        return Check::skip(ID, format!("nothing loads nvidia_peermem at boot; {OLD_MODULE} is loaded in its place"));
    }
    if machine.setting.modules_in_containers() {
        return Check::ok(ID, "the modules of this node come from containers, which load them")
            .seen("/run/nvidia, /run/mellanox");
    }
    if let Some(what) = machine.setting.loads_by_itself() {
        return Check::skip(ID, format!("{what}, which cannot be seen from here"));
    }
    let is_of_image = machine.file.is_none() && machine.setting.adds_packages().is_none();
    if let Some(name) = machine.setting.fixed_system.as_ref().filter(|_| is_of_image) {
        return Check::skip(ID, format!("what {name} loads at boot is in its image"));
    }
    if machine.setting.container.is_some() {
        return Check::skip(ID, "what the host loads at boot cannot be seen from inside a container");
    }
    // A sandbox may show none of these folders.
    if !machine.modules_read && !["/etc", "/lib", "/usr"].iter().any(|folder| machine.root.exists(folder)) {
        return Check::skip(ID, "what is loaded at boot cannot be read").seen("/etc, /lib, /usr");
    }
    Check::warn(
        ID,
        "nothing loads the module at boot",
        "echo nvidia-peermem > /etc/modules-load.d/nvidia-peermem.conf",
    )
    .seen("no nvidia-peermem in modules-load.d, /etc/modules, the lists of the initial RAM disk, rules of udev, softdeps of modprobe.d, the kernel's command line, enabled units of systemd and their scripts, rc.local, @reboot jobs of cron or prologs of Slurm")
}

/// The folder in which DKMS keeps what it knows: package, version, kernel, architecture.
pub const DKMS: &str = "/var/lib/dkms";

/// Returns the module that a package of DKMS is for, if that is the GPU driver, the RDMA core or this project's
/// module, and the one that tells its version when it is loaded.
fn brings(package: &str) -> Option<(&'static str, &'static str)> {
    match package {
        // GPUDirect Storage, which registers nothing.
        "nvidia-fs" => None,
        _ if package.starts_with("nvidia-peermem") => Some((NAME, NAME)),
        _ if package.starts_with("nvidia") => Some(("nvidia", "nvidia")),
        _ if package.starts_with("mlnx-of") => Some((OFED_MODULE, "mlx5_core")),
        _ => None,
    }
}

/// A package that DKMS could build for kernels that have no such module.
pub struct Unbuilt {
    /// Package and version, as DKMS takes them.
    package: String,
    /// The kernels that have none, the running one first.
    kernels: Vec<String>,
}

impl Unbuilt {
    /// Returns the command that builds the package for the first kernel that has none.
    pub fn command(&self) -> String {
        let first = self.kernels.first().map_or("", |kernel| kernel.as_str());
        format!("dkms install {} -k {first} (it needs that kernel's headers)", self.package)
    }

    /// Returns whether the running kernel has none.
    fn is_missed(&self, machine: &Machine) -> bool {
        self.kernels.first() == machine.release.as_ref()
    }
}

/// The versions of one module that DKMS knows, each as package/version.
struct Known {
    module: &'static str,
    /// The module that tells which version is loaded.
    versioned: &'static str,
    packages: Vec<String>,
}

fn known_to_dkms(root: &Root) -> Vec<Known> {
    let is_version = |name: &String| name.starts_with(|c: char| c.is_ascii_digit());
    let mut all: Vec<Known> = Vec::new();
    for package in root.names(DKMS) {
        let Some((module, versioned)) = brings(&package) else { continue };
        let versions = root.names(&format!("{DKMS}/{package}")).into_iter().filter(is_version);
        let versions = versions.map(|version| format!("{package}/{version}"));
        match all.iter_mut().find(|known| known.module == module) {
            Some(known) => known.packages.extend(versions),
            None => all.push(Known { module, versioned, packages: versions.collect() }),
        }
    }
    all.retain(|known| !known.packages.is_empty());
    all
}

/// Returns the kernels that run now or may be booted next.
fn kernels(machine: &Machine) -> Vec<String> {
    let Some(running) = &machine.release else { return Vec::new() };
    std::iter::once(running.clone()).chain(kernel::newer(machine.root, running)).collect()
}

/// Returns the version of a package of DKMS, which is named package/version, as numbers.
fn number(package: &str) -> Vec<u64> {
    kernel::numbers(package.rsplit('/').next().unwrap_or_default())
}

/// Returns what DKMS could build for kernels for which it has built no version of a module. A version that it has
/// not built beside another one is left over from an update, or waits for one.
fn unbuilt_of(machine: &Machine, known: &Known) -> Option<Unbuilt> {
    let root = machine.root;
    let kernels = kernels(machine);
    let built_for =
        |release: &String| known.packages.iter().find(|package| root.exists(&format!("{DKMS}/{package}/{release}")));
    // This prefers the version in use, and else the newest.
    let loaded = root.line(&format!("/sys/module/{}/version", known.versioned)).map(|text| kernel::numbers(&text));
    let is_loaded = |package: &&String| {
        let loaded = loaded.as_deref().filter(|loaded| !loaded.is_empty());
        loaded.is_some_and(|loaded| number(package).windows(loaded.len()).any(|part| part == loaded))
    };
    let in_use = kernels.iter().find_map(built_for).or_else(|| known.packages.iter().find(is_loaded));
    let package = in_use.or_else(|| known.packages.iter().max_by_key(|package| number(package)))?.clone();
    let missing: Vec<String> = kernels.into_iter().filter(|release| built_for(release).is_none()).collect();
    (!missing.is_empty()).then_some(Unbuilt { package, kernels: missing })
}

/// Returns what DKMS could build of a module that the running kernel does not have.
pub fn unbuilt(machine: &Machine, module: &str) -> Option<Unbuilt> {
    if machine.setting.modules_in_containers() {
        return None;
    }
    let known = known_to_dkms(machine.root).into_iter().find(|known| known.module == module)?;
    unbuilt_of(machine, &known).filter(|unbuilt| unbuilt.is_missed(machine))
}

/// Checks whether DKMS has built the neighbours (the GPU driver, OFED) for this kernel and for
/// those that may be booted next.
fn dkms(machine: &Machine) -> Vec<Check> {
    const ID: &str = "limits.dkms";
    // What DKMS builds on the host is not what such a node loads.
    if machine.setting.modules_in_containers() || machine.release.is_none() {
        return Vec::new();
    }
    // The check that names the same module as missing is the cause.
    let cause = |known: &Known| match known.module {
        "nvidia" => "driver.loaded",
        OFED_MODULE => "api.exported",
        _ => "module.file",
    };
    let check = |known: Known| {
        let unbuilt = unbuilt_of(machine, &known);
        let follows = unbuilt.as_ref().filter(|unbuilt| unbuilt.is_missed(machine)).map(|_| cause(&known));
        let check = match unbuilt {
            None => Check::ok(
                ID,
                format!("DKMS has built one of {} for {}", known.packages.join(", "), kernels(machine).join(", ")),
            ),
            Some(unbuilt) => Check::warn(
                ID,
                format!("DKMS has not built {} for kernel {}", unbuilt.package, unbuilt.kernels.join(", ")),
                unbuilt.command(),
            ),
        };
        Check { follows, ..check.seen(DKMS) }
    };
    known_to_dkms(machine.root).into_iter().filter(|known| !is_left(machine, known)).map(check).collect()
}

/// Returns whether DKMS knows only older versions of the GPU driver than the one that runs, and has built none of
/// them: what is left of an update is not to be installed over a driver that came otherwise.
fn is_left(machine: &Machine, known: &Known) -> bool {
    let root = machine.root;
    let was_built = |package: &String| {
        let names = root.names(&format!("{DKMS}/{package}"));
        names.iter().any(|name| name.starts_with(|first: char| first.is_ascii_digit()))
    };
    let runs = root.line(&format!("/sys/module/{}/version", known.versioned)).map(|version| kernel::numbers(&version));
    let is_older = |package: &String| runs.as_ref().is_some_and(|runs| number(package) < *runs);
    // Where no file of it is installed for this kernel, DKMS is to build what it has.
    let has_file = |release: &String| module_file::chosen(root, release, "nvidia").is_some();
    known.module == "nvidia"
        && machine.release.as_ref().is_some_and(has_file)
        && known.packages.iter().all(|package| is_older(package) && !was_built(package))
}

#[cfg(test)]
mod tests {
    use super::*;

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
