// SPDX-License-Identifier: GPL-2.0
//! The admin's configuration of modprobe, depmod and systemd-modules-load.

use crate::root::{Root, OS_RELEASE};
use crate::variables::{assignment, split_words, Variables};

// The folders of modprobe.d(5), modules-load.d(5), udev(7) and systemd.unit(5), the first one
// first.
pub const MODPROBE: [&str; 5] =
    ["/etc/modprobe.d", "/run/modprobe.d", "/usr/local/lib/modprobe.d", "/usr/lib/modprobe.d", "/lib/modprobe.d"];
pub const MODULES_LOAD: [&str; 5] = [
    "/etc/modules-load.d",
    "/run/modules-load.d",
    "/usr/local/lib/modules-load.d",
    "/usr/lib/modules-load.d",
    "/lib/modules-load.d",
];

/// The words that say where a boot loader has the kernel's command line, and how to change it
/// there.
pub const GRUB: &str = " (GRUB_CMDLINE_LINUX in /etc/default/grub, then update-grub or grub2-mkconfig)";

/// A line of a configuration file.
pub struct Line {
    pub file: String,
    pub text: String,
}

/// Joins lines that end with a backslash with those that follow.
fn continued(text: &str) -> String {
    text.replace("\\\r\n", " ").replace("\\\n", " ")
}

fn lines(root: &Root, dirs: &[&str]) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut seen = Vec::new();
    for dir in dirs {
        for name in root.names(dir).into_iter().filter(|name| name.ends_with(".conf")) {
            // A file hides those of the same name in later directories.
            if seen.contains(&name) {
                continue;
            }
            let file = format!("{dir}/{name}");
            seen.push(name);
            let text = continued(&root.text(&file).unwrap_or_default());
            lines.extend(
                text.lines()
                    .map(str::trim)
                    .filter(|line| !line.is_empty() && !line.starts_with(['#', ';']))
                    .map(|line| Line { file: file.clone(), text: line.to_owned() }),
            );
        }
    }
    lines
}

fn is(word: Option<&str>, module: &str) -> bool {
    word.is_some_and(|word| word.replace('-', "_") == module)
}

/// Returns the `options` of a module: line, name and value of each.
pub fn options(root: &Root, module: &str) -> Vec<(Line, String, String)> {
    let mut found = Vec::new();
    for line in lines(root, &MODPROBE) {
        let text = line.text.clone();
        let mut words = text.split_ascii_whitespace();
        if words.next() == Some("options") && is(words.next(), module) {
            for option in words {
                let (name, value) = option.split_once('=').unwrap_or((option, ""));
                let line = Line { file: line.file.clone(), text: line.text.clone() };
                found.push((line, name.to_owned(), value.to_owned()));
            }
        }
    }
    found
}

/// Returns the line that keeps modprobe from loading a module: `blacklist`, or `install` with a
/// command that loads nothing. A word of the kernel's command line that does the same counts, too.
pub fn blocked(root: &Root, module: &str) -> Option<(Line, Block)> {
    let of_line = |line: Line| {
        let mut words = line.text.split_ascii_whitespace();
        let verb = words.next().map(str::to_owned);
        if !is(words.next(), module) {
            return None;
        }
        let nothing = loads_nothing(&words.collect::<Vec<_>>().join(" "));
        match verb.as_deref() {
            Some("blacklist") => Some((line, Block::Alias)),
            Some("install") if nothing => Some((line, Block::Always)),
            _ => None,
        }
    };
    let of_kernel = || by_kernel(root, module).map(|line| (line, Block::Kernel));
    let of_modprobe = || by_command_line(root, &[ALIAS_LIST], module).map(|line| (line, Block::Alias));
    of_kernel().or_else(|| lines(root, &MODPROBE).into_iter().find_map(of_line)).or_else(of_modprobe)
}

/// Returns the module, with underscores, that an `install` line loads in the place of another one:
/// `install nvidia-peermem modprobe nvidia ; modprobe -i nvidia-current-peermem $CMDLINE_OPTS`.
pub fn installed_as(root: &Root, module: &str) -> Option<String> {
    let of_line = |line: Line| {
        let mut words = line.text.split_ascii_whitespace();
        let is_it = words.next() == Some("install") && is(words.next(), module);
        let mut words = words.skip_while(|word| !["-i", "--ignore-install"].contains(word)).skip(1);
        words.next().filter(|_| is_it).map(|other| other.replace('-', "_"))
    };
    lines(root, &MODPROBE).into_iter().find_map(of_line)
}

/// Returns whether the command of an `install` line loads nothing, with a shell around it or not.
fn loads_nothing(command: &str) -> bool {
    const IDLE: [&str; 6] = ["false", "true", ":", "exit", "echo", "logger"];
    const SHELLS: [&str; 4] = ["sh", "bash", "dash", "-c"];
    let name = |word: &str| word.rsplit('/').next().unwrap_or_default().to_owned();
    let mut words = command.split(|c: char| c.is_whitespace() || "\"';&|".contains(c)).filter(|word| !word.is_empty());
    let loader = words.clone().any(|word| LOADERS.contains(&name(word).as_str()));
    let first = words.find(|word| !SHELLS.contains(&name(word).as_str()));
    !loader && first.is_some_and(|first| IDLE.contains(&name(first).as_str()))
}

/// The beginnings of words of the kernel's command line that list modules to load: systemd's, then
/// dracut's.
const LOADED_LISTS: [&str; 5] =
    ["modules_load=", "modules-load=", "rd.modules_load=", "rd.driver.pre=", "rd.driver.post="];
/// The beginnings of words that list modules to keep out: modprobe's, and the kernel's own.
const ALIAS_LIST: &str = "modprobe.blacklist=";
const KERNEL_LIST: &str = "module_blacklist=";

/// Returns whether a word of the kernel's command line lists a module, to load it or to keep it
/// out, or takes the place of a word that does.
pub fn is_list_of(word: &str, module: &str) -> bool {
    word.starts_with(KERNEL_LIST) || LOADED_LISTS.iter().chain([&ALIAS_LIST]).any(|start| lists(word, start, module))
}

fn lists(word: &str, start: &str, module: &str) -> bool {
    word.strip_prefix(start).is_some_and(|list| list.split(',').any(|name| is(Some(name), module)))
}

/// Returns the word of the kernel's command line that begins so and lists a module.
fn by_command_line(root: &Root, starts: &[&str], module: &str) -> Option<Line> {
    let words = root.line(COMMAND_LINE).unwrap_or_default();
    let is_it = |word: &&str| starts.iter().any(|start| lists(word, start, module));
    let text = words.split_ascii_whitespace().find(is_it)?.to_owned();
    Some(Line { file: COMMAND_LINE.to_owned(), text })
}

/// Returns the word of the kernel's command line that has the kernel refuse a module. Of several
/// words it takes the last, and it compares letter by letter (blacklisted() of kernel/module/main.c
/// of 7.2), with underscores in the module's name.
fn by_kernel(root: &Root, module: &str) -> Option<Line> {
    let words = root.line(COMMAND_LINE).unwrap_or_default();
    let last = words.split_ascii_whitespace().rfind(|word| word.starts_with(KERNEL_LIST))?;
    let is_in_it = last.strip_prefix(KERNEL_LIST)?.split(',').any(|name| name == module);
    is_in_it.then(|| Line { file: COMMAND_LINE.to_owned(), text: last.to_owned() })
}

/// Returns whether the kernel was booted with a parameter, whatever its value.
pub fn is_on_command_line(root: &Root, parameter: &str) -> bool {
    let words = root.line(COMMAND_LINE).unwrap_or_default();
    words.split_ascii_whitespace().any(|word| word.split('=').next() == Some(parameter))
}

