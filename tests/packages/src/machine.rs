// SPDX-License-Identifier: GPL-2.0

//! A machine made of Debian packages: a chroot with layers, in which real dpkg, dkms, depmod and
//! modprobe run.

use anyhow::{bail, ensure, Context, Result};
use std::os::unix::fs::symlink;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;
use std::{env, fs};
use tempfile::TempDir;

/// The folder of this crate in the checkout.
const HERE: &str = env!("CARGO_MANIFEST_DIR");

/// The layers of a machine that are kept, to start others from.
#[derive(Clone)]
pub struct Layers(Vec<PathBuf>);

/// The name of a file in the folder of a kept machine. It says where the root folder is that the
/// machine was started from.
const BASE: &str = "base";

impl Layers {
    /// Returns the layers of a machine that [`Machine::keep`] made in this folder.
    pub fn kept(dir: &Path) -> Result<Self> {
        let base = dir.join(BASE);
        let base = fs::canonicalize(&base).with_context(|| format!("no machine is in {}", base.display()))?;
        Ok(Self(vec![dir.join("upper"), base]))
    }
}

/// A machine, and everything that was written to it.
pub struct Machine {
    layers: Layers,
    dir: PathBuf,
    /// The folder of the machine's layers. It is removed when this is dropped, unless the machine
    /// is to be kept.
    _temporary: Option<TempDir>,
    /// The number of MiB that are left on its disk. `None`: no limit.
    pub disk: Option<u32>,
}

/// The output of a script.
pub struct Said {
    pub ok: bool,
    /// The exit code, or 128 plus the number of the signal that killed it.
    pub code: i32,
    /// Standard output and standard error, in the order in which they came.
    pub text: String,
}

/// Says what a module of ours was built against.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Built {
    /// The present neighbours: it has the version of each of their symbols that it needs.
    Whole,
    /// Other neighbours than the present ones: a version differs.
    Former,
    /// Not all of the neighbours: they export a symbol with a version, and it needs that symbol and
    /// has no version of it. The kernel would not notice if it did not fit.
    Unversioned,
}

/// The file that `modprobe nvidia-peermem` chooses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Resolved {
    /// This project's file, of that version.
    Ours {
        version: String,
        built: Built,
    },
    /// NVIDIA's file.
    Nvidia(String),
    Nothing,
}

impl std::fmt::Display for Resolved {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self {
            Self::Ours { version, built: Built::Whole } => write!(f, "ours, {version}"),
            Self::Ours { version, built: Built::Former } => {
                write!(f, "ours, {version}, built against former neighbours")
            }
            Self::Ours { version, built: Built::Unversioned } => {
                write!(f, "ours, {version}, without a neighbour's symbol versions")
            }
            Self::Nvidia(file) => write!(f, "NVIDIA's `{file}`"),
            Self::Nothing => f.write_str("nothing"),
        }
    }
}

impl Machine {
    pub fn new(layers: &Layers) -> Result<Self> {
        let temporary = tempfile::Builder::new().prefix("packages-").tempdir().context("temporary folder")?;
        let dir = temporary.path().to_path_buf();
        Ok(Self { layers: layers.clone(), dir, _temporary: Some(temporary), disk: None })
    }

    /// Makes a machine with this root folder, which is kept in `dir` for [`Layers::kept`]. Removes
    /// what an earlier call left there.
    pub fn keep(root: &Path, dir: &Path) -> Result<Self> {
        let root = fs::canonicalize(root).with_context(|| format!("no root folder {}", root.display()))?;
        for part in ["upper", "work"].map(|name| dir.join(name)).into_iter().filter(|part| part.exists()) {
            fs::remove_dir_all(&part).with_context(|| format!("cannot remove {}", part.display()))?;
        }
        let base = dir.join(BASE);
        let _ = fs::remove_file(&base);
        symlink(&root, &base).with_context(|| format!("cannot link {}", base.display()))?;
        Ok(Self { layers: Layers(vec![root]), dir: dir.to_path_buf(), _temporary: None, disk: None })
    }

