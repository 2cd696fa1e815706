// SPDX-License-Identifier: GPL-2.0

//! Runs a script of the rpm's spec file as rpm does, where parts of the package are missing, and
//! compares what the packages' scripts call and remove with what upkeep knows.

use build_tests::{program, repository, run};
use std::fs;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

/// Returns the script of a section, with the macros that it has replaced.
fn section(name: &str, upkeep: &Path) -> String {
    let spec = fs::read_to_string(repository().join("packaging/rpm/nvidia-peermem-rust.spec")).expect("spec");
    let start = spec.find(&format!("\n%{name} dkms\n")).expect("section") + 1;
    let section = &spec[start..];
    let end = section[1..].find("\n%").map_or(section.len(), |end| end + 1);
    let lines: Vec<&str> = section[..end].lines().skip(1).collect();
    let script = lines.join("\n").replace("%{upkeep}", &upkeep.display().to_string());
    script.replace("%{_prefix}", "/nowhere").replace("%{dkms_name}", "none").replace("%{version}", "0")
}

/// The package can be removed, and without a word of the shell, where somebody has removed its files by
/// hand, and where upkeep fails.
#[test]
fn an_rpm_without_upkeep_can_be_removed() {
    let dir = TempDir::new().expect("folder");
    let upkeep = dir.path().join("bin/upkeep");
    let script = section("preun", &upkeep);
    assert!(script.contains("drop") && !script.contains("%{"), "{script}");
    program(dir.path(), "dkms", "");
    program(dir.path(), "systemctl", "");
    let path = format!("{}:{}", dir.path().join("bin").display(), std::env::var("PATH").expect("PATH"));
    // The word is the number of packages that stay.
    let remove = || run(Command::new("sh").args(["-ec", &script, "preun", "0"]).env("PATH", &path));
    let said = remove();
    assert!(said.ok && said.text.is_empty(), "{}", said.text);
    program(dir.path(), "upkeep", "echo \"upkeep $*\"; exit 1");
    let said = remove();
    assert!(said.ok && said.text == "upkeep drop\n", "{}", said.text);
}

/// A refresh that somebody asks for by hand answers each time. Packages and the boot call it with
/// `if-changed`: then it says nothing twice, and does not build again what failed.
#[test]
fn packages_and_the_boot_ask_for_changes_only() {
    let text = |name: &str| fs::read_to_string(repository().join("packaging").join(name)).expect("text");
    for (file, calls) in [
        ("debian/nvidia-peermem-rust-dkms.postinst", 1),
        ("rpm/nvidia-peermem-rust.spec", 2),
        ("dkms/nvidia-peermem-rust.service", 1),
    ] {
        let text = text(file);
        let asked: Vec<&str> =
            text.lines().filter(|line| line.contains("upkeep") && line.contains(" refresh")).collect();
        assert_eq!(asked.len(), calls, "{file}: {asked:?}");
        assert!(asked.iter().all(|line| line.contains(" refresh if-changed")), "{file}: {asked:?}");
    }
    assert!(text("dkms/upkeep").contains("\n#   upkeep refresh if-changed "), "its help");
}

/// depmod's configuration is in the folder that each kmod reads, and goes with the package.
#[test]
fn depmods_file_is_where_each_kmod_reads_it() {
    let text = |name: &str| fs::read_to_string(repository().join("packaging").join(name)).expect("text");
    assert!(text("dkms/upkeep").contains("\ndepmod_d=/lib/depmod.d/00-$name.conf\n"));
    assert!(text("debian/nvidia-peermem-rust-dkms.postrm").contains(" /lib/depmod.d/00-nvidia-peermem-rust.conf"));
}