/// The way in which a module is kept from being loaded.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Block {
    /// It is not loaded by alias or at boot; `modprobe NAME` loads it.
    Alias,
    /// Modprobe never loads it.
    Always,
    /// The kernel refuses it, whoever loads it.
    Kernel,
    /// SUSE's modprobe loads no module that SUSE does not support, unless it is told to (`--allow-unsupported`).
    Unsupported,
}

/// The word of SUSE's modprobe that has it load modules that SUSE does not support, or not.
pub const UNSUPPORTED: &str = "allow_unsupported_modules";

/// Returns the line that has SUSE's modprobe load no modules that SUSE does not support ("Managing kernel modules" of
/// SUSE's administration guide). The modprobe of other systems does not know that word.
pub fn keeps_unsupported_out(root: &Root) -> Option<Line> {
    let release = root.text(OS_RELEASE).unwrap_or_default();
    let is_of_suse = |line: &str| {
        let is_key = line.starts_with("ID=") || line.starts_with("ID_LIKE=");
        is_key && ["suse", "sles", "sled", "sle-", "sle_", "sl-micro"].iter().any(|word| line.contains(word))
    };
    let value = |line: &Line| line.text.strip_prefix(UNSUPPORTED).map(|value| value.trim().to_owned());
    let last = lines(root, &MODPROBE).into_iter().rev().find(|line| value(line).is_some())?;
    (release.lines().any(is_of_suse) && value(&last).as_deref() == Some("0")).then_some(last)
}

impl Line {
    /// Returns what undoes a line that keeps a module out.
    pub fn undo(&self, block: Block) -> String {
        match block {
            Block::Unsupported if self.file.starts_with("/etc/") => {
                format!("write '{UNSUPPORTED} 1' in the place of that line in {}", self.file)
            }
            Block::Unsupported => {
                let name = self.file.rsplit('/').next().unwrap_or_default();
                format!(
                    "write '{UNSUPPORTED} 1' into /etc/modprobe.d/{name}, which hides the file of that name elsewhere"
                )
            }
            _ => self.take_out(),
        }
    }

    /// Returns what takes a line out.
    pub fn take_out(&self) -> String {
        match self.file.as_str() {
            COMMAND_LINE => {
                format!("take the module out of {} on the kernel's command line{GRUB}, and reboot", self.text)
            }
            file => format!("take that line out of {file}"),
        }
    }
}

/// The command line with which the kernel was booted.
pub const COMMAND_LINE: &str = "/proc/cmdline";

/// The service of systemd that reads lists of modules: those of modules-load.d, /etc/modules on Debian, and
/// those of the kernel's command line.
pub const LISTS_SERVICE: &str = "/etc/systemd/system/systemd-modules-load.service";

/// Returns whether that service runs: the admin may have masked it.
fn reads_lists(root: &Root) -> bool {
    root.link_name(LISTS_SERVICE).as_deref() != Some("null")
}

/// Returns whether the system reads /etc/modules, as Debian and those made after it do; Red Hat's and SUSE's do not.
fn reads_etc_modules(root: &Root) -> bool {
    let release = root.text(OS_RELEASE).unwrap_or_default();
    let mut ids = release.lines().filter(|line| line.starts_with("ID=") || line.starts_with("ID_LIKE="));
    !ids.any(|line| ["rhel", "fedora", "suse"].iter().any(|name| line.contains(name)))
}

/// Returns the file that has a module loaded at boot.
pub fn loaded_at_boot(root: &Root, module: &str) -> Option<String> {
    let lists = if reads_lists(root) { lines(root, &MODULES_LOAD) } else { Vec::new() };
    let conf = lists.into_iter().find(|line| is(Some(&line.text), module)).map(|line| line.file);
    conf.or_else(|| {
        if !reads_lists(root) {
            return None;
        }
        let etc = root.text("/etc/modules").ok().filter(|_| reads_etc_modules(root)).unwrap_or_default();
        etc.lines().any(|line| is(line.split_ascii_whitespace().next(), module)).then(|| "/etc/modules".to_owned())
    })
    .or_else(|| loaded_by_initrd(root, module))
}

/// Returns the file that has the initial RAM disk load a module: of initramfs-tools, dracut or mkinitcpio.
fn loaded_by_initrd(root: &Root, module: &str) -> Option<String> {
    const FOLDERS: [&str; 3] = ["/etc/dracut.conf.d", "/usr/lib/dracut/dracut.conf.d", "/etc/mkinitcpio.conf.d"];
    let names = |list: &str| {
        list.split(|c: char| c.is_whitespace() || "\"'()=+".contains(c)).any(|word| is(Some(word), module))
    };
    let tools = "/etc/initramfs-tools/modules";
    let listed = |line: &str| is(line.split_ascii_whitespace().next(), module);
    if root.text(tools).unwrap_or_default().lines().any(listed) {
        return Some(tools.to_owned());
    }
    let of_dir = FOLDERS.iter().flat_map(|dir| root.names(dir).into_iter().map(move |name| format!("{dir}/{name}")));
    let files = of_dir.chain(["/etc/dracut.conf".to_owned(), "/etc/mkinitcpio.conf".to_owned()]);
    let forces = |line: &str| {
        let line = line.trim();
        ["force_drivers", "MODULES=", "MODULES+="].iter().any(|start| line.starts_with(start)) && names(line)
    };
    files.into_iter().find(|file| root.text(file).unwrap_or_default().lines().any(forces))
}

pub const UDEV: [&str; 5] = [
    "/etc/udev/rules.d",
    "/run/udev/rules.d",
    "/usr/local/lib/udev/rules.d",
    "/usr/lib/udev/rules.d",
    "/lib/udev/rules.d",
];
pub const UNITS: [&str; 5] = [
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
];
/// Programs that load modules.
const LOADERS: [&str; 3] = ["modprobe", "kmod", "insmod"];

/// Returns whether a command such as `/sbin/modprobe -q nvidia-peermem`, udev's `kmod load`, or one of
/// several in a line, loads a module.
fn loads(command: &str, module: &str) -> bool {
    let names = |text: &str| text.split(is_between).any(|word| is(Some(stem(word)), module));
    // for m in nvidia-uvm nvidia-peermem; do modprobe $m; done
    let mut list = "";
    command.split([';', '&', '|']).any(|part| {
        match part.split_once("for ") {
            Some((_, after)) => list = after,
            None if part.trim() == "done" => list = "",
            None => {}
        }
        named_to_a_loader(part).is_some_and(|rest| names(&rest) || rest.contains('$') && names(list))
    })
}

/// Returns the module's name in a word such as /lib/modules/7.2.13/updates/nvidia-peermem.ko.zst.
fn stem(word: &str) -> &str {
    let name = word.rsplit('/').next().unwrap_or(word);
    name.split_once(".ko").map_or(name, |(name, _)| name)
}

fn is_between(c: char) -> bool {
    c.is_whitespace() || "\"',".contains(c)
}

/// Returns what follows a program that loads the modules which it names; `None` where there is none, or it
/// removes them, or says only what it would do.
fn named_to_a_loader(command: &str) -> Option<String> {
    const ELSE: [&str; 5] = ["--remove", "unload", "--dry-run", "--show", "--show-depends"];
    let words: Vec<&str> = command.split(is_between).collect();
    let at = words.iter().position(|word| LOADERS.contains(&word.rsplit('/').next().unwrap_or_default()))?;
    let rest = words.get(at + 1..)?;
    // -r, -n and -D, also among others: -rf
    let is_short = |word: &str| word.starts_with('-') && !word.starts_with("--") && word.contains(['r', 'n', 'D']);
    (!rest.iter().any(|word| ELSE.contains(word) || is_short(word))).then(|| rest.join(" "))
}

