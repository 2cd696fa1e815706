// SPDX-License-Identifier: GPL-2.0

//! Tests README's commands by hand, also in the folders of Ubuntu and RHEL.

use super::package::gone;
use super::rpm::gone_by_rpm;
use super::test::{one_line, Test};
use crate::machine::Resolved;
use crate::stubs::{our_rpm, ours};
use anyhow::{anyhow, ensure, Context, Result};

/// An admin types what README's section on installation shows: the packages that it names are there, a
/// user builds, root installs, and both see the last lines that README shows.
pub(super) fn readme(test: &mut Test) -> Result<()> {
    let [packages, debian_12, ..] = readme_commands()?;
    let mut packages = packages.strip_prefix("apt-get install ").context("README's first command")?.to_string();
    if test.machine.run("grep -q '^VERSION_ID=.12' /etc/os-release")?.ok {
        for name in debian_12.strip_prefix("# Debian 12: ").context("README's second line")?.split(' ') {
            packages = packages.replace(&format!(" {}", name.replace("-web", "")), &format!(" {name}"));
        }
    }
    test.machine.must(&format!("dpkg -s {packages} >/dev/null"))?;
    by_hand(test, "as README says", true)
}

/// Returns the blocks of README's section on installation: the commands, and what they print.
fn readme_blocks() -> Result<[&'static str; 2]> {
    let text = include_str!("../../../../README.md");
    let section = text.split("## Install\n").nth(1).and_then(|rest| rest.split("\n## ").next()).context("Install")?;
    let mut blocks = section.trim_start_matches('\n').split("\n\n").filter(|block| block.starts_with("    "));
    Ok([blocks.next().context("commands")?, blocks.next().context("what they print")?])
}

/// Returns the lines of README's commands, without comments at their ends.
fn readme_commands() -> Result<[&'static str; 5]> {
    let lines: Vec<&str> = readme_blocks()?[0].lines().map(str::trim).collect();
    let code = |line: &'static str| match line.split_once('#') {
        Some((before, _)) if !before.is_empty() => before.trim(),
        _ => line,
    };
    let commands: Vec<&str> = lines.into_iter().map(code).collect();
    commands.try_into().map_err(|lines| anyhow!("README's commands are others now: {lines:?}"))
}

/// Checks what README's commands from the build on do and show, and that uninstalling brings NVIDIA's file
/// back. `how` is the end of the rows' names. Builds peermemctl, which takes minutes, only with `tools`.
fn by_hand(test: &mut Test, how: &str, tools: bool) -> Result<()> {
    let [_, _, build, install, load] = readme_commands()?;
    let without = build.strip_suffix(" && make tools").context("README's build ends with make tools")?;
    let build = if tools { build } else { without };
    let built = test.machine.must(&format!(
        "useradd --create-home admin; mkdir /home/admin/source; cp -R /root/.cargo /home/admin/.cargo
        tar -xf /srv/source.tar.xz -C /home/admin/source --strip-components=1; chown -R admin: /home/admin
        su admin -c 'cd ~/source && {build}'"
    ))?;
    let installed = test.transaction(&format!("cd /home/admin/source; {install}"))?;
    let kernel = test.kernel()?;
    // README shows one kernel's name, whose files are compressed.
    let plain =
        |text: &str, kernel: &str| text.replace(kernel, "KERNEL").replace(".ko.xz", ".ko").replace(".ko.zst", ".ko");
    let shown = readme_blocks()?[1];
    let shown_kernel = shown.split_whitespace().skip_while(|word| *word != "kernel").nth(1).context("a kernel")?;
    // A line that is too long for the page goes on in the next one.
    let shown = plain(&shown.replace("\n      ", " "), shown_kernel);
    let seen = plain(&(built + &installed), &kernel);
    for line in shown.lines().map(str::trim) {
        let (before, after) = line.split_once("...").unwrap_or((line, ""));
        let there = seen.lines().any(|seen| seen.trim().starts_with(before) && seen.ends_with(after));
        ensure!(there, "README shows a line that nobody sees: {line}\n{seen}");
    }
    let takes = test.machine.must(&format!("{load} --show-depends --dry-run -S {kernel}"))?;
    let ours = format!("/lib/modules/{kernel}/updates/nvidia-peermem-rust/nvidia-peermem.ko");
    one_line(&takes, &[&ours])?;
    test.row(&kernel, &format!("`make install`, {how}"), "`updates/nvidia-peermem-rust/nvidia-peermem.ko`")?;
    if tools {
        test.machine.must("/usr/local/bin/peermemctl --version")?;
    }
    test.transaction("cd /home/admin/source; make uninstall")?;
    let got = test.machine.resolved(&kernel)?;
    test.row(&kernel, &format!("`make uninstall`, {how}"), &got.to_string())?;
    ensure!(matches!(got, Resolved::Nvidia(_)), "after make uninstall modprobe takes {got}");
    let root = test.machine.must("find /home/admin ! -user admin")?;
    ensure!(root.is_empty(), "files of root in the user's folder:\n{root}");
    Ok(())
}

