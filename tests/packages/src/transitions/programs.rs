// SPDX-License-Identifier: GPL-2.0

//! Tests the packages of peermemctl and of the libraries.

use super::test::{one_line, Test};
use crate::stubs::DEBS;
use anyhow::{ensure, Result};

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

pub(super) fn peermemctl(test: &mut Test) -> Result<()> {
    test.transaction(&format!("dpkg -i {DEBS}/peermemctl_{}-1_*.deb", test.version))?;
    looks(test)?;
    test.transaction("dpkg -P peermemctl")?;
    let left = test.machine.must(LEFT)?;
    ensure!(left.is_empty(), "left behind:\n{left}");
    Ok(())
}

pub(super) fn peermemctl_by_rpm(test: &mut Test) -> Result<()> {
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

pub(super) fn libraries(test: &mut Test) -> Result<()> {
    test.transaction(&format!("dpkg -i {DEBS}/libgpumr*_{}-1_*.deb", test.version))?;
    links(test)?;
    test.transaction("dpkg -P libgpumr-dev libgpumr-preload libgpumr1")?;
    let left = test.machine.must(NOTHING_OF_GPUMR)?;
    ensure!(left.is_empty(), "left behind:\n{left}");
    Ok(())
}

pub(super) fn libraries_by_rpm(test: &mut Test) -> Result<()> {
    test.transaction(&format!("rpm -i --nodeps {DEBS}/libgpumr*-{}-1.*.rpm", test.version))?;
    links(test)?;
    test.transaction("rpm -e libgpumr-devel libgpumr-preload libgpumr")?;
    let left = test.machine.must(NOTHING_OF_GPUMR)?;
    ensure!(left.is_empty(), "left behind:\n{left}");
    Ok(())
}