/// Returns the line of a udev rule that loads a module, by a program or by a unit of systemd.
pub fn loaded_by_udev(root: &Root, module: &str) -> Option<Line> {
    let mut seen = Vec::new();
    for dir in UDEV {
        for name in root.names(dir).into_iter().filter(|name| name.ends_with(".rules")) {
            // A file hides those of the same name in later directories.
            if seen.contains(&name) {
                continue;
            }
            let file = format!("{dir}/{name}");
            seen.push(name);
            let text = continued(&root.text(&file).unwrap_or_default());
            let mut rules = text.lines().map(str::trim).filter(|line| !line.starts_with('#'));
            if let Some(rule) = rules.find(|rule| rule_loads(root, rule, module)) {
                return Some(Line { text: rule.to_owned(), file });
            }
        }
    }
    None
}

/// Returns whether a rule of udev loads a module when its device appears, as all do at boot.
pub fn rule_loads(root: &Root, rule: &str, module: &str) -> bool {
    if !is_at_boot(rule) {
        return false;
    }
    let by_program = || loads(rule, module) || rule_scripts(rule).any(|script| script_loads(root, script, module));
    let by_unit = || rule_units(rule).any(|unit| unit_loads(root, unit, module));
    rule.contains("RUN") && by_program() || by_unit()
}

/// Returns whether a rule of udev is for what devices do at boot: they are added, bound to a driver, changed.
fn is_at_boot(rule: &str) -> bool {
    const AT_BOOT: [&str; 3] = ["add", "bind", "change"];
    let list = |compared: &str| {
        let value = rule.split_once("ACTION")?.1.trim_start().strip_prefix(compared)?;
        value.trim_start().trim_start_matches('"').split('"').next()
    };
    let names = |list: &str, action: &str| {
        list.split('|')
            .any(|name| name == action || name.strip_suffix('*').is_some_and(|start| action.starts_with(start)))
    };
    match (list("=="), list("!=")) {
        (Some(list), _) => AT_BOOT.iter().any(|action| names(list, action)),
        (None, Some(list)) => !AT_BOOT.iter().all(|action| names(list, action)),
        (None, None) => true,
    }
}

/// Returns the programs that a rule of udev runs.
pub fn rule_scripts(rule: &str) -> impl Iterator<Item = &str> {
    rule.split("RUN").skip(1).flat_map(|run| run.split(is_between)).filter(|word| word.starts_with('/'))
}

/// Returns the units that a rule of udev has systemd start, by a property or by systemctl.
pub fn rule_units(rule: &str) -> impl Iterator<Item = &str> {
    let wanted = rule.split("SYSTEMD_WANTS}").skip(1).filter_map(|rest| rest.split('"').nth(1));
    let run = rule.split("RUN").skip(1).filter(|run| run.contains("systemctl") && run.contains("start"));
    let started = run.flat_map(|run| run.split(is_between)).filter(|word| word.ends_with(".service"));
    wanted.flat_map(str::split_whitespace).chain(started)
}

/// Returns the line that has modprobe load a module by its name, which heeds no `blacklist`.
pub fn loaded_by_name(root: &Root, module: &str) -> Option<Line> {
    let by_name = |line: &Line| line.file != COMMAND_LINE && !by_alias(&line.file) && !by_alias(&line.text);
    let softdep = softdeps(root, module).into_iter().next().map(|(line, _)| line);
    let service = || loaded_by_service(root, module).filter(by_name);
    softdep.or_else(|| loaded_by_udev(root, module).filter(by_name)).or_else(service)
}

/// Returns whether something loads a module at boot, and all that does heeds a `blacklist`: systemd's service for
/// lists of modules, its template, and udev's own loader.
pub fn heeds_blacklists(root: &Root, module: &str) -> bool {
    let loads = loaded_at_boot(root, module).is_some()
        || loaded_by_udev(root, module).is_some()
        || loaded_by_service(root, module).is_some();
    loads && loaded_by_name(root, module).is_none()
}

/// Returns whether a line or a unit loads modules as an alias does: modprobe@.service has `modprobe -abq`.
fn by_alias(text: &str) -> bool {
    let is_short = |word: &str| word.starts_with('-') && !word.starts_with("--") && word.contains('b');
    let asks = || text.split(is_between).any(|word| word == "--use-blacklist" || is_short(word));
    text.contains("modprobe@") || text.contains("kmod load") || text.contains("modprobe ") && asks()
}

/// Returns the softdeps, and the install commands, of other modules that bring a module along, each with
/// that other module. A weakdep is for those who build an image: nobody loads a module by it.
pub fn softdeps(root: &Root, module: &str) -> Vec<(Line, String)> {
    let of = |line: Line| {
        let mut words = line.text.split_ascii_whitespace();
        let (verb, other) = (words.next()?, words.next()?.to_owned());
        let brings = match verb {
            "softdep" => words.any(|word| is(Some(word), module)),
            "install" => loads(&words.collect::<Vec<_>>().join(" "), module),
            _ => false,
        };
        (brings && !is(Some(&other), module)).then_some((line, other))
    };
    lines(root, &MODPROBE).into_iter().filter_map(of).collect()
}

/// Returns the line of an enabled service of systemd, or of the kernel's command line, that loads a
/// module.
pub fn loaded_by_service(root: &Root, module: &str) -> Option<Line> {
    // Words that begin with rd. are for the initial RAM disk, which has a service of its own.
    let is_read = |list: &&str| list.starts_with("rd.") || reads_lists(root);
    let lists: Vec<&str> = LOADED_LISTS.into_iter().filter(|list| is_read(list)).collect();
    if let Some(line) = by_command_line(root, &lists, module) {
        return Some(line);
    }
    let wants = enabled_units(root);
    // systemd's own template loads the module that it is enabled for.
    if let Some(unit) = wants.iter().find(|unit| is_template_of(unit, module)) {
        return Some(Line { file: unit.to_owned(), text: "is wanted at boot".to_owned() });
    }
    let unit = wants.iter().find_map(|unit| by_unit(root, unit, module));
    // This does not look whether their unit is started at boot: nobody adds to a unit that is not.
    let drop_ins = || drop_ins(root).find_map(|file| by_unit_file(root, file, "", module));
    let others = || by_script(root, module).or_else(|| by_cron(root, module)).or_else(|| by_cloud_init(root, module));
    unit.or_else(drop_ins).or_else(others)
}

/// Returns the files that add to units of systemd.
pub fn drop_ins(root: &Root) -> impl Iterator<Item = String> + '_ {
    let dirs = UNITS.iter().flat_map(|dir| {
        let names = root.names(dir).into_iter().filter(|name| name.ends_with(".d"));
        names.map(move |name| format!("{dir}/{name}"))
    });
    let files = dirs.flat_map(|dir| root.names(&dir).into_iter().map(move |name| format!("{dir}/{name}")));
    files.filter(|file| file.ends_with(".conf"))
}

/// Returns the service that a unit starts: itself, or what a timer or path is for.
pub fn service_of(root: &Root, unit: &str) -> Option<String> {
    if unit.ends_with(".service") {
        return Some(unit.to_owned());
    }
    let stem = unit.strip_suffix(".timer").or_else(|| unit.strip_suffix(".path"))?;
    let text = root.text(&file_of(root, unit)?).unwrap_or_default();
    let named = text.lines().find_map(|line| line.trim().strip_prefix("Unit="));
    Some(named.map_or(format!("{stem}.service"), |named| named.trim().to_owned()))
}

/// Returns the file of a unit, or of the template that it is of; `None` where it is masked.
fn file_of(root: &Root, unit: &str) -> Option<String> {
    let of = |unit: &str| {
        let mut files = UNITS.iter().map(|dir| format!("{dir}/{unit}"));
        files.find(|file| root.exists(file) || root.link_name(file).is_some())
    };
    let template = || Some(format!("{}@.service", unit.strip_suffix(".service")?.split_once('@')?.0));
    of(unit).or_else(|| of(&template()?)).filter(|file| root.link_name(file).as_deref() != Some("null"))
}

fn unit_loads(root: &Root, unit: &str, module: &str) -> bool {
    is_template_of(unit, module) || by_unit(root, unit, module).is_some()
}