/// Gives the kernel's build tree one folder, `$tree`, with sources and generated files, as other
/// distributions have. Debian has two, and a Makefile that names the other one.
const ONE_TREE: &str = r#"k=$(basename $(dirname /lib/modules/*/kernel))
    build=$(realpath /lib/modules/$k/build) source=$(realpath /lib/modules/$k/source)
    mkdir -p "$(dirname "$tree")"
    cp -RL "$source" "$tree"
    rm "$build/Makefile" "$build/.kernelvariables"
    cp -RL "$build/." "$tree/"
    rm -r "$build" "$source" /lib/modules/$k/source
    ln -sfn "$tree" /lib/modules/$k/build
    # That Makefile gives the release, too.
    echo "$k" >"$tree/include/config/kernel.release"
    compress() { # FORMAT
        sed -i "/^CONFIG_MODULE_COMPRESS/d" "$tree/include/config/auto.conf"
        printf 'CONFIG_MODULE_COMPRESS=y\nCONFIG_MODULE_COMPRESS_ALL=y\nCONFIG_MODULE_COMPRESS_%s=y\n' "$1" >>"$tree/include/config/auto.conf"
    }"#;

/// Gives the machine what Ubuntu 24.04 has otherwise than Debian: kernel headers whose folder has links into a common one and
/// files of its own, modules packed by zstd, a search line for depmod, and a rustc that is too old, beside
/// newer ones with their versions in the name. (Its packages linux-headers, kmod and rustc-1.NN.)
const AS_UBUNTU: &str = r#"common=/usr/src/linux-headers-common
    mv "$tree" $common
    cp -Rs $common "$tree"
    for own in .config Module.symvers include/config include/generated arch/x86/include/generated; do
        [ ! -e "$common/$own" ] || { rm -r "$tree/$own"; mv "$common/$own" "$tree/$own"; }
    done
    compress ZSTD
    echo 'search updates ubuntu built-in' >/usr/lib/depmod.d/ubuntu.conf
    printf 'ID=ubuntu\nID_LIKE=debian\nVERSION_ID="24.04"\nPRETTY_NAME="Ubuntu 24.04"\n' >/etc/os-release
    minor=$(rustc --version | cut -d . -f 2)
    for tool in rustc cargo; do
        mv /usr/bin/$tool /usr/bin/$tool-1.$minor
        printf '#!/bin/sh\ncase "$1" in -*V* | --version) echo "%s 1.75.0 (of the test)" ;; --print) exec %s-1.%s "$@" ;; *) echo "%s 1.75.0 is too old" >&2; exit 1 ;; esac\n' \
            $tool $tool $minor $tool >/usr/bin/$tool
        chmod +x /usr/bin/$tool
    done"#;

/// Gives the machine what RHEL 9 has otherwise than Debian: kernel headers in /usr/src/kernels, modules packed by xz, those of
/// others in `extra`, where dkms puts them there, and depmod's search line for them. (Its packages
/// kernel-devel and kmod, and EPEL's dkms.)
const AS_RHEL: &str = r#"compress XZ
    ln -s build /lib/modules/$k/source
    echo 'search updates extra built-in weak-updates' >/usr/lib/depmod.d/dist.conf
    mkdir -p /lib/modules/$k/extra /lib/modules/$k/weak-updates
    printf 'ID="rhel"\nID_LIKE="fedora"\nVERSION_ID="9.6"\nPLATFORM_ID="platform:el9"\nPRETTY_NAME="Red Hat Enterprise Linux 9.6"\n' >/etc/os-release
    for file in /lib/modules/$k/updates/dkms/*; do
        xz "$file"
        mv "$file.xz" /lib/modules/$k/extra/
    done"#;

/// Makes the machine's folders those of another distribution, whose packages no registry of ours has. Kernel,
/// compiler and tools stay Debian's.
fn dress(test: &Test, tree: &str, script: &str) -> Result<()> {
    test.machine.must(&format!("mkdir -p /usr/lib/depmod.d\ntree={tree}\n{ONE_TREE}\n{script}\ndepmod $k"))?;
    let kernel = test.kernel()?;
    let got = test.machine.resolved(&kernel)?;
    ensure!(matches!(got, Resolved::Nvidia(_)), "before ours is there modprobe takes {got}");
    Ok(())
}

pub(super) fn folders_of_ubuntu(test: &mut Test) -> Result<()> {
    dress(test, "/usr/src/linux-headers-generic", AS_UBUNTU)?;
    by_hand(test, "in folders like Ubuntu's", true)?;
    let version = test.version();
    test.transaction(&format!("dpkg -i {}", ours(&version)))?;
    test.expect_ours("installation in folders like Ubuntu's", &version)?;
    gone(test, "purge of ours in folders like Ubuntu's", "-P")
}

pub(super) fn folders_of_rhel(test: &mut Test) -> Result<()> {
    dress(test, "/usr/src/kernels/tree", AS_RHEL)?;
    by_hand(test, "in folders like RHEL's", false)?;
    let version = test.version();
    test.transaction(&format!("rpm -i --nodeps {}", our_rpm(&version)))?;
    test.expect_ours("rpm: installation in folders like RHEL's", &version)?;
    gone_by_rpm(test, "rpm: removal of ours in folders like RHEL's")
}
