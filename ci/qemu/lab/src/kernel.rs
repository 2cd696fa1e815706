//! The lab's kernel: built once per set of inputs, in two flavours, or a distribution's own (`stock`).

pub use crate::axes::Kernel as Flavour;
use crate::ctx::Lab;
use crate::fetch::{self, Linux};
use crate::key::Key;
use crate::lock;
use crate::sh::{self, say, Step};
use crate::stock;
use anyhow::{bail, Context, Result};
use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The suffix of the LLVM tools that build the kernel and everything for it.
pub const LLVM: &str = "-19";

pub struct Kernel {
    /// The build tree, or what a header package has of it.
    pub dir: PathBuf,
    /// What QEMU boots.
    pub image: PathBuf,
    /// The folder with its `modules.order`, by which its modules are found, and its `modules.builtin`.
    pub modules: PathBuf,
    /// What `uname -r` says in the machine.
    pub release: String,
    pub key: String,
    pub flavour: Flavour,
}

impl Kernel {
    /// What every `make` for it is given: the compiler is the kernel's own.
    pub fn make_args(&self) -> Vec<String> {
        match self.flavour {
            Flavour::Debug72 | Flavour::Fast72 => vec![format!("LLVM={LLVM}")],
            Flavour::Debian612 | Flavour::Debian61 => Vec::new(),
        }
    }
}

/// Written last into a finished build tree.
const STAMP: &str = ".lab-finished";

pub fn build(lab: &Lab, linux: &Linux, flavour: Flavour) -> Result<Kernel> {
    if matches!(flavour, Flavour::Debian612 | Flavour::Debian61) {
        return stock::kernel(lab, linux, flavour);
    }
    let name = flavour.kept_as();
    let conf = lab.qemu("kernel");
    let fragments = [conf.join("base.config"), conf.join(format!("{name}.config"))];
    let mut key = Key::new("kernel");
    key.text(name).text(&linux.version).text(&tools(lab)?);
    for input in fragments.iter().chain(&fetch::patches(&conf.join("patches"))?) {
        key.path(input)?;
    }
    let key = key.hex();
    let dir = lab.cache.join(format!("kernel/{name}-{key}"));
    let _lock = lock::take(&lab.cache.join(format!("lock/kernel-{name}-{key}")), &format!("kernel ({name})"))?;
    if !dir.join(STAMP).is_file() {
        make(lab, linux, &dir, &fragments, name)?;
    }
    let release = fs::read_to_string(dir.join("include/config/kernel.release"))
        .with_context(|| format!("{} is no finished kernel build: remove it", dir.display()))?;
    let image = dir.join("arch/x86/boot/bzImage");
    Ok(Kernel { image, modules: dir.clone(), dir, release: release.trim().to_string(), key, flavour })
}

/// What compiles the kernel, in words.
fn tools(lab: &Lab) -> Result<String> {
    let mut text = String::new();
    for tool in [&format!("clang{LLVM}"), &format!("ld.lld{LLVM}"), "rustc", "bindgen"] {
        let version = sh::output(sh::command(lab, tool).arg("--version"))?;
        text += version.lines().next().unwrap_or_default();
        text.push('\n');
    }
    Ok(text)
}

