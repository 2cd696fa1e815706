// SPDX-License-Identifier: GPL-2.0

//! Makes something happen to a machine, and checks what modprobe must resolve to afterwards.

use crate::machine::{Built, Layers, Machine, Resolved, Said};
use crate::stubs::{deb, our_rpm, ours, BROKEN, DEBS, NEXT, NVIDIA, OFED};
use anyhow::{anyhow, ensure, Context, Result};

/// One transition, which starts from a machine with both neighbours and our package.
pub struct Transition {
    pub name: &'static str,
    /// Whether it builds no module of ours, so that it is part of `make test`.
    pub quick: bool,
    pub run: fn(&mut Test) -> Result<()>,
}

/// A machine under test, and what was seen on it.
pub struct Test {
    pub machine: Machine,
    /// The version of our package that is installed.
    pub version: String,
    pub rows: Vec<Row>,
    /// The exit code of the last transaction, until the rows of an action have it.
    pub exit: Option<i32>,
    /// Holds what programs of others have said, by the name of the page that shows it.
    pub shown: Vec<(&'static str, String)>,
}

/// A line of the table: what an action left on a kernel.
pub struct Row {
    pub kernel: String,
    pub action: String,
    /// The exit code of dpkg or rpm, if one of them was called.
    pub exit: Option<i32>,
    pub initrd: bool,
    pub takes: String,
}

const fn quick(name: &'static str, run: fn(&mut Test) -> Result<()>) -> Transition {
    Transition { name, quick: true, run }
}
const fn long(name: &'static str, run: fn(&mut Test) -> Result<()>) -> Transition {
    Transition { name, quick: false, run }
}

/// The transitions in the order of the table.
pub const ALL: &[Transition] = &[
    quick("lint", lint),
    quick("units", units),
    quick("alerts", alerts),
    quick(INSTALLED, installed),
    quick("nvidia_same_interface", nvidia_same_interface),
    long("nvidia_up_and_down", nvidia_up_and_down),
    quick("nvidia_removed", nvidia_removed),
    quick("nvidia_half_installed", nvidia_half_installed),
    quick("debians_driver", debians_driver),
    quick("another_search_line", another_search_line),
    long("ofed_upgrade", ofed_upgrade),
    quick("ofed_of_two_versions", ofed_of_two_versions),
    long("neighbour_of_another_abi", neighbour_of_another_abi),
    quick("kernel_that_ours_is_not_built_for", kernel_that_ours_is_not_built_for),
    long("kernel_upgrade_and_removal", kernel_upgrade_and_removal),
    long("kernel_installed_again", kernel_installed_again),
    long("one_transaction", one_transaction),
    long("upgrade_in_one_transaction", upgrade_in_one_transaction),
    long("without_neighbours", without_neighbours),
    long("reinstalled", reinstalled),
    long("own_upgrade", own_upgrade),
    long("own_upgrade_that_fails", own_upgrade_that_fails),
    long("dpkg_interrupted", dpkg_interrupted),
    quick("disk_full", disk_full),
    quick("disk_full_while_configuring", disk_full_while_configuring),
    quick("disk_full_at_a_refresh", disk_full_at_a_refresh),
    quick("a_place_that_is_full_or_read_only", a_place_that_is_full_or_read_only),
    quick("a_build_that_failed_is_tried_again", a_build_that_failed_is_tried_again),
    quick("kernel_without_headers", kernel_without_headers),
    long("interrupted_at_each_step", interrupted_at_each_step),
    quick("a_release_that_begins_another", a_release_that_begins_another),
    quick("key_not_enrolled", key_not_enrolled),
    quick("another_file_is_taken", another_file_is_taken),
    quick("openibd_hook", openibd_hook),
    quick("each_kernel_by_itself", each_kernel_by_itself),
    quick("a_kernel_that_fails_beside_others", a_kernel_that_fails_beside_others),
    quick("uninstalled_by_the_admin", uninstalled_by_the_admin),
    quick("kernel_removed_by_rpm", kernel_removed_by_rpm),
    quick("one_refresh_at_a_time", one_refresh_at_a_time),
    quick("a_tool_is_missing", a_tool_is_missing),
    quick("no_program_of_dkms_keeps_the_lock", no_program_of_dkms_keeps_the_lock),
    quick("booted", booted),
    long("booted_after_a_change", booted_after_a_change),
    quick("removed", removed),
    quick("purged", purged),
    quick("removed_while_unpacked", removed_while_unpacked),
    long(RPM, rpm),
    long("rpm_interrupted", rpm_interrupted),
    long("neighbours_by_rpm", neighbours_by_rpm),
    long(README, readme),
    long(OF_UBUNTU, folders_of_ubuntu),
    long(OF_RHEL, folders_of_rhel),
    long("peermemctl", peermemctl),
    long("peermemctl_by_rpm", peermemctl_by_rpm),
    long("metrics", metrics),
    long("monitoring", monitoring),
    long("slurm", slurm),
    long("libraries", libraries),
    long("libraries_by_rpm", libraries_by_rpm),
];

/// The page that shows what Prometheus, node_exporter and Slurm say.
const MONITORING: &str = "monitoring.txt";
/// The command that an admin types to have modules built.
const UPKEEP_REFRESH: &str = "/usr/lib/nvidia-peermem-rust/upkeep refresh";
/// The transition that a new compiler has to pass.
pub const INSTALLED: &str = "installed";
const RPM: &str = "rpm";
const README: &str = "readme";
const OF_UBUNTU: &str = "folders_of_ubuntu";
const OF_RHEL: &str = "folders_of_rhel";
/// The transitions that start from a machine with the neighbours alone.
pub const WITHOUT_OURS: [&str; 4] = [RPM, README, OF_UBUNTU, OF_RHEL];

impl Test {
    /// Runs a script with a transaction of dpkg or rpm, which may fail. The row that follows has
    /// its exit code.
    fn act(&mut self, script: &str) -> Result<Said> {
        let said = self.machine.run(script)?;
        self.exit = Some(said.code);
        Ok(said)
    }

    /// Runs a transaction that must not fail, and returns its output.
    fn transaction(&mut self, script: &str) -> Result<String> {
        let said = self.act(script)?;
        ensure!(said.ok, "{script}\n{}", said.text);
        Ok(said.text)
    }

    /// Writes a row of the table.
    fn row(&mut self, kernel: &str, action: &str, takes: &str) -> Result<()> {
        let initrd = self.machine.run(&format!("test -s /boot/initrd.img-{kernel}"))?.ok;
        let (kernel, action, takes) = (kernel.to_string(), action.to_string(), takes.to_string());
        // An action on several kernels has one transaction.
        let before = self.rows.last().filter(|row| row.action == action).and_then(|row| row.exit);
        self.rows.push(Row { kernel, action, exit: self.exit.take().or(before), initrd, takes });
        Ok(())
    }

    fn kernel(&self) -> Result<String> {
        self.machine.kernels()?.into_iter().next().context("no kernel")
    }

    /// Checks that this is what modprobe chooses after `action`.
    fn expect(&mut self, action: &str, kernel: &str, want: &Resolved) -> Result<()> {
        let got = self.machine.resolved(kernel)?;
        self.row(kernel, action, &got.to_string())?;
        ensure!(got == *want, "after {action} modprobe on {kernel} takes {got}, not {want}");
        Ok(())
    }

    /// Checks that modprobe chooses our module, built against the present neighbours.
    fn expect_ours(&mut self, action: &str, version: &str) -> Result<()> {
        for kernel in self.machine.kernels()? {
            self.expect(action, &kernel, &Resolved::Ours { version: version.to_string(), built: Built::Whole })?;
        }
        Ok(())
    }