/// Returns the line by which a unit loads a module.
fn by_unit(root: &Root, unit: &str, module: &str) -> Option<Line> {
    let service = service_of(root, unit)?;
    let instance = service.strip_suffix(".service").and_then(|name| name.split_once('@')).map_or("", |(_, name)| name);
    by_unit_file(root, file_of(root, &service)?, instance, module)
}

/// Returns the line of a unit's file, or of one that adds to it, that loads a module.
pub fn by_unit_file(root: &Root, file: String, instance: &str, module: &str) -> Option<Line> {
    let text = continued(&root.text(&file).ok()?);
    // In a template, these names stand for what it is enabled for.
    let text = ["%i", "%I", "%j"].iter().fold(text, |text, name| text.replace(name, &instance.replace("\\x2d", "-")));
    let mut lines = text.lines().map(str::trim);
    if let Some(line) = lines.clone().find(|line| pulls(root, line, module)) {
        return Some(Line { text: line.to_owned(), file });
    }
    let variables = variables_of(root, &file);
    let line = lines.find(|line| line.starts_with("ExecStart") && started(root, line, &variables, module))?;
    Some(Line { text: line.to_owned(), file })
}

/// Returns the variables that systemd gives the programs of a unit, by any file of that unit.
fn variables_of(root: &Root, file: &str) -> Variables {
    // A file that adds to a unit is in the folder UNIT.d.
    let mut names = file.rsplit('/').map(|name| name.strip_suffix(".d").unwrap_or(name));
    let unit = names.find(|name| !name.ends_with(".conf")).unwrap_or_default();
    let own = UNITS.iter().map(|dir| format!("{dir}/{unit}")).find(|file| root.exists(file));
    let added = UNITS
        .iter()
        .map(|dir| format!("{dir}/{unit}.d"))
        .flat_map(|folder| root.names(&folder).into_iter().map(move |name| format!("{folder}/{name}")));
    let mut variables = Variables::new();
    for text in own.into_iter().chain(added).filter_map(|file| root.text(&file).ok()) {
        for (key, value) in continued(&text).lines().filter_map(|line| line.split_once('=')) {
            match key.trim() {
                "Environment" => variables.extend(split_words(value).iter().filter_map(|word| assignment(word))),
                ENVIRONMENT_FILE => variables.extend(assigned(root, &environment_file(value))),
                _ => {}
            }
        }
    }
    variables
}

/// The key of a unit that names a file of variables.
pub const ENVIRONMENT_FILE: &str = "EnvironmentFile";

/// Returns the file that such a key names; one with a hyphen in front may be missing.
pub fn environment_file(value: &str) -> String {
    value.trim().trim_start_matches('-').trim_matches('"').to_owned()
}

/// Returns the variables that a file assigns line by line, such as a list in /etc/default or a script.
fn assigned(root: &Root, file: &str) -> Variables {
    of_lines(&root.text(file).unwrap_or_default())
}

/// Returns the variables that the lines of a text assign: each line that is nothing else, with or without `export`.
fn of_lines(text: &str) -> Variables {
    let of = |line: &str| match split_words(line.trim().trim_end_matches(';')).as_slice() {
        [word] => assignment(word),
        [export, word] if export == "export" => assignment(word),
        _ => None,
    };
    let text = continued(text);
    text.lines().filter(|line| !line.trim_start().starts_with(['#', ';'])).filter_map(of).collect()
}

/// Returns a command with the values of variables in the place of `$NAME` and `${NAME}`.
fn filled_in(command: &str, variables: &Variables) -> String {
    let mut parts = command.split('$');
    let mut filled = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let is_outside = |c: char| !c.is_ascii_alphanumeric() && c != '_';
        let bare = || part.split_at(part.find(is_outside).unwrap_or(part.len()));
        let (name, rest) = part.strip_prefix('{').and_then(|braced| braced.split_once('}')).unwrap_or_else(bare);
        match variables.get(name) {
            Some(value) => filled.extend([value.as_str(), rest]),
            None => filled.extend(["$", part]),
        }
    }
    filled
}

/// Returns the names of the units that others of systemd want or require by a link, as enabled ones
/// are.
pub fn enabled_units(root: &Root) -> Vec<String> {
    let of_dir = |dir: &&str| {
        let names = root.names(dir).into_iter().filter(|name| name.ends_with(".wants") || name.ends_with(".requires"));
        names.flat_map(|name| root.names(&format!("{dir}/{name}"))).collect::<Vec<_>>()
    };
    UNITS.iter().flat_map(of_dir).collect()
}

/// Returns whether a unit is systemd's template modprobe@.service for a module.
pub fn is_template_of(unit: &str, module: &str) -> bool {
    let name = unit.strip_prefix("modprobe@").and_then(|name| name.strip_suffix(".service"));
    name.is_some_and(|name| is(Some(&name.replace("\\x2d", "-")), module))
}

/// Returns the units that a line of a unit has systemd start with that unit.
pub fn pulled(line: &str) -> impl Iterator<Item = &str> {
    const KEYS: [&str; 4] = ["Wants", "Requires", "BindsTo", "Upholds"];
    let units = line.split_once('=').filter(|(key, _)| KEYS.contains(&key.trim())).map_or("", |(_, units)| units);
    units.split_ascii_whitespace()
}

/// Returns whether a line of a unit has systemd's template, or a service that loads a module by a line of
/// its own, started with it.
pub fn pulls(root: &Root, line: &str, module: &str) -> bool {
    pulled(line).any(|unit| {
        let of_service = || {
            let file = file_of(root, unit)?;
            let (text, variables) = (continued(&root.text(&file).ok()?), variables_of(root, &file));
            let is_it = |line: &str| line.starts_with("ExecStart") && started(root, line, &variables, module);
            Some(text.lines().map(str::trim).any(is_it))
        };
        is_template_of(unit, module) || of_service() == Some(true)
    })
}

/// Returns whether a line such as `ExecStart=/bin/sh -c "modprobe nvidia-peermem"` loads a module,
/// by itself or by the script that it names.
fn started(root: &Root, line: &str, variables: &Variables, module: &str) -> bool {
    let line = filled_in(line, variables);
    let command = line.split_once('=').map_or("", |(_, command)| command);
    loads(command, module) || script_with(root, &line, variables, module).is_some()
}

/// Returns the script that a line `ExecStart=...` of a unit runs, if it loads a module.
pub fn script_that_loads(root: &Root, line: &str, module: &str) -> Option<String> {
    script_with(root, line, &Variables::new(), module)
}

/// Returns the script that a line of a unit runs, if it loads a module with these variables.
fn script_with(root: &Root, line: &str, variables: &Variables, module: &str) -> Option<String> {
    let command = line.strip_prefix("ExecStart")?.split_once('=')?.1;
    let words = command.split(|c: char| c.is_whitespace() || "\"';&|".contains(c));
    let words = words.map(|word| word.trim_start_matches(['-', '@', ':', '+', '!']));
    let is_shell = |word: &str| ["sh", "bash", "env"].contains(&word.rsplit('/').next().unwrap_or_default());
    let script = words.into_iter().find(|word| word.starts_with('/') && !is_shell(word))?;
    loads(&in_one_line(root, &root.script(script)?, variables), module).then(|| script.to_owned())
}

/// Returns whether a script loads a module.
fn script_loads(root: &Root, script: &str, module: &str) -> bool {
    loads(&in_one_line(root, &root.script(script).unwrap_or_default(), &Variables::new()), module)
}

/// Returns a script as one line, as a loop goes over several, with the values of variables that it is given, sets
/// or reads from another file in the place of their names.
fn in_one_line(root: &Root, text: &str, given: &Variables) -> String {
    let text = continued(text);
    let lines = || text.lines().map(str::trim).filter(|line| !line.starts_with('#'));
    let mut variables = given.clone();
    for file in lines().filter_map(|line| line.strip_prefix(". ").or_else(|| line.strip_prefix("source "))) {
        variables.extend(assigned(root, file.trim()));
    }
    variables.extend(of_lines(&text));
    filled_in(&lines().collect::<Vec<_>>().join("; "), &variables)
}