/// Resumes where an interrupted build stopped.
fn make(lab: &Lab, linux: &Linux, dir: &Path, fragments: &[PathBuf], name: &str) -> Result<()> {
    let start = Instant::now();
    say(&format!(
        "kernel ({name}): building {} into {}; once, some 10 to 20 minutes on 2 cores",
        linux.version,
        dir.display()
    ));
    fs::create_dir_all(dir)?;
    let mut wanted = String::new();
    for fragment in fragments {
        let text = fs::read_to_string(fragment).with_context(|| format!("cannot read {}", fragment.display()))?;
        wanted = merged(&wanted, &text);
    }
    let mut step = Step::new(format!("kernel ({name})"), lab.build.join(format!("log/kernel-{name}.log")))?;
    step.counts = &["CC ", "AS ", "RUSTC ", "HOSTCC ", "LD ", "AR "];
    let make = || {
        let mut cmd = sh::command(lab, "make");
        cmd.arg("-C").arg(&linux.dir).arg(format!("O={}", dir.display())).arg(format!("LLVM={LLVM}"));
        cmd
    };
    if !dir.join(".config").is_file() || fs::read_to_string(dir.join(".lab-wanted")).ok().as_deref() != Some(&wanted) {
        fs::write(dir.join(".lab-wanted"), &wanted)?;
        let all = format!("KCONFIG_ALLCONFIG={}", dir.join(".lab-wanted").display());
        step.run(make().args([&all, "tinyconfig"]))?;
        // tinyconfig has its own last word on a few options; ours is later.
        let config = fs::read_to_string(dir.join(".config"))?;
        if !refused(&wanted, &config).is_empty() {
            fs::write(dir.join(".config"), format!("{config}{wanted}"))?;
            step.run(make().arg("olddefconfig"))?;
        }
    }
    let refused = refused(&wanted, &fs::read_to_string(dir.join(".config"))?);
    if !refused.is_empty() {
        bail!(
            "kernel ({name}): the configuration did not take {}: a dependency is missing in ci/qemu/kernel/*.config \
             (RUST: see `make -C {} LLVM={LLVM} rustavailable`)",
            refused.join(" "),
            linux.dir.display()
        );
    }
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    step.run(make().args([&format!("-j{jobs}"), "bzImage", "modules"]))?;
    fs::write(dir.join(STAMP), "")?;
    say(&format!("kernel ({name}): built in {}", sh::human(start.elapsed())));
    Ok(())
}

/// The option of which a line of a configuration speaks.
fn option(line: &str) -> Option<&str> {
    line.strip_prefix("# ").unwrap_or(line).strip_prefix("CONFIG_")?.split(['=', ' ']).next()
}

/// Two fragments as one: where both speak of an option, the later one has the word, as with the kernel's merge_config.sh.
fn merged(base: &str, later: &str) -> String {
    let again: HashSet<&str> = later.lines().filter_map(option).collect();
    let kept = base.lines().filter(|l| option(l).is_none_or(|name| !again.contains(name)));
    kept.chain(later.lines()).flat_map(|l| [l, "\n"]).collect()
}

/// The options that a fragment asks for and the final configuration has not. Asked off and absent is the same.
fn refused(wanted: &str, config: &str) -> Vec<String> {
    let mut missing = Vec::new();
    for line in wanted.lines() {
        let ok = if let Some((name, "n")) = line.split_once('=') {
            !config.lines().any(|l| l.starts_with(&format!("{name}=")))
        } else if let Some(name) = line.strip_prefix("# CONFIG_").and_then(|l| l.strip_suffix(" is not set")) {
            !config.lines().any(|l| l.starts_with(&format!("CONFIG_{name}=")))
        } else if line.starts_with("CONFIG_") {
            config.lines().any(|l| l == line)
        } else {
            true
        };
        if !ok {
            missing.push(line.to_string());
        }
    }
    missing
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_fragment_has_the_last_word() {
        let base = "# a comment\nCONFIG_A=y\nCONFIG_AB=y\nCONFIG_B=m\n# CONFIG_C is not set\n";
        assert_eq!(
            merged(base, "# CONFIG_A is not set\nCONFIG_B=y\nCONFIG_C=y\n"),
            "# a comment\nCONFIG_AB=y\n# CONFIG_A is not set\nCONFIG_B=y\nCONFIG_C=y\n"
        );
    }

    #[test]
    fn an_option_that_was_not_taken_is_named() {
        let wanted = "# a comment\nCONFIG_A=y\nCONFIG_B=m\nCONFIG_C=n\n# CONFIG_D is not set\nCONFIG_E=17\n";
        assert!(refused(wanted, "CONFIG_A=y\nCONFIG_B=m\n# CONFIG_C is not set\nCONFIG_E=17\n").is_empty());
        assert_eq!(
            refused(wanted, "CONFIG_A=y\nCONFIG_B=y\nCONFIG_D=y\n"),
            ["CONFIG_B=m", "# CONFIG_D is not set", "CONFIG_E=17"]
        );
    }
}