    fn version(&self) -> String {
        self.version.clone()
    }
}

/// Returns a machine under test that starts from these layers.
pub fn started(layers: &Layers, version: &str) -> Result<Test> {
    let machine = Machine::new(layers)?;
    Ok(Test { machine, version: version.to_string(), rows: Vec::new(), exit: None, shown: Vec::new() })
}

/// Checks that exactly one line of a text contains all these words.
fn one_line(text: &str, words: &[&str]) -> Result<()> {
    let lines: Vec<&str> = text.lines().filter(|line| words.iter().all(|word| line.contains(word))).collect();
    ensure!(lines.len() == 1, "{} lines with {words:?}, not one:\n{text}", lines.len());
    Ok(())
}

/// Checks that the text of a failed build contains the line that the module writes for DKMS's log.
fn says_why(text: &str, reason: &str) -> Result<()> {
    one_line(text, &["nvidia-peermem-rust: not built for kernel ", reason, "modprobe loads "])
}

/// lintian and rpmlint report nothing that packaging/ does not excuse with a reason.
fn lint(test: &mut Test) -> Result<()> {
    test.machine.must(&format!(
        "cd {DEBS}; lintian --fail-on error,warning *_{v}-1_*.deb
        set -- *-{v}-1.*.rpm
        [ ! -e $1 ] || rpmlint -c /srv/source/packaging/rpm/rpmlint.toml $* /srv/source/packaging/rpm/*.spec",
        v = test.version
    ))?;
    Ok(())
}

/// systemd reports nothing about the units.
fn units(test: &mut Test) -> Result<()> {
    let said = test.machine.must(
        "systemd-analyze verify --man=no /usr/lib/systemd/system/nvidia-peermem-rust.service /srv/source/packaging/monitoring/*.service /srv/source/packaging/monitoring/*.timer",
    )?;
    ensure!(said.is_empty(), "{said}");
    Ok(())
}

/// promtool finds each alert firing where it should, and only there; each has a test.
fn alerts(test: &mut Test) -> Result<()> {
    test.machine.must("cd /srv/source/tests/packages/alerts; promtool test rules hours.yml week.yml")?;
    let rules = include_str!("../../../packaging/monitoring/alerts.yml");
    let tests = [include_str!("../alerts/hours.yml"), include_str!("../alerts/week.yml")].concat();
    for name in rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")) {
        let fires = format!("{{labels: 'ALERTS{{alertname=\"{name}\",");
        ensure!(tests.contains(&fires), "no test has {name} fire");
    }
    Ok(())
}

fn installed(test: &mut Test) -> Result<()> {
    let version = test.version();
    test.expect_ours("installation", &version)?;
    let kernel = test.kernel()?;
    let status = test.machine.must("dkms status -m nvidia-peermem-rust")?;
    one_line(&status, &[&kernel, "installed"])?;
    // Without its neighbours' versions the kernel would not notice if it does not fit them.
    if test.machine.run(&format!("grep -q '^CONFIG_MODVERSIONS=y' /boot/config-{kernel}"))?.ok {
        let wants =
            test.machine.must(&format!("modprobe --dump-modversions $(modinfo -k {kernel} -n nvidia-peermem)"))?;
        for symbol in ["ib_register_peer_memory_client", "nvidia_p2p_get_pages", "nvidia_p2p_get_pages_persistent"] {
            let has = wants.lines().any(|line| line.ends_with(&format!("\t{symbol}")));
            ensure!(has, "no version of {symbol}:\n{wants}");
        }
    }
    // modprobe applies parameters by the module's name.
    let options = test.machine.must(&format!(
        "echo 'options nvidia-peermem persistent_api_support=0' >/etc/modprobe.d/admin.conf
        modprobe -S {kernel} -n --show-depends nvidia-peermem"
    ))?;
    one_line(&options, &["nvidia-peermem.ko", "persistent_api_support=0"])?;
    test.machine.must("test -f /lib/modules/*/updates/dkms/nvidia-peermem.ko*")?;
    units_document(test)
}

/// The page that our unit names exists.
fn units_document(test: &Test) -> Result<()> {
    let unit = "/usr/lib/systemd/system/nvidia-peermem-rust.service";
    test.machine.must(&format!(r#"test -f "$(sed -n 's/^Documentation=file://p' {unit})""#))?;
    Ok(())
}

fn nvidia_same_interface(test: &mut Test) -> Result<()> {
    let version = test.version();
    let text = test.transaction(&format!("dpkg -i {}", deb("nvidia", NVIDIA[1])))?;
    ensure!(!text.contains("nvidia-peermem-rust: building"), "nothing that ours needs has changed:\n{text}");
    test.expect_ours("upgrade of NVIDIA's driver, same interface", &version)
}

fn nvidia_up_and_down(test: &mut Test) -> Result<()> {
    let version = test.version();
    for (action, other) in [("upgrade of NVIDIA's driver", NVIDIA[2]), ("downgrade of NVIDIA's driver", NVIDIA[0])] {
        let text = test.transaction(&format!("dpkg -i {}", deb("nvidia", other)))?;
        one_line(&text, &["nvidia-peermem-rust: building for kernel"])?;
        test.expect_ours(action, &version)?;
    }
    Ok(())
}

fn nvidia_removed(test: &mut Test) -> Result<()> {
    let version = test.version();
    let text = test.transaction("dpkg -P nvidia-dkms")?;
    ensure!(!text.contains("nvidia-peermem-rust: building"), "there is nothing new to build against:\n{text}");
    test.expect_ours("removal of NVIDIA's driver", &version)?;
    test.transaction("dpkg -P nvidia-peermem-rust-dkms")?;
    let kernel = test.kernel()?;
    test.expect("removal of ours after NVIDIA's", &kernel, &Resolved::Nothing)
}

/// The package is unpacked, but its module does not compile.
fn nvidia_half_installed(test: &mut Test) -> Result<()> {
    let version = test.version();
    let said = test.act(&format!(
        "dpkg --unpack {next} && echo '#error half' >>/usr/src/nvidia-{v}/nvidia.c && dpkg --configure nvidia-dkms",
        next = deb("nvidia", NVIDIA[2]),
        v = NVIDIA[2],
    ))?;
    ensure!(!said.ok, "the driver's build should have failed");
    test.expect_ours("NVIDIA's driver half installed", &version)?;
    test.transaction("dpkg -P nvidia-peermem-rust-dkms")?;
    Ok(())
}

/// Debian's driver packages give their files other names, and make modprobe choose them by a line
/// `install`. modprobe ignores that for our module, which has a softdep, so the settings of admin
/// and packages are left alone.
fn debians_driver(test: &mut Test) -> Result<()> {
    let version = test.version();
    test.transaction(&format!(
        "dpkg -P nvidia-dkms
        echo 'install nvidia modprobe -i nvidia-current-open $CMDLINE_OPTS
        install nvidia-peermem modprobe nvidia ; modprobe -i nvidia-current-open-peermem $CMDLINE_OPTS' >/etc/modprobe.d/nvidia.conf
        dpkg -i {}",
        deb("nvidia-current-open", NVIDIA[0])
    ))?;
    test.expect_ours("Debian's own driver packages", &version)?;
    let lines = test.machine.must("modprobe --showconfig | grep '^install nvidia_peermem '")?;
    one_line(&lines, &["install nvidia_peermem"])?;
    test.transaction("dpkg -r nvidia-peermem-rust-dkms")?;
    let kernel = test.kernel()?;
    let got = test.machine.resolved(&kernel)?;
    test.row(&kernel, "removal of ours beside them", &got.to_string())?;
    ensure!(matches!(&got, Resolved::Nvidia(file) if file.starts_with("nvidia-current-open-peermem.ko")), "{got}");
    Ok(())
}

/// Ubuntu's kmod brings such a line.
fn another_search_line(test: &mut Test) -> Result<()> {
    let version = test.version();
    test.transaction(
        "mkdir -p /etc/depmod.d; echo 'search updates ubuntu built-in' >/etc/depmod.d/ubuntu.conf
        dpkg-trigger --no-await /lib/modules; dpkg --configure --pending",
    )?;
    let conf = test.machine.must("cat /usr/lib/depmod.d/00-nvidia-peermem-rust.conf")?;
    one_line(&conf, &["search external"])?;
    ensure!(conf.lines().any(|line| line == "search external"), "Ubuntu's own order is not to be changed:\n{conf}");
    test.expect_ours("a search line in depmod.d, as Ubuntu's", &version)
}

fn ofed_upgrade(test: &mut Test) -> Result<()> {
    let version = test.version();
    let text = test.transaction(&format!("dpkg -i {}", deb("mlnx-ofed-kernel", OFED[1])))?;
    one_line(&text, &["nvidia-peermem-rust: building for kernel"])?;
    test.expect_ours("upgrade of OFED", &version)
}

/// `default` points at the build for another kernel, and files of another version exist. Only this
/// kernel's build counts.
fn ofed_of_two_versions(test: &mut Test) -> Result<()> {
    let version = test.version();
    let text = test.transaction(
        "cd /usr/src/ofa_kernel && mkdir -p $(uname -m)/9.9.9-other && sed 's/^0x......../0x12345678/' default/Module.symvers >$(uname -m)/9.9.9-other/Module.symvers
        ln -sfn /usr/src/ofa_kernel/$(uname -m)/9.9.9-other default
        dpkg-trigger --no-await /usr/src; dpkg --configure --pending",
    )?;
    ensure!(!text.contains("nvidia-peermem-rust: "), "nothing of this kernel has changed:\n{text}");
    test.expect_ours("a second OFED, for another kernel", &version)?;
    // If this kernel's build is gone, another kernel's is not used in its place.
    let kernel = test.kernel()?;
    let text = test.machine.must(&format!(
        "rm -r /usr/src/ofa_kernel/$(uname -m)/{kernel}
        cd /usr/src/nvidia-peermem-rust-*/ && make -s preflight KDIR=/lib/modules/{kernel}/build OUT=/tmp/out 2>&1"
    ))?;
    one_line(&text, &["9.9.9-other", "another kernel"])?;
    ensure!(!text.contains("ib_register_peer_memory_client: /usr/src/ofa_kernel/default"), "{text}");
    Ok(())
}

/// The module does not fit a neighbour. Its build fails, and the former module stays.
fn neighbour_of_another_abi(test: &mut Test) -> Result<()> {
    let version = test.version();
    let kernel = test.kernel()?;
    // Nothing has changed, so the build is not tried again.
    let text = test.transaction(&format!(
        "mkdir -p /usr/src/ofa_kernel/$(uname -m)/{kernel}/include/rdma
        echo '#error an interface that nobody knows' >/usr/src/ofa_kernel/$(uname -m)/{kernel}/include/rdma/peer_mem.h
        # As the service at boot does, beside apt.
        /usr/lib/nvidia-peermem-rust/upkeep refresh if-changed & /usr/lib/nvidia-peermem-rust/upkeep refresh if-changed; wait
        for i in 1 2; do dpkg-trigger --no-await /usr/src; dpkg --configure --pending; done"
    ))?;
    one_line(&text, &["nvidia-peermem-rust: building for kernel"])?;
    says_why(&text, "an interface that nobody knows")?;
    test.expect_ours("a rebuild that fails", &version)?;
    test.machine.must("dkms status -m nvidia-peermem-rust | grep installed")?;
    test.transaction("dpkg -P nvidia-peermem-rust-dkms")?;
    let got = test.machine.resolved(&kernel)?;
    ensure!(matches!(got, Resolved::Nvidia(_)), "after a removal then: {got}");
    Ok(())
}

/// Checks that dpkg has nothing left to do, and that no kernel lacks its initrd.
fn nothing_half_installed(test: &Test) -> Result<()> {
    let left = test.machine.must(
        "dpkg --audit
        for kernel in /lib/modules/*/kernel; do k=$(basename $(dirname $kernel)); [ -s /boot/initrd.img-$k ] || echo no initrd for $k; done",
    )?;
    ensure!(left.is_empty(), "{left}");
    Ok(())
}

/// A make that fails where something is to be built for the kernel in /srv/kernel.
const NOT_FOR_THE_NEXT_KERNEL: &str = r#"new=$(basename /srv/kernel/linux-headers-*-$(dpkg --print-architecture)_*.deb); new=${new#linux-headers-}; new=${new%%_*}
        printf '#!/bin/sh\ncase "$*" in *KDIR=/lib/modules/%s/build*) echo "error: of the test"; exit 2 ;; esac\nexec /usr/bin/make "$@"\n' "$new" >/usr/local/bin/make
        chmod +x /usr/local/bin/make"#;

/// A kernel is installed for which our module cannot be built. It gets its initrd and its
/// neighbours, and uses NVIDIA's module. Our module follows once it can be built.
fn kernel_that_ours_is_not_built_for(test: &mut Test) -> Result<()> {
    let (old, version) = (test.kernel()?, test.version());
    let text = test.transaction(&format!("{NOT_FOR_THE_NEXT_KERNEL}\ndpkg -i /srv/kernel/*.deb"))?;
    says_why(&text, "of the test")?;
    nothing_half_installed(test)?;
    let new = test.machine.kernels()?.into_iter().find(|kernel| *kernel != old).context("a second kernel")?;
    let got = test.machine.resolved(&new)?;
    test.row(&new, "installation of a kernel for which ours is not built", &got.to_string())?;
    ensure!(matches!(got, Resolved::Nvidia(_)), "{got}");
    test.expect(
        "installation of a kernel for which ours is not built",
        &old,
        &Resolved::Ours { version, built: Built::Whole },
    )?;
    // apt goes on working.
    test.transaction("dpkg --configure --pending; dpkg-trigger --no-await /usr/src; dpkg --configure --pending")?;
    Ok(())
}

/// The same kernel's package is installed again, or after it was removed. Our module is there.
fn kernel_installed_again(test: &mut Test) -> Result<()> {
    let (old, version) = (test.kernel()?, test.version());
    test.machine.must("dpkg -i /srv/kernel/*.deb")?;
    test.transaction("dpkg -i /srv/kernel/linux-image-*.deb")?;
    test.expect_ours("a kernel's package installed again", &version)?;
    test.transaction(
        "dpkg -P $(for file in /srv/kernel/linux-image-*.deb /srv/kernel/linux-headers-*-$(dpkg --print-architecture)_*.deb; do dpkg-deb -f $file Package; done); dpkg -i /srv/kernel/*.deb",
    )?;
    test.expect_ours("a kernel removed and installed again", &version)?;
    nothing_half_installed(test)?;
    ensure!(test.machine.kernels()?.contains(&old), "{old}");
    Ok(())
}

/// Our package, the driver and OFED are installed in one call of dpkg, ours before what it is built
/// against.
fn one_transaction(test: &mut Test) -> Result<()> {
    let version = test.version();
    test.machine
        .must("dpkg -P nvidia-peermem-rust-dkms nvidia-dkms mlnx-ofed-kernel-dkms; rm -rf /usr/src/ofa_kernel")?;
    let (driver, ofed) = (deb("nvidia", NVIDIA[0]), deb("mlnx-ofed-kernel", OFED[0]));
    let text = test.transaction(&format!("dpkg -i {} {driver} {ofed}", ours(&version)))?;
    one_line(&text, &["nvidia-peermem-rust: building for kernel"])?;
    one_line(&text, &["nvidia-peermem-rust: kernel ", "has a new module", "modprobe nvidia-peermem"])?;
    test.expect_ours("ours, driver and OFED in one transaction", &version)?;
    nothing_half_installed(test)
}

/// All three are upgraded in one call.
fn upgrade_in_one_transaction(test: &mut Test) -> Result<()> {
    let (driver, ofed) = (deb("nvidia", NVIDIA[2]), deb("mlnx-ofed-kernel", OFED[1]));
    let text = test.transaction(&format!("dpkg -i {driver} {} {ofed}", ours(NEXT)))?;
    one_line(&text, &["nvidia-peermem-rust: building for kernel"])?;
    test.expect_ours("upgrade of all three in one transaction", NEXT)?;
    nothing_half_installed(test)
}

/// Removes both neighbours and ours, and what OFED's build has left.
const NO_NEIGHBOURS: &str =
    "dpkg -P nvidia-peermem-rust-dkms nvidia-dkms mlnx-ofed-kernel-dkms; rm -rf /usr/src/ofa_kernel";

/// Ours is installed where a neighbour is missing, or both are. dpkg ends well, and one line says what
/// the module was built without. Each neighbour that comes has it built again, and in the end it has
/// the version of each symbol.
fn without_neighbours(test: &mut Test) -> Result<()> {
    const CORE: &str = "an RDMA core with the peer-memory API (DOCA-OFED)";
    const DRIVER: &str = "NVIDIA's GPU driver";
    let (kernel, version) = (test.kernel()?, test.version());
    let (driver, ofed) = (deb("nvidia", NVIDIA[0]), deb("mlnx-ofed-kernel", OFED[0]));
    let without = |what: &str| {
        format!("has a new module, built without {what}, which kernel {kernel} does not have: it is built again once that is installed")
    };
    let layers = test.machine.layers()?;
    for (quick, first, steps) in [
        (
            "true",
            "true".to_string(),
            vec![
                ("ours with neither neighbour", ours(&version), Some(format!("{CORE} and {DRIVER}"))),
                ("ours with neither neighbour, then OFED", ofed.clone(), Some(DRIVER.to_string())),
                ("ours with neither neighbour, then OFED and the driver", driver.clone(), None),
            ],
        ),
        (
            QUICK_MAKE,
            format!("dpkg -i {driver}"),
            vec![
                ("ours with the driver alone", ours(&version), Some(CORE.to_string())),
                ("ours with the driver alone, then OFED", ofed.clone(), None),
            ],
        ),
        (
            QUICK_MAKE,
            format!("dpkg -i {ofed}"),
            vec![
                ("ours with OFED alone", ours(&version), Some(DRIVER.to_string())),
                ("ours with OFED alone, then the driver", driver.clone(), None),
            ],
        ),
    ] {
        let mut at = started(&layers, &version)?;
        at.machine.must(&format!("{quick}\n{NO_NEIGHBOURS}; {first}"))?;
        for (action, deb, lacks) in steps {
            let text = at.transaction(&format!("dpkg -i {deb}"))?;
            one_line(&text, &["nvidia-peermem-rust: building for kernel"])?;
            if let Some(lacks) = &lacks {
                one_line(&text, &["nvidia-peermem-rust: kernel ", &without(lacks)])?;
            } else {
                one_line(&text, &["nvidia-peermem-rust: kernel ", "has a new module"])?;
                ensure!(!text.contains("built without"), "nothing is missing any more:\n{text}");
            }
            let got = at.machine.resolved(&kernel)?;
            let takes = lacks.as_ref().map_or_else(|| got.to_string(), |lacks| format!("{got}, built without {lacks}"));
            at.row(&kernel, action, &takes)?;
            let want = Resolved::Ours { version: version.clone(), built: Built::Whole };
            ensure!(got == want, "after {action} modprobe on {kernel} takes {got}");
            nothing_half_installed(&at)?;
        }
        test.rows.append(&mut at.rows);
    }
    // A driver is there whose file has no versions, so the kernel could not compare any.
    let mut at = started(&layers, &version)?;
    at.machine.must(&format!(
        r#"{QUICK_MAKE}
        {NO_NEIGHBOURS}; dpkg -i {ofed}; mkdir -p /lib/modules/{kernel}/updates
        printf '.section .modinfo,"a"\n.asciz "license=GPL"\n.asciz "version={}"\n' >/tmp/ko.s
        as /tmp/ko.s -o /lib/modules/{kernel}/updates/nvidia.ko; depmod {kernel}"#,
        NVIDIA[0]
    ))?;
    let text = at.transaction(&format!("dpkg -i {}", ours(&version)))?;
    let unchecked = format!("has a new module, without symbol versions of the GPU driver: kernel {kernel} will not notice if it does not fit");
    one_line(&text, &["nvidia-peermem-rust: kernel ", &unchecked])?;
    at.expect("ours, and a driver without symbol versions", &kernel, &Resolved::Ours { version, built: Built::Whole })?;
    test.rows.append(&mut at.rows);
    Ok(())
}

/// The same versions of ours, the driver and OFED are installed again: one by one, and in each order of
/// one transaction, also for the first time in that order. The module is built once where ours is among
/// them, and fits.
fn reinstalled(test: &mut Test) -> Result<()> {
    let version = test.version();
    test.machine.must(QUICK_MAKE)?;
    let packages = [
        ("ours", ours(&version)),
        ("the driver", deb("nvidia", NVIDIA[0])),
        ("OFED", deb("mlnx-ofed-kernel", OFED[0])),
    ];
    for (name, deb) in &packages {
        let text = test.transaction(&format!("dpkg -i {deb}"))?;
        if *name == "ours" {
            one_line(&text, &["nvidia-peermem-rust: building for kernel"])?;
        } else {
            ensure!(!text.contains("nvidia-peermem-rust: building"), "nothing that ours needs has changed:\n{text}");
        }
        test.expect_ours(&format!("{name} installed again"), &version)?;
        nothing_half_installed(test)?;
    }
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let [(a, first), (b, second), (c, third)] = order.map(|index| &packages[index]);
        let install = format!("dpkg -i {first} {second} {third}");
        test.machine.must(NO_NEIGHBOURS)?;
        for again in ["installed", "installed again"] {
            let text = test.transaction(&install)?;
            one_line(&text, &["nvidia-peermem-rust: building for kernel"])?;
            test.expect_ours(&format!("{a}, {b} and {c} {again} in one transaction, in this order"), &version)?;
            nothing_half_installed(test)?;
        }
    }
    Ok(())
}

fn kernel_upgrade_and_removal(test: &mut Test) -> Result<()> {
    let version = test.version();
    let old = test.kernel()?;
    test.transaction("dpkg -i /srv/kernel/*.deb")?;
    ensure!(test.machine.kernels()?.len() == 2, "two kernels should be there");
    test.expect_ours("installation of another kernel", &version)?;
    test.transaction(&format!("dpkg -P linux-image-{old} linux-headers-{old}"))?;
    test.expect_ours("removal of the first kernel", &version)?;
    let left = test.machine.must(&format!(
        "ls -d /usr/lib/nvidia-peermem-rust/{old} 2>/dev/null || true; grep -h {old} /usr/lib/depmod.d/00-* || true"
    ))?;
    ensure!(left.is_empty(), "of the kernel that is gone there is still: {left}");
    Ok(())
}

fn own_upgrade(test: &mut Test) -> Result<()> {
    test.transaction(&format!("dpkg -i {}", ours(NEXT)))?;
    test.expect_ours("upgrade of ours", NEXT)?;
    let left = test.machine.must("dkms status -m nvidia-peermem-rust")?;
    ensure!(left.lines().count() == 1, "{left}");
    Ok(())
}

fn own_upgrade_that_fails(test: &mut Test) -> Result<()> {
    let version = test.version();
    let text = test.transaction(&format!("dpkg -i {}", ours(BROKEN)))?;
    says_why(&text, "no such kernel")?;
    test.expect_ours("upgrade of ours that does not build", &version)?;
    test.transaction("dpkg -P nvidia-peermem-rust-dkms")?;
    let kernel = test.kernel()?;
    let got = test.machine.resolved(&kernel)?;
    test.row(&kernel, "removal after that", &got.to_string())?;
    ensure!(matches!(got, Resolved::Nvidia(_)), "NVIDIA's file is not back: {got}");
    Ok(())
}

/// The exit code of who is killed by signal 9.
const KILLED: i32 = 128 + 9;

/// dpkg is killed while it builds; `dpkg --configure --pending` ends what it began.
fn dpkg_interrupted(test: &mut Test) -> Result<()> {
    let version = test.version();
    let said = test.act(&format!(
        "dpkg -i {} >/tmp/log 2>&1 & pid=$!
        until pgrep -x rustc >/dev/null 2>&1 || [ -n \"$(grep -ls '^rustc' /proc/[0-9]*/comm)\" ]; do
            kill -0 $pid 2>/dev/null || {{ cat /tmp/log; exit 1; }}
            sleep 0.2
        done
        kill -9 $pid; code=0; wait $pid || code=$?
        for dir in /proc/[0-9]*; do
            [ ${{dir#/proc/}} = $$ ] || [ ${{dir#/proc/}} = 1 ] || kill -9 ${{dir#/proc/}} 2>/dev/null || true
        done
        exit $code",
        ours(NEXT)
    ))?;
    ensure!(said.code == KILLED, "dpkg was not killed:\n{}", said.text);
    test.expect_ours("upgrade of ours, dpkg killed in it", &version)?;
    test.transaction("dpkg --configure --pending")?;
    test.expect_ours("dpkg --configure --pending after it", NEXT)
}

/// The disk is full before the build ends. What existed before stays, and works.
fn disk_full(test: &mut Test) -> Result<()> {
    let version = test.version();
    test.machine.disk = Some(12);
    let said = test.act(&format!(
        "dpkg -i {}
        k=$(uname -r); file=$(modinfo -k $k -n nvidia-peermem); echo resolved $file $(modinfo -F version $file)",
        ours(NEXT)
    ))?;
    test.machine.disk = None;
    ensure!(said.ok, "{}", said.text);
    says_why(&said.text, "No space left")?;
    one_line(&said.text, &["resolved /usr/lib/nvidia-peermem-rust/", &version])?;
    let kernel = test.kernel()?;
    test.row(&kernel, "upgrade of ours, disk full", &format!("ours, {version}"))?;
    Ok(())
}

/// depmod's configuration stays as it was if the new text does not fit on the disk.
fn disk_full_while_configuring(test: &mut Test) -> Result<()> {
    test.machine.disk = Some(8);
    let said = test.machine.run(
        "conf=/usr/lib/depmod.d/00-nvidia-peermem-rust.conf; cp $conf /tmp/
        mkdir /usr/lib/nvidia-peermem-rust/9.9.9; : >/usr/lib/nvidia-peermem-rust/9.9.9/nvidia-peermem.ko
        cat /dev/zero >/fill 2>/dev/null || true
        if /usr/lib/nvidia-peermem-rust/upkeep removed; then exit 1; fi
        cmp $conf /tmp/00-nvidia-peermem-rust.conf; ls /usr/lib/depmod.d",
    );
    test.machine.disk = None;
    let said = said?;
    ensure!(said.ok && !said.text.contains(".new\n"), "{}", said.text);
    one_line(&said.text, &["cannot write /lib/depmod.d/00-nvidia-peermem-rust.conf", "No space left on device"])
}

/// A neighbour has changed, but the disk cannot even hold a copy of the module during a build. No
/// build is begun.
fn disk_full_at_a_refresh(test: &mut Test) -> Result<()> {
    let kernel = test.kernel()?;
    let version = test.version();
    test.machine.disk = Some(8);
    let said = test.machine.run(&format!(
        "sed -i 's/^0x......../0x12345678/' /usr/src/ofa_kernel/$(uname -m)/{kernel}/Module.symvers
        cat /dev/zero >/fill 2>/dev/null || true
        /usr/lib/nvidia-peermem-rust/upkeep refresh
        file=$(modinfo -k {kernel} -n nvidia-peermem); echo resolved $file $(modinfo -F version $file)
        rm /fill; dkms status -m nvidia-peermem-rust"
    ));
    test.machine.disk = None;
    let said = said?;
    ensure!(said.ok, "{}", said.text);
    one_line(&said.text, &["nvidia-peermem-rust: cannot keep the module of kernel", "make room"])?;
    ensure!(!said.text.contains("cp: "), "{}", said.text);
    one_line(&said.text, &["resolved /usr/lib/nvidia-peermem-rust/", &version])?;
    one_line(&said.text, &[&kernel, "installed"])
}

/// Each place that a build or an installation writes to is full, or cannot be written. One line
/// says so, nothing else fails, and modprobe's choice stays. Where DKMS has built a module and
/// could not install it, the next trigger does.
fn a_place_that_is_full_or_read_only(test: &mut Test) -> Result<()> {
    let (kernel, version) = (test.kernel()?, test.version());
    let full = |dir: &str| {
        format!(
            "cp -a {dir} /tmp/copy; mount -t tmpfs -o size=$(($(du -sk {dir} | cut -f 1) + 512))k full {dir}; cp -a /tmp/copy/. {dir}/; cat /dev/zero >{dir}/fill 2>/dev/null || true"
        )
    };
    let read_only = |dir: &str| format!("mount --bind {dir} {dir}; mount -o remount,bind,ro {dir}");
    let places = [
        ("a full /var/lib/dkms", full("/var/lib/dkms"), "No space left"),
        ("a full /usr/lib/nvidia-peermem-rust", full("/usr/lib/nvidia-peermem-rust"), "No space left"),
        ("a full /tmp", "cat /dev/zero >/tmp/fill 2>/dev/null || true".to_string(), "/tmp"),
        ("a full /run", "cat /dev/zero >/run/fill 2>/dev/null || true".to_string(), "No space left"),
        ("a read-only /usr", read_only("/usr"), "Read-only file system"),
        ("a read-only /var/lib/dkms", read_only("/var/lib/dkms"), "Read-only file system"),
        // DKMS takes the former file away, so there is room for a part of a larger one.
        (
            "a full /lib/modules",
            format!(
                "{QUICK_MAKE}
                head -c 4000000 /dev/urandom >>/srv/nvidia-peermem-rust.ko; {}",
                full(&format!("/lib/modules/{kernel}/updates"))
            ),
            "No space left",
        ),
        ("a read-only /lib/modules", format!("{QUICK_MAKE}\n{}", read_only("/lib/modules")), "Read-only file system"),
        (
            "a read-only folder of /lib/modules",
            format!("{QUICK_MAKE}\n{}", read_only(&format!("/lib/modules/{kernel}/updates"))),
            "Read-only file system",
        ),
    ];
    let layers = test.machine.layers()?;
    for (place, lay, reason) in places {
        let mut at = started(&layers, &version)?;
        let said = at.act(&format!(
            "sed -i 's/^0x......../0x12345678/' /usr/src/ofa_kernel/$(uname -m)/{kernel}/Module.symvers
            {lay}
            dpkg-trigger --no-await /usr/src; dpkg --configure --pending
            file=$(modinfo -k {kernel} -n nvidia-peermem); echo resolved $file $(modinfo -F version $file)"
        ))?;
        ensure!(said.ok, "{place}: {}", said.text);
        let lines: Vec<&str> = said.text.lines().filter(|line| !line.starts_with("Processing triggers for ")).collect();
        let (last, lines) = lines.split_last().context("it says something")?;
        ensure!(
            last.starts_with("resolved /usr/lib/nvidia-peermem-rust/") && last.ends_with(&version),
            "{place}: {}",
            said.text
        );
        let lines: Vec<&&str> = lines.iter().filter(|line| !line.contains("building for kernel")).collect();
        ensure!(
            lines.len() == 1 && lines[0].starts_with("nvidia-peermem-rust: ") && lines[0].contains(reason),
            "{place}: not one line with {reason}:\n{}",
            said.text
        );
        at.row(&kernel, place, &format!("ours, {version}"))?;
        test.rows.append(&mut at.rows);
        // The folder that was mounted for that script is gone.
        if place.contains("/lib/modules") {
            let text = at.transaction("dpkg-trigger --no-await /usr/src; dpkg --configure --pending")?;
            one_line(&text, &["nvidia-peermem-rust: kernel ", "has a new module"])?;
            let text = at.transaction("dpkg-trigger --no-await /usr/src; dpkg --configure --pending")?;
            ensure!(!text.contains("nvidia-peermem-rust: "), "{place}: it is whole now:\n{text}");
        }
    }
    Ok(())
}

/// A build may fail for a cause that passes without a trigger. `upkeep refresh` by hand tries again and
/// answers each time. Triggers try again only if the cause was a disk, memory or a tool; otherwise
/// they say nothing twice.
fn a_build_that_failed_is_tried_again(test: &mut Test) -> Result<()> {
    let (kernel, upkeep) = (test.kernel()?, format!("{UPKEEP_REFRESH} 2>&1"));
    test.machine.must(QUICK_MAKE)?;
    test.machine.must("cp /usr/local/bin/make /srv/good-make")?;
    let fails = |words: &str| {
        format!("sed 's#&& cp .*#\\&\\& {{ echo \"{words}\"; exit 2; }}#' /srv/good-make >/usr/local/bin/make")
    };
    let trigger = "dpkg-trigger --no-await /usr/src; dpkg --configure --pending";
    // All in one boot: the next one forgets.
    let text = test.transaction(&format!(
        "{}; {}; echo ---; {trigger}; echo ---; {upkeep}; echo ---; {upkeep}; echo ---; cp /srv/good-make /usr/local/bin/make; {upkeep}",
        fails("error: of the test"),
        another_ofed(&kernel, 1)
    ))?;
    let parts: Vec<&str> = text.split("---\n").collect();
    ensure!(parts.len() == 5 && !parts[1].contains("nvidia-peermem-rust: "), "nothing has changed:\n{text}");
    for part in [parts[0], parts[2], parts[3]] {
        says_why(part, "of the test")?;
    }
    one_line(parts[4], &["nvidia-peermem-rust: kernel ", "has a new module"])?;
    // A trigger tries what may have passed.
    for (version, cause) in
        [(2, "error: No space left on device"), (3, "sh: 1: gcc: not found"), (4, "gcc: fatal error: Killed signal")]
    {
        let text = test.transaction(&format!(
            "{}; {}; cp /srv/good-make /usr/local/bin/make; {trigger}",
            fails(cause),
            another_ofed(&kernel, version)
        ))?;
        says_why(&text, cause)?;
        one_line(&text, &["nvidia-peermem-rust: kernel ", "has a new module"])?;
    }
    Ok(())
}

/// A kernel comes with a driver and without headers, and another one loses its headers before its
/// driver changes. One line for each says what to install, once; and of a module that no longer
/// fits, that the kernel will refuse it.
fn kernel_without_headers(test: &mut Test) -> Result<()> {
    let (kernel, version) = (test.kernel()?, test.version());
    let trigger = "for i in 1 2; do dpkg-trigger --no-await /usr/src; dpkg --configure --pending; done";
    let text = test.transaction(&format!(
        "new=/lib/modules/9.9.9-new; mkdir -p $new/kernel $new/updates; cp $(modinfo -k {kernel} -n nvidia) $new/updates/
        for part in order builtin builtin.modinfo; do : >$new/modules.$part; done; depmod 9.9.9-new; {trigger}"
    ))?;
    let words = ["nvidia-peermem-rust: not built for kernel 9.9.9-new: ", "install linux-headers-9.9.9-new", "no file"];
    one_line(&text, &words)?;
    // A kernel that has what fits needs nothing.
    let text = test.transaction(&format!("mv /lib/modules/{kernel}/build /srv/build; {trigger}"))?;
    ensure!(!text.contains(&format!("kernel {kernel} ")), "{text}");
    let text = test.transaction(&format!(
        "file=$(modinfo -k {kernel} -n nvidia); rm $file
        {{ printf '.section .modinfo,\"a\"\n.asciz \"license=GPL\"\n'
            for symbol in nvidia_p2p_get_pages nvidia_p2p_get_pages_persistent; do printf '.globl __crc_%s\n.set __crc_%s, 0x44444444\n' $symbol $symbol; done; }} >/tmp/ko.s
        as /tmp/ko.s -o ${{file%.ko*}}.ko; depmod {kernel}; {trigger}"
    ))?;
    let keeps = format!("nvidia-peermem-rust: kernel {kernel} keeps its module, which does not fit its GPU driver");
    one_line(&text, &[&keeps, "install linux-headers-"])?;
    test.expect("another driver, without headers", &kernel, &Resolved::Ours { version, built: Built::Former })
}

/// A place at which the machine loses its power: a tool that is called with such words, as a pattern of
/// the shell.
struct Place {
    says: &'static str,
    tool: &'static str,
    words: String,
}

fn place(says: &'static str, tool: &'static str, words: &str) -> Place {
    Place { says, tool, words: words.to_string() }
}
fn dkms(verb: &'static str) -> Place {
    Place { says: verb, tool: "dkms", words: format!("{}' '*", verb.trim_start_matches("dkms ")) }
}

impl Place {
    /// Returns a script in which a transaction runs, and in which everything but the script, which is the
    /// first process, ends at once at this place. Its exit code is the transaction's.
    fn interrupts(&self, transaction: &str) -> String {
        let Self { tool, words, .. } = self;
        format!(
            r#"file=$(command -v {tool}); mkdir -p /srv/kept /srv/real
            cp -a $file /srv/kept/{tool}; cp $(readlink -f $file) /srv/real/{tool}; rm $file
            printf '#!/bin/sh\ncase "$*" in %s) kill -9 -1; kill -9 $$ ;; esac\nexec /srv/real/{tool} "$@"\n' "{words}" >$file; chmod +x $file
            code=0; {transaction} >/tmp/log 2>&1 || code=$?
            [ $code = {KILLED} ] || cat /tmp/log
            rm $file; cp -a /srv/kept/{tool} $file; rm -r /srv/kept /srv/real; exit $code"#
        )
    }
}

/// Returns the places of an upgrade of ours: in `hold`, before and after it has its hard link, and at each
/// call of DKMS.
fn of_an_upgrade() -> Vec<Place> {
    let hold = [place("upkeep hold", "ln", "-fL' '*"), place("upkeep hold, linked", "mv", "-T' '*")];
    hold.into_iter().chain(["dkms remove", "dkms add", "dkms build", "dkms install"].map(dkms)).collect()
}
/// Returns the places of a first installation.
fn of_an_installation() -> Vec<Place> {
    ["dkms add", "dkms build", "dkms install"].map(dkms).into()
}
/// Returns the places of a removal: before modprobe chooses NVIDIA's file, before ours goes, and where
/// DKMS has taken its file away.
fn of_a_removal(kernel: &str) -> Vec<Place> {
    vec![
        place("depmod", "depmod", kernel),
        place("the removal of the links", "rm", &format!("-rf' '/usr/lib/nvidia-peermem-rust/{kernel}")),
        dkms("dkms remove"),
        place("depmod of DKMS", "depmod", "-a' '*"),
    ]
}

/// Loses the power at a place of a transaction.
fn interrupt(at: &mut Test, place: &Place, transaction: &str) -> Result<()> {
    let said = at.act(&place.interrupts(transaction))?;
    ensure!(said.code == KILLED, "{transaction} was not killed at {}: {}\n{}", place.says, said.code, said.text);
    Ok(())
}

/// The machine loses its power at each step of an upgrade, of a first installation and of a removal.
/// The former module stays. `dpkg --configure --pending` completes what was begun, after the same command
/// again if dpkg demands it.
fn interrupted_at_each_step(test: &mut Test) -> Result<()> {
    let (kernel, version) = (test.kernel()?, test.version());
    test.machine.must(QUICK_MAKE)?;
    let ready = test.machine.layers()?;
    let completes = |version: &str| {
        format!("dpkg --configure --pending && [ \"$(dpkg-query -f '${{Status}} ${{Version}}' -W nvidia-peermem-rust-dkms)\" = 'install ok installed {version}-1' ] || dpkg -i {}", ours(version))
    };
    for place in of_an_upgrade() {
        let mut at = started(&ready, &version)?;
        interrupt(&mut at, &place, &format!("dpkg -i {}", ours(NEXT)))?;
        let action = format!("upgrade of ours, power lost at {}", place.says);
        at.expect_ours(&action, &version)?;
        at.transaction(&completes(NEXT))?;
        at.expect_ours(&format!("{action}, and dpkg again"), NEXT)?;
        nothing_half_installed(&at)?;
        test.rows.append(&mut at.rows);
    }
    // In postrm.
    let last = place("the removal of what is left", "rm", "-rf' '/usr/lib/nvidia-peermem-rust' '*");
    for place in of_a_removal(&kernel).into_iter().chain([last]) {
        let mut at = started(&ready, &version)?;
        interrupt(&mut at, &place, "dpkg -r nvidia-peermem-rust-dkms")?;
        let action = format!("removal of ours, power lost at {}", place.says);
        something_is_there(&mut at, &action)?;
        gone(&mut at, &format!("{action}, and dpkg again"), "-r")?;
        nothing_half_installed(&at)?;
        test.rows.append(&mut at.rows);
    }
    test.machine.must("dpkg -P nvidia-peermem-rust-dkms")?;
    let without = test.machine.layers()?;
    for place in of_an_installation() {
        let mut at = started(&without, &version)?;
        interrupt(&mut at, &place, &format!("dpkg -i {}", ours(&version)))?;
        let action = format!("first installation of ours, power lost at {}", place.says);
        something_is_there(&mut at, &action)?;
        at.transaction(&completes(&version))?;
        at.expect_ours(&format!("{action}, and dpkg again"), &version)?;
        nothing_half_installed(&at)?;
        test.rows.append(&mut at.rows);
    }
    Ok(())
}

/// Checks that modprobe finds a module whole, ours or NVIDIA's.
fn something_is_there(test: &mut Test, action: &str) -> Result<()> {
    for kernel in test.machine.kernels()? {
        let got = test.machine.resolved(&kernel)?;
        test.row(&kernel, action, &got.to_string())?;
        let good = matches!(got, Resolved::Nvidia(_) | Resolved::Ours { built: Built::Whole, .. });
        ensure!(good, "after {action} modprobe on {kernel} takes {got}");
    }
    Ok(())
}

/// A build for kernel 6.1.0 forgets what failed for that kernel, but not what failed for 6.1.0.1.
fn a_release_that_begins_another(test: &mut Test) -> Result<()> {
    test.machine.must(
        "tried=/run/nvidia-peermem-rust; mkdir -p $tried; cp -R /usr/src/nvidia-peermem-rust-*/ /tmp/build; cd /tmp/build
        touch $tried/6.1.0.failed $tried/6.1.0.1.failed $tried/6.1.0.1.tried; mkdir -p build/module
        printf 'PREFLIGHT_KDIR=/nowhere\nPREFLIGHT_SYMVERS=\nPREFLIGHT_NV_P2P=\nPREFLIGHT_PEER_MEM=\n' >build/module/preflight.env
        printf '#!/bin/sh\n' >/usr/local/bin/make; chmod +x /usr/local/bin/make
        /usr/lib/nvidia-peermem-rust/upkeep build 6.1.0 /nowhere
        test ! -e $tried/6.1.0.failed; test -e $tried/6.1.0.1.failed; test -e $tried/6.1.0.1.tried",
    )?;
    Ok(())
}

/// A make that, where a module is to be built, looks at the neighbours as the real one does and takes
/// the module that is there, without a signature. So DKMS builds and installs within seconds. The
/// module gets the version of the source that it is made for, and the symbol versions that preflight has
/// found. An entry of a symbol of which it has found none says a second time what another one says.
const QUICK_MAKE: &str = r#"cp $(find /lib/modules -name 'nvidia-peermem-rust.ko*' | head -n 1) /srv/
    for file in /srv/*.ko.xz; do [ ! -e "$file" ] || xz -d "$file"; done
    strip --strip-debug /srv/nvidia-peermem-rust.ko
    cat >/srv/versions.pl <<'END_OF_PERL'
my ($ko, $at, $size, @symvers) = @ARGV;
my %crc;
for (@symvers) {
    open my $in, "<", $_ or die "$_: $!";
    while (<$in>) { my ($crc, $name) = split; $crc{$name} = hex $crc; }
}
open my $file, "+<:raw", $ko or die "$ko: $!";
seek $file, hex $at, 0;
read $file, my $all, hex $size;
my @all = unpack "(a64)*", $all;
my $neighbours = qr/^.{8}(nvidia_p2p_|ib_(un)?register_peer_memory_client)/s;
my ($other) = grep { !/$neighbours/ } @all;
for (grep { /$neighbours/ } @all) {
    my $name = unpack "x8 Z56", $_;
    $_ = exists $crc{$name} ? pack("Q a56", $crc{$name}, $name) : $other;
}
seek $file, hex $at, 0;
print $file @all;
END_OF_PERL
    cat >/usr/local/bin/make <<'END_OF_MAKE'
#!/bin/sh
for word; do case $word in OUT=*) out=${word#OUT=} ;; KDIR=*) kdir=$word ;; esac; done
[ "$word" = module ] || exec /usr/bin/make "$@"
/usr/bin/make -s "$kdir" "OUT=$out" preflight && cp /srv/nvidia-peermem-rust.ko "$out/nvidia-peermem.ko"
[ $? = 0 ] || exit 2
. "$out/preflight.env"
at=$(readelf -SW "$out/nvidia-peermem.ko" | sed -nE 's/.* __versions +PROGBITS +[0-9a-f]+ ([0-9a-f]+) ([0-9a-f]+) .*/\1 \2/p')
[ -z "$at" ] || perl /srv/versions.pl "$out/nvidia-peermem.ko" $at $PREFLIGHT_SYMVERS || exit
[ "$(modinfo -F version "$out/nvidia-peermem.ko" | head -n 1)" != "$(cat VERSION)" ] || exit 0
objcopy --dump-section ".modinfo=$out/modinfo" "$out/nvidia-peermem.ko" &&
	sed -zi "s/^version=.*/version=$(cat VERSION)/" "$out/modinfo" &&
	objcopy --update-section ".modinfo=$out/modinfo" "$out/nvidia-peermem.ko"
END_OF_MAKE
    chmod +x /usr/local/bin/make"#;

/// Returns a script in which another build of OFED comes, so that ours is built again.
fn another_ofed(kernel: &str, version: u32) -> String {
    format!(
        "sed -i 's/^0x......../0x{version:08}/' /usr/src/ofa_kernel/$(uname -m)/{kernel}/Module.symvers
        dpkg-trigger --no-await /usr/src; dpkg --configure --pending"
    )
}

/// Secure Boot is on, and nobody has enrolled the key that DKMS signs with, or DKMS cannot sign
/// (mokutil is a stand-in, because the machine has no firmware). The package's own line tells the
/// user, who sees nothing of what DKMS prints.
fn key_not_enrolled(test: &mut Test) -> Result<()> {
    let (kernel, version) = (test.kernel()?, test.version());
    test.machine.must(&format!(
        "printf '#!/bin/sh\\ncase $1 in --sb-state) echo SecureBoot enabled ;; --test-key) echo \"$2 is not enrolled\"; exit 0 ;; esac\\n' >/usr/local/bin/mokutil
        chmod +x /usr/local/bin/mokutil
        {QUICK_MAKE}"
    ))?;
    let words = ["nvidia-peermem-rust: ", "not enrolled", "mokutil --import"];
    let text = test.transaction(&another_ofed(&kernel, 1))?;
    one_line(&text, &["nvidia-peermem-rust: kernel ", "has a new module"])?;
    one_line(&text, &words)?;
    one_line(&text, &["mokutil --import /var/lib/dkms/mok.pub,"])?;
    test.expect_ours("key of DKMS not enrolled", &version)?;
    let signer = test.machine.must("modinfo -k $(uname -r) -F signer nvidia-peermem")?;
    ensure!(!signer.trim().is_empty(), "DKMS has not signed it");
    // A call by hand says it, too.
    let text = test.machine.must(
        "v=$(cat /usr/lib/nvidia-peermem-rust/VERSION)
        dkms uninstall -m nvidia-peermem-rust -v $v -k $(uname -r); dkms install -m nvidia-peermem-rust -v $v -k $(uname -r)",
    )?;
    one_line(&text, &words)?;
    // A key of the admin's own, which DKMS makes there.
    test.machine.must(
        "mkdir /srv/keys
        printf 'mok_signing_key=/srv/keys/$kernelver.key\\nmok_certificate=/srv/keys/$kernelver.der\\n' >>/etc/dkms/framework.conf",
    )?;
    let text = test.transaction(&another_ofed(&kernel, 2))?;
    one_line(&text, &words)?;
    one_line(&text, &[&format!("mokutil --import /srv/keys/{kernel}.der,")])?;
    // Ubuntu's DKMS takes shim's key where the admin names none; another distribution's does not.
    let text = test.machine.must(&format!(
        "sed -i /^mok_/d /etc/dkms/framework.conf; mkdir -p /var/lib/shim-signed/mok; touch /var/lib/shim-signed/mok/MOK.der
        /usr/lib/nvidia-peermem-rust/upkeep installed {kernel}
        sed -i 's/^ID=.*/ID=ubuntu/' /usr/lib/os-release; /usr/lib/nvidia-peermem-rust/upkeep installed {kernel}
        sed -i 's/^ID=.*/ID=debian/' /usr/lib/os-release"
    ))?;
    one_line(&text, &["mokutil --import /var/lib/dkms/mok.pub,"])?;
    one_line(&text, &["mokutil --import /var/lib/shim-signed/mok/MOK.der,"])?;
    // Nothing signs.
    test.machine.must("echo sign_file=/nowhere >>/etc/dkms/framework.conf")?;
    let text = test.transaction(&another_ofed(&kernel, 3))?;
    one_line(&text, &["nvidia-peermem-rust: ", "is not signed", "dkms build --force"])?;
    ensure!(!text.contains("mokutil"), "there is no key to be enrolled:\n{text}");
    // Without mokutil the firmware's own variable says whether Secure Boot is on.
    for (on, lines) in [(1, 1), (0, 0)] {
        let text = test.machine.must(&format!(
            "while file=$(command -v mokutil); do rm $file; hash -r; done; mkdir -p /sys/firmware/efi/efivars
            printf '\\006\\000\\000\\000\\00{on}' >/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c
            /usr/lib/nvidia-peermem-rust/upkeep installed {kernel} 2>&1"
        ))?;
        let said = text.lines().filter(|line| line.contains("is not signed")).count();
        ensure!(said == lines, "{said} lines, not {lines}:\n{text}");
    }
    // A module that an admin signs by hand is no broken installation, as long as DKMS has not
    // packed it.
    let text = test.transaction(
        "file=$(find /lib/modules -name nvidia-peermem-rust.ko); [ -z \"$file\" ] || head -c 700 /dev/urandom >>$file
        dpkg-trigger --no-await /usr/src; dpkg --configure --pending",
    )?;
    ensure!(!text.contains("nvidia-peermem-rust: "), "it was built again:\n{text}");
    Ok(())
}

/// An `override` in depmod.d comes before our folder. One line names the file that modprobe takes, and
/// what to do: after a build, where nothing is built, and only as long as it is so.
fn another_file_is_taken(test: &mut Test) -> Result<()> {
    let (kernel, version) = (test.kernel()?, test.version());
    test.machine.must(QUICK_MAKE)?;
    let (refresh, mut built) = ("dpkg-trigger --no-await /usr/src; dpkg --configure --pending", false);
    for (folder, conf, file, cure) in [
        (
            "updates/nvidia-peermem-rust",
            "override nvidia-peermem * updates/nvidia-peermem-rust",
            "nvidia-peermem-rust.conf",
            format!("make uninstall KDIR=/lib/modules/{kernel}/build"),
        ),
        (
            "weak-updates/nvidia",
            "override nvidia-peermem * weak-updates/nvidia",
            "kmod-nvidia.conf",
            "remove the line \"override nvidia-peermem * weak-updates/nvidia\" of /etc/depmod.d/kmod-nvidia.conf, then depmod"
                .to_string(),
        ),
        ("kernel/lib", "search built-in", "00-first.conf", "look for the lines that say so in depmod.d(5)".to_string()),
        // Lines for another kernel, and for a folder that has no such file, do nothing, and are
        // left alone.
        (
            "kernel/lib",
            "search built-in\noverride nvidia-peermem 9.9.9 kernel/lib\noverride nvidia-peermem * extra",
            "00-first.conf",
            "look for the lines that say so in depmod.d(5)".to_string(),
        ),
    ] {
        let taken = format!("/lib/modules/{kernel}/{folder}/nvidia-peermem.ko");
        test.machine.must(&format!(
            "mkdir -p /lib/modules/{kernel}/{folder} /etc/depmod.d; cp /srv/nvidia-peermem-rust.ko {taken}
            echo '{conf}' >/etc/depmod.d/{file}; depmod {kernel}"
        ))?;
        let words = ["nvidia-peermem-rust: modprobe on kernel ", &taken, &cure];
        one_line(&test.transaction(refresh)?, &words)?;
        if !built {
            built = true;
            let text = test.transaction(&another_ofed(&kernel, 1))?;
            one_line(&text, &words)?;
            let new = text.lines().find(|line| line.contains("has a new module")).context("nothing was built")?;
            ensure!(!new.contains("it is loaded"), "that is not what is loaded: {new}");
        }
        test.row(&kernel, &format!("`{}` of others", conf.replace('\n', "; ")), &format!("`{folder}/nvidia-peermem.ko`, and a line says so"))?;
        test.machine.must(&format!(
            "rm -r /lib/modules/{kernel}/{folder}/nvidia-peermem.ko /etc/depmod.d/{file}; depmod {kernel}"
        ))?;
        let text = test.transaction(refresh)?;
        ensure!(!text.contains("nvidia-peermem-rust: "), "nothing is wrong any more:\n{text}");
    }
    test.expect_ours("removal of those lines", &version)
}

/// openibd's hook is installed with our package if OFED is there, or with OFED if our package is.
/// An admin's own hook is left alone, and a removed one does not come back.
fn openibd_hook(test: &mut Test) -> Result<()> {
    let hook = "/etc/infiniband/pre-stop-hook.sh";
    let text = test.machine.must(&format!(
        "mkdir -p /etc/infiniband; upkeep=/usr/lib/nvidia-peermem-rust/upkeep
        $upkeep refresh; rm {hook}; $upkeep refresh; test ! -e {hook}
        echo admin >{hook}; $upkeep refresh; $upkeep hook; cat {hook}
        rm -r /etc/infiniband; $upkeep refresh; mkdir /etc/infiniband; $upkeep hook; readlink {hook}; {hook}
        dpkg -P nvidia-peermem-rust-dkms >/dev/null; ls /etc/infiniband"
    ))?;
    one_line(&text, &["nvidia-peermem-rust: ", hook, "is left to you"])?;
    ensure!(text.lines().nth(1) == Some("admin"), "{text}");
    ensure!(text.lines().count() == 3 && text.ends_with("/openibd-pre-stop\n"), "{text}");
    Ok(())
}

/// A rebuild for one kernel leaves the others' links as they are. An upgrade keeps every kernel's
/// module.
fn each_kernel_by_itself(test: &mut Test) -> Result<()> {
    let kernel = test.kernel()?;
    let text = test.machine.must(&format!(
        "cd /usr/lib/nvidia-peermem-rust; mkdir -p 9.9.9 /lib/modules/9.9.9/kernel
        ln -s $(readlink {kernel}/nvidia-peermem.ko*) 9.9.9/
        mv 9.9.9/nvidia-peermem-rust.ko* 9.9.9/nvidia-peermem.ko 2>/dev/null || true
        printf '#!/bin/sh\ncase $1 in status) exec /usr/sbin/dkms \"$@\" ;; esac; echo \"error: of the test\"; exit 1\n' >/usr/local/sbin/dkms
        chmod +x /usr/local/sbin/dkms
        sed -i 's/^0x......../0x12345678/' /usr/src/ofa_kernel/$(uname -m)/{kernel}/Module.symvers
        ./upkeep refresh
        test -L 9.9.9/nvidia-peermem.ko; test -L {kernel}/nvidia-peermem.ko*
        ./upkeep hold
        test ! -L 9.9.9/nvidia-peermem.ko; test -f 9.9.9/nvidia-peermem.ko; test ! -L {kernel}/nvidia-peermem.ko*"
    ))?;
    one_line(&text, &["nvidia-peermem-rust: building for kernel", &kernel])?;
    says_why(&text, "of the test")
}

/// `upkeep refresh` looks at the other kernels where the build for the first one fails, even if that cannot
/// be remembered. A kernel that has never had a module is not said to keep one.
fn a_kernel_that_fails_beside_others(test: &mut Test) -> Result<()> {
    let (kernel, version) = (test.kernel()?, test.version());
    let text = test.machine.must(
        "mkdir -p /lib/modules/5.0.0-a/kernel /lib/modules/5.0.0-a/build/include/config
        touch /lib/modules/5.0.0-a/build/Module.symvers /lib/modules/5.0.0-a/build/include/config/auto.conf; cp -R /lib/modules/5.0.0-a /lib/modules/9.0.0-b
        printf '#!/bin/sh\necho error: of the test; exit 1\n' >/usr/local/bin/make; chmod +x /usr/local/bin/make
        cat /dev/zero >/run/fill 2>/dev/null || true
        /usr/lib/nvidia-peermem-rust/upkeep refresh 2>&1",
    )?;
    for kernel in ["5.0.0-a", "9.0.0-b"] {
        one_line(&text, &[&format!("nvidia-peermem-rust: not built for kernel {kernel}: error: of the test")])?;
    }
    one_line(&text, &[&format!("nvidia-peermem-rust: kernel {kernel} keeps its module: error: of the test")])?;
    ensure!(text.lines().count() == 3, "more than a line for each kernel:\n{text}");
    // DKMS builds, and cannot install.
    let text = test.machine.must(
        r#"cat >/usr/local/bin/make <<'END'
#!/bin/sh
for word; do case $word in OUT=*) out=${word#OUT=} ;; KDIR=*) kdir=${word#KDIR=} ;; esac; done
mkdir -p "$out"; printf 'PREFLIGHT_KDIR=%s\nPREFLIGHT_SYMVERS=\nPREFLIGHT_NV_P2P=\nPREFLIGHT_PEER_MEM=\n' "$kdir" >"$out/preflight.env"
END
        printf '#!/bin/sh\ncase $1 in status) exec /usr/sbin/dkms "$@" ;; install) echo "error: of the test"; exit 1 ;; esac\n' >/usr/local/sbin/dkms
        chmod +x /usr/local/sbin/dkms; /usr/lib/nvidia-peermem-rust/upkeep refresh 2>&1; rm /usr/local/sbin/dkms"#,
    )?;
    for kernel in ["5.0.0-a", "9.0.0-b"] {
        one_line(&text, &[&format!("nvidia-peermem-rust: kernel {kernel} has no module: error: of the test")])?;
    }
    test.expect("builds that fail for other kernels", &kernel, &Resolved::Ours { version, built: Built::Whole })?;
    // At an rpm's removal depmod fails for one kernel.
    let text = test.machine.must(
        "mkdir /usr/lib/nvidia-peermem-rust/5.0.0-a; touch /usr/lib/nvidia-peermem-rust/5.0.0-a/nvidia-peermem.ko /lib/modules/5.0.0-a/modules.dep
        printf '#!/bin/sh\n[ $1 != 5.0.0-a ] || exit 1\nexec /usr/sbin/depmod \"$@\"\n' >/usr/local/sbin/depmod; chmod +x /usr/local/sbin/depmod
        /usr/lib/nvidia-peermem-rust/upkeep drop 2>&1",
    )?;
    one_line(&text, &["nvidia-peermem-rust: modprobe on kernel 5.0.0-a takes what it took before: "])?;
    let got = test.machine.resolved(&kernel)?;
    ensure!(matches!(got, Resolved::Nvidia(_)), "depmod was not called for {kernel}: {got}");
    Ok(())
}

/// A module that an admin uninstalls for one kernel stays away, until he installs it again.
fn uninstalled_by_the_admin(test: &mut Test) -> Result<()> {
    let (kernel, version) = (test.kernel()?, test.version());
    let dkms = |verb| format!("dkms {verb} -m nvidia-peermem-rust -v {version} -k {kernel} >/dev/null");
    let text = test
        .transaction(&format!("{}; dpkg-trigger --no-await /usr/src; dpkg --configure --pending", dkms("uninstall")))?;
    ensure!(!text.contains("nvidia-peermem-rust: "), "{text}");
    let got = test.machine.resolved(&kernel)?;
    test.row(&kernel, "dkms uninstall of ours", &got.to_string())?;
    ensure!(matches!(got, Resolved::Nvidia(_)), "the admin wanted NVIDIA's: {got}");
    let again = format!("dkms install -m nvidia-peermem-rust -v {version} -k {kernel}");
    let text = test.machine.must(UPKEEP_REFRESH)?;
    one_line(&text, &["took it away", &again])?;
    let text = test.machine.must(&format!("{UPKEEP_REFRESH} if-changed"))?;
    ensure!(!text.contains("took it away"), "{text}");
    test.machine.must(&format!("{}; {UPKEEP_REFRESH}", dkms("install")))?;
    test.expect_ours("dkms install of ours", &version)?;
    test.machine.must(&format!("test ! -e /var/lib/nvidia-peermem-rust/{kernel}/uninstalled"))?;
    // Other reasons why nothing is built are told to whoever asks, and to nobody else.
    for (state, words) in [
        (
            "mkdir -p /lib/modules/9.9.9/kernel /lib/modules/9.9.9/build/include; touch /etc/dkms/no-autoinstall",
            ["kernel 9.9.9", "no-autoinstall is there"],
        ),
        ("rm -rf /var/lib/dkms/nvidia-peermem-rust", ["DKMS does not know the source", "upkeep register"]),
    ] {
        test.machine.must(state)?;
        one_line(&test.machine.must(UPKEEP_REFRESH)?, &words)?;
        // DKMS takes the source again where it builds.
        let text = test.machine.must(&format!("{state}; {UPKEEP_REFRESH} if-changed"))?;
        ensure!(!text.contains(words[1]), "{text}");
    }
    Ok(())
}

/// When a kernel's rpm is removed, it calls kernel-install, which calls DKMS. No admin has
/// uninstalled the module, so it is built when that kernel is installed again. (The rpm is a
/// stand-in that has only the script; its kernel stays.)
fn kernel_removed_by_rpm(test: &mut Test) -> Result<()> {
    let (kernel, version) = (test.kernel()?, test.version());
    let text = test.transaction(&format!(
        "mkdir /tmp/rpm; cat >/tmp/rpm/kernel.spec <<'END'
Name: kernel-standin
Version: 1
Release: 1
Summary: kernel
License: none
BuildArch: noarch
%description
Stand-in.
%files
%preun
dkms uninstall -m nvidia-peermem-rust -v {version} -k {kernel} >/dev/null
END
        rpmbuild -bb --quiet --define '_topdir /tmp/rpm' /tmp/rpm/kernel.spec
        rpm -i --nodeps /tmp/rpm/RPMS/noarch/*.rpm; rpm -e kernel-standin
        printf '#!/bin/sh\ncase $1 in status) exec /usr/sbin/dkms \"$@\" ;; esac; echo \"error: of the test\"; exit 1\n' >/usr/local/sbin/dkms
        chmod +x /usr/local/sbin/dkms
        /usr/lib/nvidia-peermem-rust/upkeep refresh"
    ))?;
    one_line(&text, &["nvidia-peermem-rust: building for kernel", &kernel])
}

/// A refresh that has to wait says for what.
fn one_refresh_at_a_time(test: &mut Test) -> Result<()> {
    let text = test.machine.must(
        "lib=/usr/lib/nvidia-peermem-rust; flock $lib sh -c 'touch /tmp/locked; sleep 2; echo first' &
        until [ -e /tmp/locked ]; do sleep 0.1; done; $lib/upkeep refresh; echo second; wait",
    )?;
    one_line(&text, &["nvidia-peermem-rust: waiting for another refresh"])?;
    ensure!(text.ends_with("first\nsecond\n"), "{text}");
    Ok(())
}

/// No program that DKMS starts has our lock open. One that DKMS leaves running would make every
/// later refresh wait.
fn no_program_of_dkms_keeps_the_lock(test: &mut Test) -> Result<()> {
    let kernel = test.kernel()?;
    let text = test.machine.must(&format!(
        "printf '#!/bin/sh\nls -l /proc/self/fd >>/tmp/open; case $1 in status) exec /usr/sbin/dkms \"$@\" ;; esac; echo \"error: of the test\"; exit 1\n' >/usr/local/sbin/dkms
        chmod +x /usr/local/sbin/dkms
        sed -i 's/^0x......../0x12345678/' /usr/src/ofa_kernel/$(uname -m)/{kernel}/Module.symvers
        /usr/lib/nvidia-peermem-rust/upkeep refresh >/dev/null; cat /tmp/open"
    ))?;
    ensure!(text.contains("/dev/null") && !text.contains("nvidia-peermem-rust"), "{text}");
    Ok(())
}

/// Prints the state of the service at boot, and its messages.
const SERVICE: &str = "unit=nvidia-peermem-rust.service
    systemctl show -p Result,ActiveState $unit
    started=$(systemctl show -p ExecMainStartTimestampMonotonic --value $unit)
    for target in local-fs sysinit; do
        [ $started -gt $(systemctl show -p ActiveEnterTimestampMonotonic --value $target.target) ] && echo after $target
    done
    systemctl show -p After $unit | grep -o dkms.service
    journalctl -q -o cat -u $unit | grep nvidia-peermem-rust: || true";

/// Checks that it ran after what it needs, ended well, and made nobody wait. Returns its messages.
fn service_ran(test: &Test) -> Result<Vec<String>> {
    let text = test.machine.boot(SERVICE)?;
    let lines: Vec<&str> = text.lines().collect();
    let (status, said) = lines.split_at(5.min(lines.len()));
    for want in ["Result=success", "ActiveState=inactive", "after local-fs", "after sysinit", "dkms.service"] {
        ensure!(status.contains(&want), "no {want}:\n{text}");
    }
    Ok(said.iter().map(|line| (*line).to_string()).collect())
}

/// systemd runs the service at each boot. It is silent where nothing changed, and fails no boot.
fn booted(test: &mut Test) -> Result<()> {
    let (kernel, version) = (test.kernel()?, test.version());
    let said = service_ran(test)?;
    ensure!(said.is_empty(), "nothing had changed: {said:?}");
    test.expect_ours("a boot", &version)?;
    // This build fails.
    test.machine.must(&format!(
        "printf '#!/bin/sh\ncase $1 in status) exec /usr/sbin/dkms \"$@\" ;; esac; echo \"error: of the test\"; exit 1\n' >/usr/local/sbin/dkms
        chmod +x /usr/local/sbin/dkms
        cp /usr/src/ofa_kernel/$(uname -m)/{kernel}/Module.symvers /srv/
        sed -i 's/^0x......../0x12345678/' /usr/src/ofa_kernel/$(uname -m)/{kernel}/Module.symvers"
    ))?;
    let said = service_ran(test)?;
    says_why(&said.join("\n"), "of the test")?;
    test.machine
        .must(&format!("mv /srv/Module.symvers /usr/src/ofa_kernel/$(uname -m)/{kernel}/; rm /usr/local/sbin/dkms"))?;
    test.expect_ours("a boot at which a build fails", &version)?;
    // There is neither GPU driver nor OFED.
    test.transaction("dpkg -P --no-triggers nvidia-dkms mlnx-ofed-kernel-dkms; rm -rf /usr/src/ofa_kernel")?;
    let said = service_ran(test)?;
    ensure!(said.len() <= 1, "more than a line: {said:?}");
    Ok(())
}

/// Something changed without a package, and so without a trigger.
fn booted_after_a_change(test: &mut Test) -> Result<()> {
    let version = test.version();
    test.transaction(&format!("dpkg -i --no-triggers {}", deb("mlnx-ofed-kernel", OFED[1])))?;
    let said = service_ran(test)?.join("\n");
    one_line(&said, &["nvidia-peermem-rust: building for kernel"])?;
    one_line(&said, &["nvidia-peermem-rust: kernel ", "has a new module"])?;
    test.expect_ours("a boot after a change of OFED without a trigger", &version)
}

/// A tool is missing, as in a container, or after a forced installation. One line names the tool,
/// instead of the shell's own message, and the former module stays.
fn a_tool_is_missing(test: &mut Test) -> Result<()> {
    let version = test.version.clone();
    for tool in ["dkms", "depmod", "modinfo", "make"] {
        let said = test.machine.run(&format!(
            "file=$(command -v {tool}); mv $file $file.away
            code=0; /usr/lib/nvidia-peermem-rust/upkeep refresh 2>&1 || code=$?
            mv $file.away $file; exit $code"
        ))?;
        ensure!(!said.ok && said.text.trim().lines().count() == 1, "{tool}: {}", said.text);
        one_line(&said.text, &["nvidia-peermem-rust: nothing is built: this system has no ", tool])?;
        test.expect_ours(&format!("a refresh without {tool}"), &version)?;
    }
    Ok(())
}

/// Checks that NVIDIA's file is back, and nothing of ours is left.
fn gone(test: &mut Test, action: &str, verb: &str) -> Result<()> {
    test.transaction(&format!("dpkg {verb} nvidia-peermem-rust-dkms"))?;
    let kernel = test.kernel()?;
    let got = test.machine.resolved(&kernel)?;
    test.row(&kernel, action, &got.to_string())?;
    ensure!(
        matches!(&got, Resolved::Nvidia(file) if file.starts_with("nvidia-peermem.ko")),
        "NVIDIA's file is not back: {got}"
    );
    // The admin's configuration says whether a unit is enabled, and stays until the purge.
    let units = if verb == "-r" { "! -path '*/systemd/*'" } else { "" };
    let left = test.machine.must(&format!("find / -xdev \\( -name '*nvidia-peermem-rust*' -o -lname '*nvidia-peermem-rust*' \\) ! -path '{DEBS}/*' ! -path '/srv/*' ! -path '/home/*' ! -path '/var/lib/dpkg/*' {units}"))?;
    ensure!(left.is_empty(), "left behind:\n{left}");
    Ok(())
}

fn removed(test: &mut Test) -> Result<()> {
    gone(test, "removal of ours", "-r")
}

fn purged(test: &mut Test) -> Result<()> {
    gone(test, "purge of ours", "-P")
}

/// dpkg runs no prerm in this case. What an upgrade kept is removed, too.
fn removed_while_unpacked(test: &mut Test) -> Result<()> {
    test.machine.must(&format!(
        "mkdir -p /etc/infiniband; /usr/lib/nvidia-peermem-rust/upkeep hook; dpkg --unpack {}",
        ours(&test.version)
    ))?;
    gone(test, "removal of ours, unpacked but not configured", "-r")
}

/// Tests rpm's own order of scripts. (`--nodeps`: what the package needs was installed from Debian
/// packages.)
fn rpm(test: &mut Test) -> Result<()> {
    let version = test.version();
    let kernel = test.kernel()?;
    // If there is nothing to build it with, a line says so, and it is built once that is installed.
    let text = test.transaction(&format!(
        "mv /lib/modules/{kernel}/build /tmp/build; rpm -i --nodeps {}; mv /tmp/build /lib/modules/{kernel}/build",
        our_rpm(&version)
    ))?;
    one_line(&text, &["nvidia-peermem-rust: not built", "install linux-headers-"])?;
    units_document(test)?;
    test.machine.must(UPKEEP_REFRESH)?;
    test.expect_ours("rpm: installation", &version)?;
    test.transaction(&format!("rpm -U --nodeps {}", our_rpm(NEXT)))?;
    test.expect_ours("rpm: upgrade of ours", NEXT)?;
    let (driver, again) = (deb("nvidia", NVIDIA[2]), our_rpm(NEXT));
    // Debian 13's rpm has a plugin that gives each script a /tmp of its own.
    let unshare = test.machine.must("rpm --eval '%{?__transaction_unshare}'")?;
    let bookworm = test.machine.run("grep -q '^VERSION_ID=.12' /etc/os-release")?.ok;
    ensure!(bookworm || !unshare.trim().is_empty(), "this rpm has no plugin unshare");
    test.transaction(&format!("rpm --reinstall --nodeps {again}"))?;
    test.expect_ours("rpm: ours installed again", NEXT)?;
    test.transaction(&format!("dpkg -i --no-triggers {driver}; rpm --reinstall --nodeps {again}"))?;
    test.expect_ours("rpm: ours installed again, with another driver", NEXT)?;
    let text = test.transaction(&format!("rpm -U --nodeps {}", our_rpm(BROKEN)))?;
    says_why(&text, "no such kernel")?;
    test.expect_ours("rpm: upgrade of ours that does not build", NEXT)?;
    test.transaction(&format!("rpm -U --oldpackage --nodeps {}", our_rpm(&version)))?;
    test.expect_ours("rpm: downgrade of ours", &version)?;
    gone_by_rpm(test, "rpm: removal of ours")
}

/// Checks that rpm knows one version of ours, whose files are all as it has installed them, and that no
/// kernel lacks its initrd.
fn nothing_half_installed_by_rpm(test: &Test, version: &str) -> Result<()> {
    let said = test.machine.must("rpm -q nvidia-peermem-rust-dkms; rpm -V --nodeps nvidia-peermem-rust-dkms")?;
    ensure!(said == format!("nvidia-peermem-rust-dkms-{version}-1.noarch\n"), "{said}");
    nothing_half_installed(test)
}

/// Checks that NVIDIA's file is back after a removal by rpm, and that nothing of ours is left.
fn gone_by_rpm(test: &mut Test, action: &str) -> Result<()> {
    test.transaction("rpm -e nvidia-peermem-rust-dkms")?;
    let kernel = test.kernel()?;
    let got = test.machine.resolved(&kernel)?;
    test.row(&kernel, action, &got.to_string())?;
    ensure!(matches!(got, Resolved::Nvidia(_)), "NVIDIA's file is not back: {got}");
    let left = test.machine.must(
        "find / -xdev -name '*nvidia-peermem-rust*' ! -path '/srv/*' ! -path '/home/*' ! -path '/var/lib/dpkg/*'",
    )?;
    ensure!(left.is_empty(), "left behind:\n{left}");
    Ok(())
}

/// The machine loses its power at each step of an upgrade, of a first installation and of a removal by
/// rpm. The former module stays, and the same command again completes what was begun.
fn rpm_interrupted(test: &mut Test) -> Result<()> {
    let (kernel, version) = (test.kernel()?, test.version());
    test.machine.must(&format!("{QUICK_MAKE}\ndpkg -P nvidia-peermem-rust-dkms"))?;
    let without = test.machine.layers()?;
    let ready = started(&without, &version)?;
    ready.machine.must(&format!("rpm -i --nodeps {}", our_rpm(&version)))?;
    nothing_half_installed_by_rpm(&ready, &version)?;
    let layers = ready.machine.layers()?;
    for place in of_an_upgrade() {
        let mut at = started(&layers, &version)?;
        interrupt(&mut at, &place, &format!("rpm -U --nodeps {}", our_rpm(NEXT)))?;
        let action = format!("rpm: upgrade of ours, power lost at {}", place.says);
        at.expect_ours(&action, &version)?;
        at.transaction(&format!("rpm -U --force --nodeps {}", our_rpm(NEXT)))?;
        at.expect_ours(&format!("{action}, and rpm again"), NEXT)?;
        nothing_half_installed_by_rpm(&at, NEXT)?;
        test.rows.append(&mut at.rows);
    }
    for place in of_a_removal(&kernel) {
        let mut at = started(&layers, &version)?;
        interrupt(&mut at, &place, "rpm -e nvidia-peermem-rust-dkms")?;
        let action = format!("rpm: removal of ours, power lost at {}", place.says);
        something_is_there(&mut at, &action)?;
        gone_by_rpm(&mut at, &format!("{action}, and rpm again"))?;
        test.rows.append(&mut at.rows);
    }
    for place in of_an_installation() {
        let mut at = started(&without, &version)?;
        interrupt(&mut at, &place, &format!("rpm -i --nodeps {}", our_rpm(&version)))?;
        let action = format!("rpm: first installation of ours, power lost at {}", place.says);
        something_is_there(&mut at, &action)?;
        at.transaction(&format!("rpm -U --force --nodeps {}", our_rpm(&version)))?;
        at.expect_ours(&format!("{action}, and rpm again"), &version)?;
        nothing_half_installed_by_rpm(&at, &version)?;
        test.rows.append(&mut at.rows);
    }
    Ok(())
}

/// Makes an rpm of a stand-in's Debian package, or of the Debian packages of a kernel, with scripts as
/// NVIDIA's, DOCA's and a kernel's rpm have them: NAME, VERSION, then the Debian packages.
const AS_RPM: &str = r#"as_rpm() {
        name=$1 version=$2 top=/tmp/rpm/$1-$2
        shift 2
        mkdir -p $top/root
        for deb; do dpkg-deb -x $deb $top/root; done
        rm -rf $top/root/usr/share
        kernel=$(ls $top/root/lib/modules $top/root/usr/lib/modules 2>/dev/null | grep -v : | head -n 1)
        {
            printf 'Name: %s\nVersion: %s\nRelease: 1\nSummary: stand-in\nLicense: none\nAutoReqProv: no\n' $name $version
            printf '%%global _binary_payload w0.gzdio\n%%global __os_install_post %%{nil}\n%%global debug_package %%{nil}\n'
            printf '%%description\nStand-in.\n%%install\ncp -a %s/root/. %%{buildroot}/\n' $top
            if [ -n "$kernel" ]; then
                printf '%%post\nDEB_MAINT_PARAMS=configure run-parts --exit-on-error --arg=%s --arg=/boot/vmlinuz-%s /etc/kernel/postinst.d\n' $kernel $kernel
            else
                printf '%%post\nPATH=/usr/local/bin:$PATH\ndkms add -m %s -v %s && dkms build -m %s -v %s && dkms install --force -m %s -v %s\n' $name $version $name $version $name $version
                printf '%%preun\ndkms remove -m %s -v %s --all\n' $name $version
            fi
            printf '%%files\n'
            (cd $top/root && find . ! -type d | sed 's/^\.//; s/.*/"&"/')
        } >$top/spec
        rpmbuild -bb --quiet --define "_topdir $top" --define '_build_id_links none' $top/spec >$top/log 2>&1 || { tail $top/log; exit 1; }
        mv $top/RPMS/*/*.rpm /srv/rpms/
        rm -r $top
    }
    mkdir -p /srv/rpms"#;

/// The neighbours are rpms: both come with ours in one transaction, OFED is upgraded alone, and a kernel
/// comes for which our module cannot be built. rpm ends well, and its triggers have ours follow.
fn neighbours_by_rpm(test: &mut Test) -> Result<()> {
    let (old, version) = (test.kernel()?, test.version());
    test.machine.must(&format!(
        "{QUICK_MAKE}
        {NO_NEIGHBOURS}
        {AS_RPM}
        as_rpm nvidia {n} {}
        as_rpm mlnx-ofed-kernel {o} {}
        as_rpm mlnx-ofed-kernel {u} {}
        as_rpm kernel-standin 1 /srv/kernel/*.deb",
        deb("nvidia", NVIDIA[0]),
        deb("mlnx-ofed-kernel", OFED[0]),
        deb("mlnx-ofed-kernel", OFED[1]),
        n = NVIDIA[0],
        o = OFED[0],
        u = OFED[1],
    ))?;
    let rpm = |name: &str, version: &str| format!("/srv/rpms/{name}-{version}-1.*.rpm");
    let text = test.transaction(&format!(
        "rpm -U --nodeps {} {} {}",
        our_rpm(&version),
        rpm("nvidia", NVIDIA[0]),
        rpm("mlnx-ofed-kernel", OFED[0])
    ))?;
    one_line(&text, &["nvidia-peermem-rust: building for kernel"])?;
    test.expect_ours("rpm: ours, driver and OFED in one transaction", &version)?;
    nothing_half_installed_by_rpm(test, &version)?;
    let text = test.transaction(&format!("rpm -U --nodeps {}", rpm("mlnx-ofed-kernel", OFED[1])))?;
    one_line(&text, &["nvidia-peermem-rust: building for kernel"])?;
    test.expect_ours("rpm: upgrade of OFED alone", &version)?;
    nothing_half_installed_by_rpm(test, &version)?;
    let text = test.transaction(&format!(
        "{NOT_FOR_THE_NEXT_KERNEL}
        rpm -U --nodeps {}",
        rpm("kernel-standin", "1")
    ))?;
    says_why(&text, "of the test")?;
    nothing_half_installed_by_rpm(test, &version)?;
    let new = test.machine.kernels()?.into_iter().find(|kernel| *kernel != old).context("a second kernel")?;
    let (action, got) = ("rpm: installation of a kernel for which ours is not built", test.machine.resolved(&new)?);
    test.row(&new, action, &got.to_string())?;
    ensure!(matches!(got, Resolved::Nvidia(_)), "{got}");
    test.expect(action, &old, &Resolved::Ours { version, built: Built::Whole })
}

/// Checks that the files of `PACKAGE` are where users look, that they work, and that they are
/// removed again.
const LOOKS: &str = "peermemctl --version; peermemctl doctor >/tmp/doctor || true; grep -c '^ *1 ' /tmp/doctor
    for file in man/man1/peermemctl.1 man/man1/peermemctl-metrics.1 bash-completion/completions/peermemctl peermemctl/alerts.yml doc/peermemctl/doctor.md; do
        set -- /usr/share/$file*; test -s $1
    done
    test -s /usr/lib/systemd/system/peermemctl-metrics.service; test -s /usr/lib/systemd/system/peermemctl-metrics.timer
    cd /usr/share/peermemctl/operators; test -s gpud/gpudirect-rdma.yaml; test -s nhc/gpudirect_rdma.nhc
    test -x nvsentinel/preflight; test -s nvsentinel/values.yaml; test -x slurm/gpudirect-rdma";
const LEFT: &str = "find / -xdev -name '*peermemctl*' ! -path '/srv/*' ! -path '/var/lib/dpkg/*' ! -path '/var/log/*'";

fn looks(test: &Test) -> Result<()> {
    let text = test.machine.must(LOOKS)?;
    one_line(&text, &["peermemctl ", &test.version])
}

/// An admin types what README's section on installation shows: the packages that it names are there, a
/// user builds, root installs, and both see the last lines that README shows.
fn readme(test: &mut Test) -> Result<()> {
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
    let text = include_str!("../../../README.md");
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

fn folders_of_ubuntu(test: &mut Test) -> Result<()> {
    dress(test, "/usr/src/linux-headers-generic", AS_UBUNTU)?;
    by_hand(test, "in folders like Ubuntu's", true)?;
    let version = test.version();
    test.transaction(&format!("dpkg -i {}", ours(&version)))?;
    test.expect_ours("installation in folders like Ubuntu's", &version)?;
    gone(test, "purge of ours in folders like Ubuntu's", "-P")
}

fn folders_of_rhel(test: &mut Test) -> Result<()> {
    dress(test, "/usr/src/kernels/tree", AS_RHEL)?;
    by_hand(test, "in folders like RHEL's", false)?;
    let version = test.version();
    test.transaction(&format!("rpm -i --nodeps {}", our_rpm(&version)))?;
    test.expect_ours("rpm: installation in folders like RHEL's", &version)?;
    gone_by_rpm(test, "rpm: removal of ours in folders like RHEL's")
}

fn peermemctl(test: &mut Test) -> Result<()> {
    test.transaction(&format!("dpkg -i {DEBS}/peermemctl_{}-1_*.deb", test.version))?;
    looks(test)?;
    test.transaction("dpkg -P peermemctl")?;
    let left = test.machine.must(LEFT)?;
    ensure!(left.is_empty(), "left behind:\n{left}");
    Ok(())
}

fn peermemctl_by_rpm(test: &mut Test) -> Result<()> {
    test.transaction(&format!("rpm -i --nodeps {DEBS}/peermemctl-{}-1.*.rpm", test.version))?;
    looks(test)?;
    test.transaction("rpm -e peermemctl")?;
    let left = test.machine.must(LEFT)?;
    ensure!(left.is_empty(), "left behind:\n{left}");
    Ok(())
}

/// Compiles a program in C with the flags of `gpumr.pc`. It finds its library and gets a message
/// about what is missing; and so does one that knows nothing of the other library, which is in
/// LD_PRELOAD.
const LINKS: &str = r#"cd /tmp
    pc=$(find /usr/lib* -name gpumr.pc)
    libs=$(sed -n 's/^Libs: *//p' $pc); libdir=$(sed -n 's/^libdir=//p' $pc); includedir=$(sed -n 's/^includedir=//p' $pc)
    case $libs in '-L${libdir} -lgpumr') ;; *) echo "Libs: $libs"; exit 1 ;; esac
    [ "$includedir" = '${prefix}/include' ]
    export LD_LIBRARY_PATH=$libdir
    cc -D_GNU_SOURCE -o program /srv/source/user/stand-ins/open.c -L$libdir -lgpumr
    ./program
    cat >plain.c <<'END'
#include <dlfcn.h>
int main(void) { void *(*reg)(void *, void *, unsigned long, int); *(void **)&reg = dlsym(RTLD_DEFAULT, "ibv_reg_mr"); return !reg || reg(0, 0, 1, 1); }
END
    cc -D_GNU_SOURCE -o plain plain.c
    LD_PRELOAD=libgpumr-preload.so ./plain
    set -- /usr/share/man/man7/libgpumr-preload.so.7*; test -s $1"#;
const NOTHING_OF_GPUMR: &str =
    "find / -xdev -name '*gpumr*' ! -path '/srv/*' ! -path '/var/lib/dpkg/*' ! -path '/var/log/*'";

fn links(test: &Test) -> Result<()> {
    let text = test.machine.must(LINKS)?;
    one_line(&text, &["open: ENOSYS: libibverbs.so.1 cannot be opened: install rdma-core"])?;
    one_line(&text, &["libgpumr-preload: libibverbs.so.1 cannot be opened: install rdma-core"])
}

fn libraries(test: &mut Test) -> Result<()> {
    test.transaction(&format!("dpkg -i {DEBS}/libgpumr*_{}-1_*.deb", test.version))?;
    links(test)?;
    test.transaction("dpkg -P libgpumr-dev libgpumr-preload libgpumr1")?;
    let left = test.machine.must(NOTHING_OF_GPUMR)?;
    ensure!(left.is_empty(), "left behind:\n{left}");
    Ok(())
}

fn libraries_by_rpm(test: &mut Test) -> Result<()> {
    test.transaction(&format!("rpm -i --nodeps {DEBS}/libgpumr*-{}-1.*.rpm", test.version))?;
    links(test)?;
    test.transaction("rpm -e libgpumr-devel libgpumr-preload libgpumr")?;
    let left = test.machine.must(NOTHING_OF_GPUMR)?;
    ensure!(left.is_empty(), "left behind:\n{left}");
    Ok(())
}

/// The timer is off until somebody enables it. Then it writes what node_exporter reads.
fn metrics(test: &mut Test) -> Result<()> {
    let folder = "/var/lib/prometheus/node-exporter";
    test.transaction(&format!("dpkg -i {DEBS}/peermemctl_{}-1_*.deb; mkdir -p {folder}", test.version))?;
    let text = test.machine.boot(&format!(
        "systemctl is-enabled peermemctl-metrics.timer || true
        systemctl -q enable --now peermemctl-metrics.timer
        for i in $(seq 90); do [ ! -s {folder}/nvidia-peermem.prom ] || break; sleep 1; done
        systemctl show -p Result peermemctl-metrics.service
        cat {folder}/nvidia-peermem.prom; ls -A {folder}"
    ))?;
    let (status, file) = text.split_once("Result=success\n").with_context(|| text.clone())?;
    ensure!(status == "disabled\n", "{text}");
    ensure!(file.contains("# TYPE nvidia_peermem") && file.ends_with("\nnvidia-peermem.prom\n"), "{text}");
    Ok(())
}

/// Returns the dashboard's queries, with the values that Grafana puts in for its variables.
fn dashboard() -> Vec<String> {
    let text = include_str!("../../../packaging/monitoring/grafana.json");
    let queries = text.lines().filter_map(|line| line.trim().strip_prefix("\"expr\": \""));
    let queries = queries.map(|query| query.trim_end_matches(',').trim_end_matches('"').replace("\\\"", "\""));
    queries.map(|query| query.replace("$instance", ".*").replace("$__rate_interval", "5m")).collect()
}

/// Debian's own node_exporter and Prometheus read what peermemctl writes about recorded machines.
/// promtool finds no fault in metrics and rules. The machine is recorded twice: once it is well, and later
/// its counters are higher and a check warns. Then each query of the dashboard has an answer, and no
/// answer is NaN. A file that node_exporter cannot read raises an alert.
fn monitoring(test: &mut Test) -> Result<()> {
    test.machine.must(&format!("dpkg -i {DEBS}/peermemctl_{}-1_*.deb", test.version))?;
    let queries = dashboard();
    ensure!(queries.len() > 10, "{queries:?}");
    let asked: String = queries.iter().map(|query| format!("{query}\n")).collect();
    let text = test.machine.must(&format!(
        r#"cat >/srv/queries <<'END'
{asked}END
        trees=/srv/source/tools/peermemctl/tests/trees rules=/usr/share/peermemctl/alerts.yml
        for tree in $trees/*.tree; do
            peermemctl --root $tree metrics >/tmp/metrics 2>/dev/null || true
            promtool check metrics </tmp/metrics >/tmp/said 2>&1 || {{ grep -q . /tmp/metrics || continue; echo "wrong: $tree: promtool"; cat /tmp/said; }}
        done
        prometheus --version | head -n 1
        prometheus-node-exporter --version 2>&1 | head -n 1
        promtool check rules $rules
        mkdir -p /tmp/text /tmp/data
        write() {{ peermemctl --root $trees/$1.tree metrics --output /tmp/text/nvidia-peermem.prom || true; }}
        write healthy
        prometheus-node-exporter --web.listen-address=127.0.0.1:19100 --collector.disable-defaults --collector.textfile --collector.textfile.directory=/tmp/text >/tmp/exporter 2>&1 &
        printf 'global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: [%s]\nscrape_configs:\n  - job_name: node\n    static_configs: [{{targets: ["127.0.0.1:19100"]}}]\n' $rules >/tmp/prometheus.yml
        promtool check config /tmp/prometheus.yml
        prometheus --config.file=/tmp/prometheus.yml --storage.tsdb.path=/tmp/data --web.listen-address=127.0.0.1:19090 >/tmp/prometheus 2>&1 &
        # Without the time, which differs from run to run.
        ask() {{ promtool query instant http://127.0.0.1:19090 "$1" >/tmp/answer 2>&1 || echo "wrong: $1"; sed 's/ @\[.*\]$//' /tmp/answer; }}
        for i in $(seq 30); do [ -z "$(ask 'gpudirect_rdma_verdict' | grep ^gpudirect)" ] || break; sleep 1; done
        sleep 5
        cp /srv/source/tests/packages/trees/later.tree $trees/
        write later
        for i in $(seq 30); do [ -z "$(ask 'nvidia_peermem_check > 0' | grep ^nvidia)" ] || break; sleep 1; done
        sleep 3
        while read -r query; do
            echo "> $query"
            ask "$query"
            [ -n "$(cat /tmp/answer)" ] || echo "wrong: no data"
            ! grep -q NaN /tmp/answer || echo "wrong: NaN"
        done </srv/queries
        rejected='ALERTS{{alertname="PeermemMetricsRejected"}}'
        [ -z "$(ask "$rejected")" ] || echo "wrong: an alert too early"
        echo '# TYPE broken info' >/tmp/text/other.prom
        for i in $(seq 20); do [ -z "$(ask "$rejected")" ] || break; sleep 1; done
        echo "> $rejected, after a file that node_exporter cannot read"
        ask "$rejected"
        grep -m 1 other.prom /tmp/exporter | sed -E 's/(ts|time)=[^ ]* //' | grep . || echo "wrong: node_exporter is silent"
        ! grep -E 'level=(error|ERROR)' /tmp/prometheus || echo "wrong: Prometheus complains""#
    ))?;
    let wrong: Vec<&str> = text.lines().filter(|line| line.starts_with("wrong: ")).collect();
    ensure!(wrong.is_empty(), "{wrong:?}\n{text}");
    // promtool checks the rules by themselves, and once more as Prometheus' configuration names them.
    let rules = include_str!("../../../packaging/monitoring/alerts.yml").matches("alert: ").count();
    ensure!(text.contains(&format!("SUCCESS: {rules} rules found")), "promtool did not read {rules} rules:\n{text}");
    one_line(&text, &["ALERTS{", "PeermemMetricsRejected", "=>"])?;
    test.shown.push((MONITORING, text));
    Ok(())
}

/// Starts Slurm's own daemons on a node whose GPU is a device file, with our script as prolog and epilog. It
/// judges the recorded machine that /srv/machine names. Slurm gives it no variables of ours.
const SLURM: &str = r#"name=$(uname -n | cut -d . -f 1) at=/tmp/slurm
    mkdir -p $at/state $at/spool /run/munge /etc/slurm/prolog.d /etc/slurm/epilog.d
    chown munge: /run/munge
    echo "127.0.0.1 localhost $name" >>/etc/hosts
    runuser -u munge -- munged
    cat >/etc/slurm/slurm.conf <<END
ClusterName=lab
SlurmctldHost=$name(127.0.0.1)
SlurmUser=root
StateSaveLocation=$at/state
SlurmdSpoolDir=$at/spool
SlurmctldPidFile=$at/slurmctld.pid
SlurmdPidFile=$at/slurmd.pid
SlurmctldPort=16817
SlurmdPort=16818
ProctrackType=proctrack/pgid
SelectType=select/cons_tres
GresTypes=gpu
Prolog=/etc/slurm/prolog.d/*
Epilog=/etc/slurm/epilog.d/*
NodeName=$name NodeAddr=127.0.0.1 Gres=gpu:1 State=UNKNOWN
PartitionName=all Nodes=$name Default=YES
END
    echo 'Name=gpu File=/dev/zero' >/etc/slurm/gres.conf
    # Debian 12's cannot do without a plugin, and this one does nothing where nobody asks it.
    case $(slurmd -V) in *' 22.'*) plugin=cgroup/v1 ;; *) plugin=disabled ;; esac
    echo CgroupPlugin=$plugin >/etc/slurm/cgroup.conf
    for part in prolog epilog; do cp /usr/share/peermemctl/operators/slurm/gpudirect-rdma /etc/slurm/$part.d/; done
    mv /usr/bin/peermemctl /usr/bin/peermemctl.real
    printf '#!/bin/sh\nexec peermemctl.real --root "/srv/source/tools/peermemctl/tests/trees/$(cat /srv/machine).tree" "$@"\n' >/usr/bin/peermemctl
    chmod +x /usr/bin/peermemctl
    slurmctld -D -c >$at/slurmctld 2>&1 &
    slurmd -D -N $name >$at/slurmd 2>&1 &
    slurmd -V
    node() { scontrol show node $name 2>/dev/null | sed -n 's/^ *State=\([^ ]*\) .*/\1/p'; }
    settled() {
        for i in $(seq 40); do
            case $(node) in IDLE | IDLE+DRAIN) return ;; esac
            sleep 1
        done
        echo "the node is $(node)"
        tail $at/slurmctld $at/slurmd
        exit 1
    }
    job() { # WHAT MACHINE OPTIONS
        what=$1
        echo $2 >/srv/machine
        shift 2
        scontrol update nodename=$name state=resume 2>/dev/null || true
        settled
        id=$(sbatch --parsable --chdir=/tmp --output=$at/out "$@")
        for i in $(seq 60); do
            job=$(scontrol show job $id | sed -n 's/.*JobState=\([^ ]*\) .*/\1/p')
            case $job:$(node) in COMPLETED:*) break ;; PENDING:*DRAIN*) break ;; esac
            sleep 1
        done
        settled
        reason=$(scontrol show node $name | sed -n 's/^ *Reason=\([^[]*\) \[.*/\1/p')
        echo "$what: the job is $job, the node $(node)${reason:+, $reason}"
        scancel $id 2>/dev/null || true
    }
    gpu=--gres=gpu:1
    job "usable" no-api $gpu --wrap=true
    job "unknown" public-netns-exclusive $gpu --wrap=true
    job "not usable, a job without GPUs" public-geforce --wrap=true
    job "not usable" public-geforce $gpu --wrap=true
    job "not usable after the job" no-api $gpu --wrap='echo public-geforce >/srv/machine'"#;

/// Slurm drains the node where GPUDirect RDMA is not usable, before a job with GPUs, which it puts back, or
/// after it; and nowhere else.
fn slurm(test: &mut Test) -> Result<()> {
    test.machine.must(&format!("dpkg -i {DEBS}/peermemctl_{}-1_*.deb", test.version))?;
    let text = test.machine.must(SLURM)?;
    for line in [
        "usable: the job is COMPLETED, the node IDLE",
        "unknown: the job is COMPLETED, the node IDLE",
        "not usable, a job without GPUs: the job is COMPLETED, the node IDLE",
        "not usable: the job is PENDING, the node IDLE+DRAIN, Prolog error",
        "not usable after the job: the job is COMPLETED, the node IDLE+DRAIN, Epilog error",
    ] {
        ensure!(text.lines().any(|said| said == line), "no line\n{line}\nin:\n{text}");
    }
    test.shown.push((MONITORING, text));
    Ok(())
}
