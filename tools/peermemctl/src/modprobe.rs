// SPDX-License-Identifier: GPL-2.0
//! The admin's configuration of modprobe, depmod and systemd-modules-load.

use crate::root::Root;

const MODPROBE: [&str; 4] = ["/etc/modprobe.d", "/run/modprobe.d", "/usr/lib/modprobe.d", "/lib/modprobe.d"];
const MODULES_LOAD: [&str; 4] =
    ["/etc/modules-load.d", "/run/modules-load.d", "/usr/lib/modules-load.d", "/lib/modules-load.d"];

/// A line of a configuration file.
pub struct Line {
    pub file: String,
    pub text: String,
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
            let text = root.text(&file).unwrap_or_default();
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

/// `options` of a module: file, name and value.
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

/// The line that keeps modprobe from loading a module: `blacklist`, or `install` with a command
/// that loads nothing.
pub fn blocked(root: &Root, module: &str) -> Option<(Line, Block)> {
    lines(root, &MODPROBE).into_iter().find_map(|line| {
        let mut words = line.text.split_ascii_whitespace();
        let verb = words.next().map(str::to_owned);
        if !is(words.next(), module) {
            return None;
        }
        let nothing =
            words.next().is_some_and(|command| matches!(command, "/bin/false" | "/bin/true" | "false" | "true"));
        match verb.as_deref() {
            Some("blacklist") => Some((line, Block::Alias)),
            Some("install") if nothing => Some((line, Block::Always)),
            _ => None,
        }
    })
}

/// How a module is kept from being loaded.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Block {
    /// By alias and at boot only; `modprobe NAME` loads it.
    Alias,
    /// Always.
    Always,
}

/// The file that has a module loaded at boot.
pub fn loaded_at_boot(root: &Root, module: &str) -> Option<String> {
    let conf = lines(root, &MODULES_LOAD).into_iter().find(|line| is(Some(&line.text), module)).map(|line| line.file);
    conf.or_else(|| {
        let etc = root.text("/etc/modules").unwrap_or_default();
        etc.lines().any(|line| is(line.split_ascii_whitespace().next(), module)).then(|| "/etc/modules".to_owned())
    })
    .or_else(|| loaded_by_initrd(root, module))
}

/// Returns the file that has the initial RAM disk load a module: of initramfs-tools, dracut or mkinitcpio.
fn loaded_by_initrd(root: &Root, module: &str) -> Option<String> {
    const DRACUT: [&str; 2] = ["/etc/dracut.conf.d", "/usr/lib/dracut/dracut.conf.d"];
    let names = |list: &str| {
        list.split(|c: char| c.is_whitespace() || "\"'()=+".contains(c)).any(|word| is(Some(word), module))
    };
    let tools = "/etc/initramfs-tools/modules";
    let listed = |line: &str| is(line.split_ascii_whitespace().next(), module);
    if root.text(tools).unwrap_or_default().lines().any(listed) {
        return Some(tools.to_owned());
    }
    let of_dir = DRACUT.iter().flat_map(|dir| root.names(dir).into_iter().map(move |name| format!("{dir}/{name}")));
    let files = of_dir.chain(["/etc/dracut.conf".to_owned(), "/etc/mkinitcpio.conf".to_owned()]);
    let forces = |line: &str| {
        let line = line.trim();
        (line.starts_with("force_drivers") || line.starts_with("MODULES=")) && names(line)
    };
    files.into_iter().find(|file| root.text(file).unwrap_or_default().lines().any(forces))
}

const UDEV: [&str; 4] = ["/etc/udev/rules.d", "/run/udev/rules.d", "/usr/lib/udev/rules.d", "/lib/udev/rules.d"];
const UNITS: [&str; 4] =
    ["/etc/systemd/system", "/run/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"];

/// Returns whether a command such as `/sbin/modprobe -q nvidia-peermem` or udev's `kmod load` loads a
/// module.
fn loads(command: &str, module: &str) -> bool {
    let words: Vec<&str> = command.split(|c: char| c.is_whitespace() || "\"',;&|".contains(c)).collect();
    let loader = |word: &&str| ["modprobe", "kmod", "insmod"].contains(&word.rsplit('/').next().unwrap_or_default());
    let Some(at) = words.iter().position(loader) else { return false };
    let mut rest = words.iter().skip(at + 1);
    !rest.clone().any(|word| ["-r", "--remove", "unload"].contains(word)) && rest.any(|word| is(Some(word), module))
}