    /// Returns this machine as it is now, for others to start from. They do not need `self` once
    /// its folder is kept.
    pub fn layers(&self) -> Result<Layers> {
        let upper = self.dir.join("upper");
        fs::create_dir_all(&upper)?;
        let mut layers = vec![upper];
        layers.extend(self.layers.0.iter().cloned());
        Ok(Layers(layers))
    }

    /// Puts a file or folder of this checkout into the machine.
    pub fn put(&self, from: &Path, to: &str) -> Result<()> {
        let to = self.dir.join("upper").join(to.trim_start_matches('/'));
        fs::create_dir_all(to.parent().context("a file has a folder")?)?;
        let copied = Command::new("cp").arg("-RT").arg(from).arg(&to).status()?;
        ensure!(copied.success(), "cannot copy {} to {}", from.display(), to.display());
        Ok(())
    }

    /// Runs a script of `sh -eu` as the machine's root.
    pub fn run(&self, script: &str) -> Result<Said> {
        let start = Instant::now();
        let layers: Vec<String> = self.layers.0.iter().map(|layer| layer.display().to_string()).collect();
        let mut command = Command::new("unshare");
        command.args(["--mount", "--pid", "--fork", "--kill-child", "sh", "-c", "exec \"$@\" 2>&1", "sh"]);
        command.arg(Path::new(HERE).join("enter.sh")).arg(layers.join(":")).arg(&self.dir);
        command.arg(self.disk.map_or(String::new(), |mib| mib.to_string())).arg(script);
        let output = command.stdin(std::process::Stdio::null()).output().context("unshare")?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        if env::var_os("PACKAGES_VERBOSE").is_some() {
            eprintln!("+ {script}\n{text}({} s, {})", start.elapsed().as_secs(), output.status);
        }
        let code = output.status.code().unwrap_or_else(|| 128 + output.status.signal().unwrap_or_default());
        Ok(Said { ok: output.status.success(), code, text })
    }

    /// Runs a script that must succeed, and returns its output.
    pub fn must(&self, script: &str) -> Result<String> {
        let said = self.run(script)?;
        if !said.ok {
            bail!("{script}\n{}", said.text);
        }
        Ok(said.text)
    }

    /// Boots the machine as containers boot: systemd is its process 1, on the kernel of this one,
    /// whose devices it does not get. A script of `sh -eu` runs as root once the boot is over, and
    /// then the machine ends. Returns the script's output.
    pub fn boot(&self, script: &str) -> Result<String> {
        // systemd makes cgroups, which would stay.
        let name = self.dir.file_name().context("a temporary folder has a name")?.to_string_lossy();
        let boot = format!(
            r#"cat >/srv/boot.sh <<'END_OF_SCRIPT'
{script}
END_OF_SCRIPT
            cat >/etc/systemd/system/boot-test.service <<'END_OF_UNIT'
[Service]
ExecStart=/bin/sh -c 'systemctl is-system-running --wait; sh -eu /srv/boot.sh >/srv/boot.log 2>&1; systemctl --no-block exit $?'
StandardOutput=null
[Install]
WantedBy=multi-user.target
END_OF_UNIT
            systemctl -q enable boot-test.service
            rm -rf /var/log/journal
            mount --bind /proc/sys /proc/sys
            mount -o remount,bind,ro /proc/sys
            mount -t sysfs -o ro sys /sys
            mount -t cgroup2 cgroup /sys/fs/cgroup
            mkdir '/sys/fs/cgroup/{name}'
            echo 1 >'/sys/fs/cgroup/{name}/cgroup.procs'
            exec unshare --cgroup --uts --ipc --net sh -euc 'umount /sys/fs/cgroup; mount -t cgroup2 cgroup /sys/fs/cgroup
                exec env -i container=packages /lib/systemd/systemd'"#
        );
        let said = self.run(&boot)?;
        let text = self.must(&format!(
            "cat /srv/boot.log; rm -f /srv/boot.* /etc/systemd/system/boot-test.service /etc/systemd/system/*/boot-test.service
            mount -t cgroup2 cgroup /sys
            find '/sys/{name}' -depth -type d -exec rmdir {{}} ';'"
        ))?;
        ensure!(said.ok, "{script}\n{text}{}", said.text);
        Ok(text)
    }