/// Files of cron's jobs, and folders of such files.
pub const CRON: [&str; 3] = ["/etc/crontab", "/var/spool/cron/crontabs/root", "/var/spool/cron/root"];
pub const CRON_FOLDER: &str = "/etc/cron.d";

/// Returns the line that has cron load a module at boot.
fn by_cron(root: &Root, module: &str) -> Option<Line> {
    let of_folder = root.names(CRON_FOLDER).into_iter().map(|name| format!("{CRON_FOLDER}/{name}"));
    let mut files = CRON.iter().map(|file| (*file).to_owned()).chain(of_folder);
    files.find_map(|file| {
        let text = root.text(&file).unwrap_or_default();
        let line = text.lines().map(str::trim).find(|line| line.starts_with("@reboot") && loads(line, module))?;
        Some(Line { text: line.to_owned(), file })
    })
}

/// The configuration of cloud-init.
pub const CLOUD_INIT: (&str, &str) = ("/etc/cloud/cloud.cfg", "/etc/cloud/cloud.cfg.d");

/// Returns the line that has cloud-init load a module at each boot: one of bootcmd, as runcmd is for the first boot.
fn by_cloud_init(root: &Root, module: &str) -> Option<Line> {
    let (file, folder) = CLOUD_INIT;
    let of_folder = root.names(folder).into_iter().map(|name| format!("{folder}/{name}"));
    std::iter::once(file.to_owned()).chain(of_folder).find_map(|file| {
        let text = root.text(&file).unwrap_or_default();
        let mut is_of_each = false;
        let line = text.lines().find(|line| {
            // A key of the first level ends the list before it.
            if line.starts_with(|c: char| c.is_ascii_alphabetic()) {
                is_of_each = line.starts_with("bootcmd:");
            }
            is_of_each && loads(&line.replace(['[', ']'], " "), module)
        })?;
        Some(Line { text: line.trim().to_owned(), file })
    })
}

/// Scripts that run at boot if they are executable, and OpenRC's list of modules.
const SCRIPTS: [&str; 6] = [
    "/etc/rc.local",
    "/etc/rc.d/rc.local",
    "/etc/rc.modules",
    "/etc/init.d/boot.local",
    // OFED's openibd runs it.
    "/etc/infiniband/post-start-hook.sh",
    OPENRC,
];
const OPENRC: &str = "/etc/conf.d/modules";
/// Folders of such scripts, each with the end of their names: Red Hat's, for
/// rhel-loadmodules.service, and cloud-init's.
const SCRIPT_FOLDERS: [(&str, &str); 2] =
    [("/etc/sysconfig/modules", ".modules"), ("/var/lib/cloud/scripts/per-boot", "")];

/// The folder of scripts that run before each job on many clusters of Slurm, and the configuration that names
/// others; the second place is that of a node which is given it.
pub const PROLOGS: &str = "/etc/slurm/prolog.d";
pub const SLURM: [&str; 2] = ["/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf"];

/// Returns the scripts that Slurm runs as root on this node before each job.
pub fn prologs(root: &Root) -> Vec<String> {
    let of_folder = |folder: &str| -> Vec<String> {
        root.names(folder).into_iter().map(|name| format!("{folder}/{name}")).collect()
    };
    let of_value = |value: &str| -> Vec<String> {
        let value = value.split('#').next().unwrap_or_default().trim();
        match value.strip_suffix("/*") {
            Some(folder) => of_folder(folder),
            None => vec![value.to_owned()],
        }
    };
    let mut scripts = of_folder(PROLOGS);
    for text in SLURM.iter().filter_map(|file| root.text(file).ok()) {
        let set = text.lines().filter_map(|line| line.trim().split_once('='));
        let named = set.filter(|(key, _)| key.trim().eq_ignore_ascii_case("Prolog"));
        scripts.extend(named.flat_map(|(_, value)| of_value(value)).filter(|script| script.starts_with('/')));
    }
    scripts
}

/// Returns the script of Slurm's that loads a module before each job.
pub fn loaded_by_prolog(root: &Root, module: &str) -> Option<String> {
    prologs(root).into_iter().find(|script| root.is_executable(script) && script_loads(root, script, module))
}

/// Folders of links to the scripts of System V's init that are started with several users.
const RUN_LEVELS: [&str; 4] = ["/etc/rc3.d", "/etc/rc5.d", "/etc/rc.d/rc3.d", "/etc/rc.d/rc5.d"];

/// Returns the scripts and lists that may exist on this machine.
pub fn scripts(root: &Root) -> Vec<String> {
    let of_folder = |(folder, end): &(&str, &'static str)| {
        let (folder, end) = ((*folder).to_owned(), *end);
        let names = root.names(&folder).into_iter().filter(move |name| name.ends_with(end));
        names.map(move |name| format!("{folder}/{name}"))
    };
    let started = RUN_LEVELS.iter().flat_map(|folder| {
        let names = root.names(folder).into_iter().filter(|name| name.starts_with('S'));
        names.map(move |name| format!("{folder}/{name}"))
    });
    let named = SCRIPTS.iter().map(|file| (*file).to_owned());
    named.chain(SCRIPT_FOLDERS.iter().flat_map(of_folder)).chain(started).collect()
}

/// Returns whether the system reads such a script: nothing runs a script that is not executable, as
/// rc-local.service of systemd says by ConditionFileIsExecutable.
pub fn is_read_at_boot(root: &Root, script: &str) -> bool {
    script == OPENRC || root.is_executable(script)
}