/// Returns the line of a udev rule that loads a module.
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
            let text = root.text(&file).unwrap_or_default().replace("\\\n", " ");
            let mut rules = text.lines().map(str::trim).filter(|line| !line.starts_with('#') && line.contains("RUN"));
            if let Some(rule) = rules.find(|rule| loads(rule, module)) {
                return Some(Line { text: rule.to_owned(), file });
            }
        }
    }
    None
}

/// Returns the softdep, or the install command, of another module that brings a module along, and
/// that other module.
pub fn loaded_by_softdep(root: &Root, module: &str) -> Option<(Line, String)> {
    lines(root, &MODPROBE).into_iter().find_map(|line| {
        let mut words = line.text.split_ascii_whitespace();
        let (verb, other) = (words.next()?, words.next()?.to_owned());
        let brings = match verb {
            "softdep" | "weakdep" => words.any(|word| is(Some(word), module)),
            "install" => loads(&words.collect::<Vec<_>>().join(" "), module),
            _ => false,
        };
        (brings && !is(Some(&other), module)).then_some((line, other))
    })
}

/// Returns the line of an enabled service of systemd, or of the kernel's command line, that loads a
/// module.
pub fn loaded_by_service(root: &Root, module: &str) -> Option<Line> {
    let command_line = root.line("/proc/cmdline").unwrap_or_default();
    let listed = |word: &str| {
        let list = word.strip_prefix("modules_load=").or_else(|| word.strip_prefix("modules-load="))?;
        list.split(',').find(|name| is(Some(name), module)).map(|_| word.to_owned())
    };
    if let Some(text) = command_line.split_ascii_whitespace().find_map(listed) {
        return Some(Line { file: "/proc/cmdline".to_owned(), text });
    }
    let wants = UNITS.iter().flat_map(|dir| {
        let names = root.names(dir).into_iter().filter(|name| name.ends_with(".wants") || name.ends_with(".requires"));
        names.flat_map(move |name| root.names(&format!("{dir}/{name}"))).collect::<Vec<_>>()
    });
    let of_unit = |file: String| {
        let text = root.text(&file).ok()?;
        let mut lines = text.lines().filter(|line| line.starts_with("ExecStart"));
        let line = lines.find(|line| loads(line.split_once('=').map_or("", |(_, command)| command), module))?;
        Some(Line { text: line.to_owned(), file })
    };
    let unit = wants
        .filter(|unit| unit.ends_with(".service"))
        .find_map(|unit| of_unit(UNITS.iter().map(|dir| format!("{dir}/{unit}")).find(|file| root.exists(file))?));
    // Whether their service is started at boot is not looked at: nobody adds to one that is not.
    let drop_ins = || {
        let dirs = UNITS.iter().flat_map(|dir| {
            let names = root.names(dir).into_iter().filter(|name| name.ends_with(".service.d"));
            names.map(move |name| format!("{dir}/{name}")).collect::<Vec<_>>()
        });
        let files = dirs.flat_map(|dir| root.names(&dir).into_iter().map(move |name| format!("{dir}/{name}")));
        files.filter(|file| file.ends_with(".conf")).find_map(of_unit)
    };
    unit.or_else(drop_ins).or_else(|| by_script(root, module))
}

/// Scripts that run at boot if they are executable, and OpenRC's list of modules.
pub const SCRIPTS: [&str; 5] =
    ["/etc/rc.local", "/etc/rc.d/rc.local", "/etc/rc.modules", "/etc/init.d/boot.local", OPENRC];
const OPENRC: &str = "/etc/conf.d/modules";

/// Returns whether the system reads one of them: nothing runs a script that is not executable, as
/// rc-local.service of systemd says by ConditionFileIsExecutable.
pub fn is_read_at_boot(root: &Root, script: &str) -> bool {
    script == OPENRC || root.is_executable(script)
}

/// Returns the line of a script or list of other systems than systemd that loads a module at boot.
fn by_script(root: &Root, module: &str) -> Option<Line> {
    let of = |file: &str, loads: &dyn Fn(&str) -> bool| {
        let text = root.text(file).ok()?;
        let line = text.lines().map(str::trim).find(|line| !line.starts_with('#') && loads(line))?;
        Some(Line { text: line.to_owned(), file: file.to_owned() })
    };
    let in_list = |line: &str| {
        let list = line.strip_prefix("modules").and_then(|line| line.split_once('=')).map_or("", |(_, list)| list);
        list.split(|c: char| c.is_whitespace() || "\"'".contains(c)).any(|word| is(Some(word), module))
    };
    SCRIPTS.iter().filter(|file| is_read_at_boot(root, file)).find_map(|file| match *file {
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
                || loaded_by_softdep(&root, NAME).is_some()
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
        ] {
            assert_eq!(found(path, text), wanted, "{path}: {text}");
        }
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