    /// Returns the kernels that are installed.
    pub fn kernels(&self) -> Result<Vec<String>> {
        Ok(self
            .must("for k in /lib/modules/*/kernel; do basename $(dirname $k); done")?
            .lines()
            .map(Into::into)
            .collect())
    }

    /// Returns the file that modprobe chooses for a kernel, and whether its symbol versions are
    /// those of the neighbours that modprobe would load before it.
    pub fn resolved(&self, kernel: &str) -> Result<Resolved> {
        let text = self.must(&format!(
            r#"k='{kernel}'
            depends=$(modprobe -S "$k" -n --show-depends nvidia-peermem 2>/dev/null) || {{ echo none; exit 0; }}
            # A line `install` of modprobe.d names the module that it loads in the end.
            name=$(echo "$depends" | sed -nE 's/^install .*(-i|--ignore-install) +([^ ;]*peermem).*/\2/p')
            [ -z "$name" ] || depends=$(modprobe -S "$k" -n --ignore-install --show-depends "$name")
            file=$(echo "$depends" | sed -n 's/^insmod \([^ ]*peermem[^ ]*\).*/\1/p')
            echo "$file"
            modinfo -F description "$file"
            modinfo -F version "$file" | head -n 1
            # Which versions it wants, if its kernel has any, and which the neighbours have: OFED's last build,
            # and the driver's own file, because dkms before 3.1 keeps no Module.symvers.
            modprobe --dump-modversions "$file" 2>/dev/null | grep -E 'nvidia_p2p_|peer_memory_client' | sed 's/^0x0*/0x/' | sort >/tmp/wants
            driver=$(modinfo -k "$k" -n nvidia 2>/dev/null || modinfo -k "$k" -n nvidia-current-open 2>/dev/null || true)
            {{ cat /usr/src/ofa_kernel/$(uname -m)/"$k"/Module.symvers 2>/dev/null || true; [ -z "$driver" ] || modprobe --show-exports "$driver"; }} |
                grep -E '	(nvidia_p2p_|ib_.*peer_memory_client)' | cut -f 1,2 | sed 's/^0x0*/0x/' | sort >/tmp/has
            # What it needs of them.
            case $file in *.xz) xz -dc "$file" ;; *.zst) zstd -dcq "$file" ;; *) cat "$file" ;; esac >/tmp/file.ko
            nm -u /tmp/file.ko | sed -nE 's/^ *[Uw] (nvidia_p2p_.*|ib_.*peer_memory_client)$/\1/p' | sort >/tmp/needs
            [ -s /tmp/needs ] || echo "needs nothing"
            # Wanted with another version than it is had.
            awk 'NR == FNR {{ had[$2] = $1; next }} $2 in had && had[$2] != $1 {{ print "former", $2 }}' /tmp/has /tmp/wants
            # Had with a version, and wanted with none.
            awk 'FILENAME == ARGV[1] {{ had[$2] = $1; next }} FILENAME == ARGV[2] {{ wanted[$2]; next }}
                had[$1] != "" && had[$1] != "0x" && !($1 in wanted) {{ print "unversioned", $1 }}' /tmp/has /tmp/wants /tmp/needs"#
        ))?;
        let mut lines = text.lines();
        let Some(file) = lines.next().filter(|line| *line != "none" && !line.is_empty()) else {
            return Ok(Resolved::Nothing);
        };
        let (description, version) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
        if description.starts_with("NVIDIA's") {
            return Ok(Resolved::Nvidia(file.rsplit('/').next().unwrap_or(file).to_string()));
        }
        let folder = format!("/usr/lib/nvidia-peermem-rust/{kernel}/");
        ensure!(
            file.starts_with(&folder),
            "modprobe takes {file}, which is neither NVIDIA's nor from {folder}:\n{text}"
        );
        let wrong: Vec<&str> = lines.collect();
        ensure!(!wrong.contains(&"needs nothing"), "{file} imports nothing of its neighbours:\n{text}");
        let any = |word| wrong.iter().any(|line| line.starts_with(word));
        let built = match (any("former "), any("unversioned ")) {
            (true, _) => Built::Former,
            (false, true) => Built::Unversioned,
            (false, false) => Built::Whole,
        };
        Ok(Resolved::Ours { version: version.to_string(), built })
    }
}