/// Returns the line of a script or list of other systems than systemd that loads a module at boot.
fn by_script(root: &Root, module: &str) -> Option<Line> {
    let of = |file: &str, loads: &dyn Fn(&str) -> bool| {
        let text = root.text(file).ok()?;
        let mut lines = text.lines().map(str::trim).filter(|line| !line.starts_with('#'));
        let in_loop = || loads(&in_one_line(root, &text, &Variables::new())).then_some("in several lines");
        let line = lines.find(|line| loads(line)).or_else(in_loop)?;
        Some(Line { text: line.to_owned(), file: file.to_owned() })
    };
    let in_list = |line: &str| {
        let list = line.strip_prefix("modules").and_then(|line| line.split_once('=')).map_or("", |(_, list)| list);
        list.split(|c: char| c.is_whitespace() || "\"'".contains(c)).any(|word| is(Some(word), module))
    };
    scripts(root).iter().filter(|file| is_read_at_boot(root, file)).find_map(|file| match file.as_str() {
        OPENRC => of(file, &in_list),
        _ => of(file, &|line: &str| loads(line, module)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each has nvidia-peermem loaded, or does not.
    #[test]
    fn what_loads_a_module_at_boot_is_found() {
        let root_of = |path: &str, text: &str| {
            let dir = tempfile::tempdir().unwrap();
            let file = dir.path().join(path);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
            let wants = dir.path().join("etc/systemd/system/multi-user.target.wants");
            std::fs::create_dir_all(&wants).unwrap();
            std::fs::write(wants.join("peermem.service"), "").unwrap();
            dir
        };
        let found = |path: &str, text: &str| {
            let dir = root_of(path, text);
            let root = Root::new(dir.path());
            const NAME: &str = "nvidia_peermem";
            loaded_by_udev(&root, NAME).is_some()
                || !softdeps(&root, NAME).is_empty()
                || loaded_by_service(&root, NAME).is_some()
                || loaded_at_boot(&root, NAME).is_some()
        };
        for (path, text, wanted) in [
            ("etc/modules-load.d/a.conf", "nvidia-peermem\n", true),
            ("etc/modules", "# all\nnvidia_peermem\n", true),
            ("etc/initramfs-tools/modules", "mlx5_ib\nnvidia-peermem\n", true),
            ("etc/dracut.conf.d/n.conf", "force_drivers+=\" nvidia nvidia-peermem \"\n", true),
            ("etc/dracut.conf.d/n.conf", "add_drivers+=\" nvidia nvidia-peermem \"\n", false),
            ("etc/mkinitcpio.conf", "MODULES=(nvidia nvidia_peermem)\n", true),
            ("etc/mkinitcpio.conf", "#MODULES=(nvidia nvidia_peermem)\n", false),
            (
                "etc/udev/rules.d/9.rules",
                "SUBSYSTEM==\"infiniband\", RUN{builtin}+=\"kmod load nvidia_peermem\"\n",
                true,
            ),
            ("lib/udev/rules.d/9.rules", "KERNEL==\"nvidia\", RUN+=\"/sbin/modprobe -q nvidia-peermem\"\n", true),
            ("lib/udev/rules.d/9.rules", "KERNEL==\"nvidia\", \\\n  RUN+=\"/sbin/modprobe nvidia-peermem\"\n", true),
            ("lib/udev/rules.d/9.rules", "# RUN+=\"/sbin/modprobe nvidia-peermem\"\n", false),
            ("lib/udev/rules.d/9.rules", "RUN+=\"/sbin/modprobe -r nvidia-peermem\"\n", false),
            ("lib/udev/rules.d/9.rules", "RUN+=\"/sbin/modprobe nvidia-uvm\"\n", false),
            ("lib/udev/rules.d/9.txt", "RUN+=\"/sbin/modprobe nvidia-peermem\"\n", false),
            (
                "etc/systemd/system/nvidia-persistenced.service.d/a.conf",
                "[Service]\nExecStartPost=/sbin/modprobe nvidia-peermem\n",
                true,
            ),
            (
                "etc/systemd/system/nvidia-persistenced.service.d/a.txt",
                "ExecStartPost=/sbin/modprobe nvidia-peermem\n",
                false,
            ),
            ("etc/rc.local", "#!/bin/sh\nmodprobe nvidia-peermem\n", true),
            ("etc/rc.local", "#!/bin/sh\n# modprobe nvidia-peermem\n", false),
            ("etc/conf.d/modules", "modules=\"nvidia nvidia-peermem\"\n", true),
            ("etc/modprobe.d/a.conf", "softdep nvidia post: nvidia-uvm nvidia-peermem\n", true),
            ("usr/lib/modprobe.d/a.conf", "softdep mlx5_ib post: nvidia_peermem\n", true),
            ("etc/modprobe.d/a.conf", "softdep nvidia-peermem pre: nvidia ib_core\n", false),
            (
                "etc/modprobe.d/a.conf",
                "install nvidia /sbin/modprobe -i nvidia && /sbin/modprobe nvidia-peermem\n",
                true,
            ),
            ("etc/modprobe.d/a.conf", "install nvidia-peermem /bin/false\n", false),
            ("etc/systemd/system/peermem.service", "[Service]\nExecStart=/sbin/modprobe nvidia-peermem\n", true),
            (
                "lib/systemd/system/peermem.service",
                "[Service]\nExecStart=-/usr/sbin/modprobe -a nvidia-peermem x\n",
                true,
            ),
            ("lib/systemd/system/other.service", "[Service]\nExecStart=/sbin/modprobe nvidia-peermem\n", false),
            ("proc/cmdline", "quiet modules_load=nvidia-peermem,x iommu=pt\n", true),
            ("proc/cmdline", "quiet rd.driver.post=nvidia-peermem\n", true),
            ("proc/cmdline", "quiet modprobe.blacklist=nvidia-peermem\n", false),
            ("usr/local/lib/modules-load.d/a.conf", "nvidia-peermem", true),
            ("etc/modules-load.d/a.conf", "nvidia_peermem\r\n", true),
            ("etc/mkinitcpio.conf.d/a.conf", "MODULES+=(nvidia nvidia_peermem)\n", true),
            (
                "etc/systemd/system/peermem.service",
                "[Service]\nExecStart=/bin/sh -c 'modprobe nvidia-uvm; \\\n  modprobe nvidia-peermem'\n",
                true,
            ),
            (
                "etc/systemd/system/nvidia-persistenced.service.d/a.conf",
                "[Unit]\nWants=network.target modprobe@nvidia_peermem.service\n",
                true,
            ),
            (
                "etc/systemd/system/nvidia-persistenced.service.d/a.conf",
                "[Unit]\nAfter=modprobe@nvidia_peermem.service\n",
                false,
            ),
            ("etc/systemd/system/multi-user.target.wants/modprobe@nvidia\\x2dpeermem.service", "", true),
            ("etc/systemd/system/multi-user.target.wants/modprobe@nvidia_uvm.service", "", false),
            (
                "etc/systemd/system/nvidia-persistenced.service.d/a.conf",
                "[Service]\nExecStartPost=-/opt/gdr/start.sh now\n",
                false,
            ),
            ("etc/systemd/system/peermem.service", "[Service]\nExecStart=/sbin/modprobe -n nvidia-peermem\n", false),
            ("etc/systemd/system/peermem.service", "[Service]\nExecStart=/sbin/modprobe -D nvidia-peermem\n", false),
            (
                "etc/systemd/system/peermem.service",
                "[Service]\nExecStart=/bin/sh -c \"modprobe -r nvidia-peermem; modprobe nvidia-peermem\"\n",
                true,
            ),
            (
                "etc/systemd/system/peermem.service",
                "[Service]\nExecStart=/bin/sh -c 'modprobe nvidia && modprobe -r nvidia-peermem'\n",
                false,
            ),
            (
                "etc/systemd/system/peermem.service",
                "[Service]\nExecStart=/bin/sh -c 'for m in nvidia-uvm nvidia-peermem; do modprobe $m; done'\n",
                true,
            ),
            ("etc/systemd/system/peermem.service", "[Service]\nExecStart=/sbin/modprobe -rf nvidia-peermem\n", false),
            ("lib/udev/rules.d/9.rules", "KERNEL==\"nvidia_peermem\", RUN+=\"/sbin/modprobe gdrdrv\"\n", false),
            ("etc/modprobe.d/a.conf", "weakdep nvidia nvidia-peermem\n", false),
            (
                "etc/udev/rules.d/9.rules",
                "KERNEL==\"nvidia\", ENV{SYSTEMD_WANTS}+=\"modprobe@nvidia_peermem.service\"\n",
                true,
            ),
            ("etc/sysconfig/modules/gdr.modules", "#!/bin/sh\nmodprobe nvidia_peermem\n", true),
            ("etc/sysconfig/modules/gdr.txt", "#!/bin/sh\nmodprobe nvidia_peermem\n", false),
            ("var/lib/cloud/scripts/per-boot/gdr", "#!/bin/sh\nmodprobe nvidia_peermem\n", true),
            ("etc/cron.d/gdr", "@reboot root /sbin/modprobe nvidia-peermem\n", true),
            ("etc/cron.d/gdr", "0 4 * * * root /sbin/modprobe nvidia-peermem\n", false),
            (
                "etc/systemd/system/peermem.service",
                "[Service]\nExecStart=/sbin/insmod /lib/modules/7.2.13/updates/nvidia-peermem.ko\n",
                true,
            ),
            ("etc/rc.local", "#!/bin/sh\nfor m in nvidia-uvm nvidia-peermem; do\n  modprobe $m\ndone\n", true),
            (
                "etc/rc.local",
                "#!/bin/sh\nfor m in nvidia-peermem; do\n  modprobe -r $m\ndone\nmodprobe $other\n",
                false,
            ),
            ("etc/rc3.d/S90gdr", "#!/bin/sh\nmodprobe nvidia-peermem\n", true),
            ("etc/rc3.d/K10gdr", "#!/bin/sh\nmodprobe nvidia-peermem\n", false),
            ("etc/infiniband/post-start-hook.sh", "#!/bin/sh\nmodprobe nvidia-peermem\n", true),
            ("etc/cloud/cloud.cfg.d/9.cfg", "bootcmd:\n  - [modprobe, nvidia-peermem]\n", true),
            (
                "etc/systemd/system/peermem.service",
                "[Service]\nEnvironment=A=1 \"MODS=nvidia-uvm nvidia-peermem\"\nExecStart=/sbin/modprobe -a $MODS\n",
                true,
            ),
            (
                "etc/systemd/system/peermem.service",
                "[Service]\nEnvironment=MOD=nvidia-peermem\nExecStart=/bin/sh -c \"modprobe ${MOD}\"\n",
                true,
            ),
            (
                "etc/systemd/system/peermem.service",
                "[Service]\nEnvironment=MODS=nvidia-peermem\nExecStart=/sbin/modprobe $MOD\n",
                false,
            ),
            ("etc/rc.local", "#!/bin/sh\nMODS=\"nvidia-uvm nvidia-peermem\"\nmodprobe -a $MODS\n", true),
            ("etc/rc.local", "#!/bin/sh\nMODS=nvidia-uvm\nmodprobe -a $MODS\n", false),
            ("etc/udev/rules.d/9.rules", "ACTION==\"remove\", RUN+=\"/sbin/modprobe nvidia-peermem\"\n", false),
            ("etc/udev/rules.d/9.rules", "ACTION==\"unbind|remove\", RUN+=\"/sbin/modprobe nvidia-peermem\"\n", false),
            ("etc/udev/rules.d/9.rules", "ACTION==\"add|remove\", RUN+=\"/sbin/modprobe nvidia-peermem\"\n", true),
            ("etc/udev/rules.d/9.rules", "ACTION!=\"remove\", RUN+=\"/sbin/modprobe nvidia-peermem\"\n", true),
            ("etc/udev/rules.d/9.rules", "ACTION==\"*\", RUN+=\"/sbin/modprobe nvidia-peermem\"\n", true),
            ("etc/cloud/cloud.cfg.d/9.cfg", "bootcmd:\n  - ls\nruncmd:\n  - modprobe nvidia-peermem\n", false),
        ] {
            assert_eq!(found(path, text), wanted, "{path}: {text}");
        }
    }

    #[test]
    fn a_unit_loads_what_its_script_loads() {
        for (command, script, wanted) in [
            (
                "/bin/bash /opt/gdr/start now",
                "#!/bin/bash\nset -e\nmodprobe -a nvidia-uvm \\\n  nvidia-peermem\n",
                true,
            ),
            ("/bin/bash /opt/gdr/start now", "#!/bin/bash\n# modprobe nvidia-peermem\n", false),
            ("/bin/bash /opt/gdr/start now", "#!/bin/bash\nmodprobe nvidia-uvm\n", false),
            ("/bin/bash /opt/gdr/start now", "modprobe nvidia-peermem\n", false),
            ("/bin/sh -c '/opt/gdr/start'", "#!/bin/sh\nmodprobe nvidia-peermem\n", true),
            ("/bin/sh -c \"exec /opt/gdr/start; true\"", "#!/bin/sh\nmodprobe nvidia-peermem\n", true),
            ("-/opt/gdr/start", "#!/bin/sh\nmodprobe nvidia-peermem\n", true),
            ("-/opt/gdr/start", "#", false),
        ] {
            let dir = tempfile::tempdir().unwrap();
            for (path, text) in [
                ("etc/systemd/system/multi-user.target.wants/gdr.service", ""),
                ("etc/systemd/system/gdr.service", &*format!("[Service]\nExecStart={command}\n")),
                ("opt/gdr/start", script),
            ] {
                let file = dir.path().join(path);
                std::fs::create_dir_all(file.parent().unwrap()).unwrap();
                std::fs::write(file, text).unwrap();
            }
            assert_eq!(
                loaded_by_service(&Root::new(dir.path()), "nvidia_peermem").is_some(),
                wanted,
                "{command}: {script}"
            );
        }
    }

    /// The file of a unit, its drop-ins and files of variables go together.
    #[test]
    fn a_unit_has_the_variables_of_all_its_files() {
        const UNIT: &str = "[Service]\nEnvironmentFile=-/etc/default/gpu\nExecStart=/opt/load $MODS\n";
        const SCRIPT: &str = "#!/bin/sh\nmodprobe -a $MODS\n";
        for (files, wanted) in [
            (&[("etc/systemd/system/gpu.service", UNIT), ("opt/load", SCRIPT)][..], false),
            (
                &[
                    ("etc/systemd/system/gpu.service", UNIT),
                    ("opt/load", SCRIPT),
                    ("etc/default/gpu", "# modules\nMODS=\"nvidia nvidia-peermem\"\n"),
                ],
                true,
            ),
            (
                &[
                    ("etc/systemd/system/gpu.service", "[Service]\nExecStart=/sbin/modprobe -a ${MODS}\n"),
                    (
                        "etc/systemd/system/gpu.service.d/a.conf",
                        "[Service]\nEnvironment='MODS=nvidia nvidia-peermem'\n",
                    ),
                ],
                true,
            ),
            (
                &[
                    ("etc/systemd/system/gpu.service", "[Service]\nExecStart=/opt/load\n"),
                    ("opt/load", "#!/bin/sh\n. /etc/default/gpu\nfor m in $MODS; do modprobe $m; done\n"),
                    ("etc/default/gpu", "export MODS='nvidia-peermem'\n"),
                ],
                true,
            ),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let wanted_by = ("etc/systemd/system/multi-user.target.wants/gpu.service", "");
            for (path, text) in files.iter().chain([&wanted_by]) {
                let file = dir.path().join(path);
                std::fs::create_dir_all(file.parent().unwrap()).unwrap();
                std::fs::write(file, text).unwrap();
            }
            let found = loaded_by_service(&Root::new(dir.path()), "nvidia_peermem");
            assert_eq!(found.is_some(), wanted, "{files:?}");
        }
    }

    #[test]
    fn a_prolog_of_slurm_that_loads_is_found() {
        for (path, text, configuration, wanted) in [
            ("etc/slurm/prolog.d/10-gpu.sh", "#!/bin/sh\nmodprobe nvidia-peermem\n", "", true),
            ("etc/slurm/prolog.d/10-gpu.sh", "#!/bin/sh\nmodprobe -r nvidia-peermem\n", "", false),
            ("opt/slurm/prolog", "#!/bin/sh\nmodprobe nvidia-peermem\n", "Prolog=/opt/slurm/prolog\n", true),
            ("opt/slurm/p/1.sh", "#!/bin/sh\nmodprobe nvidia-peermem\n", "prolog = /opt/slurm/p/* # all\n", true),
            ("opt/slurm/prolog", "#!/bin/sh\nmodprobe nvidia-peermem\n", "TaskProlog=/opt/slurm/prolog\n", false),
        ] {
            let dir = tempfile::tempdir().unwrap();
            for (path, text) in [(path, text), ("etc/slurm/slurm.conf", configuration)] {
                let file = dir.path().join(path);
                std::fs::create_dir_all(file.parent().unwrap()).unwrap();
                std::fs::write(file, text).unwrap();
            }
            let found = loaded_by_prolog(&Root::new(dir.path()), "nvidia_peermem");
            assert_eq!(found.is_some(), wanted, "{path}: {text}{configuration}");
        }
    }

    /// Nobody reads lists where the service that does is masked.
    #[test]
    fn a_masked_service_reads_no_lists() {
        for (path, text, wanted) in [
            ("etc/modules-load.d/a.conf", "nvidia-peermem\n", false),
            ("etc/modules", "nvidia-peermem\n", false),
            ("proc/cmdline", "modules_load=nvidia-peermem\n", false),
            ("proc/cmdline", "rd.driver.post=nvidia-peermem\n", true),
            ("etc/initramfs-tools/modules", "nvidia-peermem\n", true),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let file = dir.path().join(path);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
            let mask = dir.path().join(LISTS_SERVICE.trim_start_matches('/'));
            std::fs::create_dir_all(mask.parent().unwrap()).unwrap();
            std::os::unix::fs::symlink("/dev/null", mask).unwrap();
            let (root, module) = (Root::new(dir.path()), "nvidia_peermem");
            let found = loaded_at_boot(&root, module).is_some() || loaded_by_service(&root, module).is_some();
            assert_eq!(found, wanted, "{path}");
        }
    }

    /// Each leads to a service that loads the module.
    #[test]
    fn what_starts_a_service_that_loads_is_followed() {
        for (path, text, wanted) in [
            ("etc/systemd/system/timers.target.wants/gdr.timer", "", true),
            ("etc/systemd/system/multi-user.target.d/gdr.conf", "[Unit]\nWants=gdr.service\n", true),
            ("etc/systemd/system/multi-user.target.d/gdr.conf", "[Unit]\nAfter=gdr.service\n", false),
            ("etc/udev/rules.d/9.rules", "KERNEL==\"nvidia\", ENV{SYSTEMD_WANTS}=\"gdr.service\"\n", true),
            ("etc/udev/rules.d/9.rules", "KERNEL==\"nvidia\", RUN+=\"/opt/gdr/start\"\n", true),
            ("etc/udev/rules.d/9.rules", "RUN+=\"/usr/bin/systemctl start --no-block gdr.service\"\n", true),
            ("etc/udev/rules.d/9.rules", "RUN+=\"/usr/bin/systemctl stop gdr.service\"\n", false),
            ("etc/systemd/system/multi-user.target.wants/load@nvidia-peermem.service", "", true),
            ("etc/systemd/system/multi-user.target.wants/load@nvidia-uvm.service", "", false),
        ] {
            let dir = tempfile::tempdir().unwrap();
            for (path, text) in [
                (path, text),
                ("etc/systemd/system/gdr.timer", "[Timer]\nOnBootSec=30\n"),
                ("etc/systemd/system/gdr.service", "[Service]\nExecStart=/sbin/modprobe nvidia-peermem\n"),
                ("etc/systemd/system/load@.service", "[Service]\nExecStart=/sbin/modprobe %i\n"),
                ("opt/gdr/start", "#!/bin/sh\nmodprobe nvidia-peermem\n"),
            ] {
                let file = dir.path().join(path);
                std::fs::create_dir_all(file.parent().unwrap()).unwrap();
                std::fs::write(file, text).unwrap();
            }
            let root = Root::new(dir.path());
            let found = loaded_by_service(&root, "nvidia_peermem").or_else(|| loaded_by_udev(&root, "nvidia_peermem"));
            assert_eq!(found.is_some(), wanted, "{path}: {text}");
        }
    }

    /// Checks lines as hardening guides and installers write them.
    #[test]
    fn what_keeps_a_module_out_is_found() {
        let found = |path: &str, text: &str| {
            let dir = tempfile::tempdir().unwrap();
            let file = dir.path().join(path);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
            blocked(&Root::new(dir.path()), "nvidia_peermem").map(|(_, block)| block)
        };
        const FILE: &str = "etc/modprobe.d/a.conf";
        const LINE: &str = "proc/cmdline";
        for (path, text, wanted) in [
            (FILE, "install nvidia_peermem /bin/false\n", Some(Block::Always)),
            (FILE, "install nvidia-peermem /usr/bin/true", Some(Block::Always)),
            (FILE, "install nvidia-peermem /usr/bin/false\r\n", Some(Block::Always)),
            (FILE, "install nvidia-peermem :\n", Some(Block::Always)),
            (FILE, "install nvidia-peermem /bin/sh -c \"exit 0\"\n", Some(Block::Always)),
            (FILE, "install nvidia-peermem /bin/echo not here\n", Some(Block::Always)),
            (FILE, "install nvidia-peermem echo x; /sbin/modprobe -i nvidia-peermem\n", None),
            (FILE, "install nvidia-peermem /usr/local/sbin/load-it\n", None),
            (FILE, "install nvidia_uvm /bin/false\n", None),
            (FILE, "blacklist \\\n  nvidia_peermem\n", Some(Block::Alias)),
            ("usr/local/lib/modprobe.d/a.conf", "blacklist nvidia_peermem\n", Some(Block::Alias)),
            (LINE, "quiet modprobe.blacklist=nouveau,nvidia-peermem\n", Some(Block::Alias)),
            (LINE, "quiet module_blacklist=nouveau,nvidia_peermem ro\n", Some(Block::Kernel)),
            (LINE, "quiet module_blacklist=nvidia-peermem\n", None),
            (LINE, "quiet module_blacklist=nvidia-peermem,nvidia_peermem_x\n", None),
            (LINE, "module_blacklist=nvidia_peermem module_blacklist=nouveau\n", None),
            (LINE, "module_blacklist=nouveau module_blacklist=x,nvidia_peermem\n", Some(Block::Kernel)),
            (LINE, "quiet module_blacklist=nouveau\n", None),
        ] {
            assert!(found(path, text) == wanted, "{path}: {text}");
        }
    }

    /// Checks who loads a blacklisted module all the same.
    #[test]
    fn a_blacklist_binds_who_loads_as_an_alias_does() {
        for (path, text, heeds) in [
            ("etc/modules-load.d/a.conf", "nvidia-peermem\n", true),
            ("lib/udev/rules.d/9.rules", "RUN{builtin}+=\"kmod load nvidia_peermem\"\n", true),
            ("lib/udev/rules.d/9.rules", "RUN+=\"/sbin/modprobe -bq nvidia_peermem\"\n", true),
            ("lib/udev/rules.d/9.rules", "RUN+=\"/sbin/modprobe -q nvidia_peermem\"\n", false),
            ("etc/systemd/system/multi-user.target.wants/modprobe@nvidia_peermem.service", "", true),
            ("etc/modprobe.d/a.conf", "softdep nvidia post: nvidia-peermem\n", false),
            ("etc/rc.local", "#!/bin/sh\nmodprobe nvidia-peermem\n", false),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let file = dir.path().join(path);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
            let root = Root::new(dir.path());
            assert_eq!(heeds_blacklists(&root, "nvidia_peermem"), heeds, "{path}: {text}");
            assert_eq!(loaded_by_name(&root, "nvidia_peermem").is_some(), !heeds, "{path}: {text}");
        }
    }

    #[test]
    fn a_unit_that_is_masked_loads_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let units = dir.path().join("etc/systemd/system");
        let own = dir.path().join("usr/lib/systemd/system");
        for folder in [&units.join("multi-user.target.wants"), &own] {
            std::fs::create_dir_all(folder).unwrap();
        }
        std::fs::write(units.join("multi-user.target.wants/gdr.service"), "").unwrap();
        std::fs::write(own.join("gdr.service"), "[Service]\nExecStart=/sbin/modprobe nvidia-peermem\n").unwrap();
        let root = Root::new(dir.path());
        assert!(loaded_by_service(&root, "nvidia_peermem").is_some());
        std::os::unix::fs::symlink("/nowhere/null", units.join("gdr.service")).unwrap();
        assert!(loaded_by_service(&root, "nvidia_peermem").is_none());
    }

    #[test]
    fn a_rule_that_the_admin_hides_loads_nothing() {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in [
            ("etc/udev/rules.d/90-a.rules", ""),
            ("usr/lib/udev/rules.d/90-a.rules", "RUN{builtin}+=\"kmod load nvidia_peermem\"\n"),
        ] {
            let file = dir.path().join(path);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        }
        assert!(loaded_by_udev(&Root::new(dir.path()), "nvidia_peermem").is_none());
    }
}
