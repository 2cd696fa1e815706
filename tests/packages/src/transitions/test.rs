// SPDX-License-Identifier: GPL-2.0

//! Has a machine under test: runs what happens to it, and checks what is left afterwards.

use crate::machine::{Built, Layers, Machine, Resolved, Said};
use anyhow::{ensure, Context, Result};

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

/// The command that an admin types to have modules built.
pub(super) const UPKEEP_REFRESH: &str = "/usr/lib/nvidia-peermem-rust/upkeep refresh";

impl Test {
    /// Runs a script with a transaction of dpkg or rpm, which may fail. The row that follows has
    /// its exit code.
    pub(super) fn act(&mut self, script: &str) -> Result<Said> {
        let said = self.machine.run(script)?;
        self.exit = Some(said.code);
        Ok(said)
    }

    /// Runs a transaction that must not fail, and returns its output.
    pub(super) fn transaction(&mut self, script: &str) -> Result<String> {
        let said = self.act(script)?;
        ensure!(said.ok, "{script}\n{}", said.text);
        Ok(said.text)
    }

    /// Writes a row of the table.
    pub(super) fn row(&mut self, kernel: &str, action: &str, takes: &str) -> Result<()> {
        let initrd = self.machine.run(&format!("test -s /boot/initrd.img-{kernel}"))?.ok;
        let (kernel, action, takes) = (kernel.to_string(), action.to_string(), takes.to_string());
        // An action on several kernels has one transaction.
        let before = self.rows.last().filter(|row| row.action == action).and_then(|row| row.exit);
        self.rows.push(Row { kernel, action, exit: self.exit.take().or(before), initrd, takes });
        Ok(())
    }

    pub(super) fn kernel(&self) -> Result<String> {
        self.machine.kernels()?.into_iter().next().context("no kernel")
    }

    /// Checks that this is what modprobe chooses after `action`.
    pub(super) fn expect(&mut self, action: &str, kernel: &str, want: &Resolved) -> Result<()> {
        let got = self.machine.resolved(kernel)?;
        self.row(kernel, action, &got.to_string())?;
        ensure!(got == *want, "after {action} modprobe on {kernel} takes {got}, not {want}");
        Ok(())
    }

    /// Checks that modprobe chooses our module, built against the present neighbours.
    pub(super) fn expect_ours(&mut self, action: &str, version: &str) -> Result<()> {
        for kernel in self.machine.kernels()? {
            self.expect(action, &kernel, &Resolved::Ours { version: version.to_string(), built: Built::Whole })?;
        }
        Ok(())
    }

    pub(super) fn version(&self) -> String {
        self.version.clone()
    }
}

/// Returns a machine under test that starts from these layers.
pub fn started(layers: &Layers, version: &str) -> Result<Test> {
    let machine = Machine::new(layers)?;
    Ok(Test { machine, version: version.to_string(), rows: Vec::new(), exit: None, shown: Vec::new() })
}

/// Checks that exactly one line of a text contains all these words.
pub(super) fn one_line(text: &str, words: &[&str]) -> Result<()> {
    let lines: Vec<&str> = text.lines().filter(|line| words.iter().all(|word| line.contains(word))).collect();
    ensure!(lines.len() == 1, "{} lines with {words:?}, not one:\n{text}", lines.len());
    Ok(())
}

/// Checks that the text of a failed build contains the line that the module writes for DKMS's log.
pub(super) fn says_why(text: &str, reason: &str) -> Result<()> {
    one_line(text, &["nvidia-peermem-rust: not built for kernel ", reason, "modprobe loads "])
}

/// Checks that dpkg has nothing left to do, and that no kernel lacks its initrd.
pub(super) fn nothing_half_installed(test: &Test) -> Result<()> {
    let left = test.machine.must(
        "dpkg --audit
        for kernel in /lib/modules/*/kernel; do k=$(basename $(dirname $kernel)); [ -s /boot/initrd.img-$k ] || echo no initrd for $k; done",
    )?;
    ensure!(left.is_empty(), "{left}");
    Ok(())
}

/// Removes both neighbours and ours, and what OFED's build has left.
pub(super) const NO_NEIGHBOURS: &str =
    "dpkg -P nvidia-peermem-rust-dkms nvidia-dkms mlnx-ofed-kernel-dkms; rm -rf /usr/src/ofa_kernel";

/// A make that, where a module is to be built, looks at the neighbours as the real one does and takes
/// the module that is there, without a signature. So DKMS builds and installs within seconds. The
/// module gets the version of the source that it is made for, and the symbol versions that preflight has
/// found. An entry of a symbol of which it has found none says a second time what another one says.
pub(super) const QUICK_MAKE: &str = r#"cp $(find /lib/modules -name 'nvidia-peermem-rust.ko*' | head -n 1) /srv/
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
pub(super) fn another_ofed(kernel: &str, version: u32) -> String {
    format!(
        "sed -i 's/^0x......../0x{version:08}/' /usr/src/ofa_kernel/$(uname -m)/{kernel}/Module.symvers
        dpkg-trigger --no-await /usr/src; dpkg --configure --pending"
    )
}
