// SPDX-License-Identifier: GPL-2.0

//! `lab keep`: names a finished artefact by the hash of its inputs and keeps it in the cache, which
//! all checkouts share.

use anyhow::{bail, ensure, Context, Result};
use lab::ctx::Lab;
use lab::sh::{human, processor_time, say, Step};
use rustix::fs::{flock, FlockOperation};
use rustix::io::{fcntl_setfd, FdFlags};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Instant, SystemTime};
use walkdir::{DirEntry, WalkDir};

/// The number of finished builds of one artefact that are kept.
const KEEP: usize = 24;
/// The file that is written last and marks a build as finished.
const DONE: &str = ".done";

#[derive(clap::Args)]
pub struct Keep {
    /// The artefact's name: a path below the cache's `kept` and below `build/lab`.
    name: String,
    /// Build in the cache itself, so that an interrupted build goes on where it stopped, and keep
    /// every build.
    #[arg(long)]
    in_place: bool,
    #[arg(long, default_value = "build")]
    verb: String,
    /// Text to print before the artefact is built.
    #[arg(long)]
    says: Option<String>,
    /// Fail if the log contains a warning: what a compiler warns about on one kernel is an error on
    /// another.
    #[arg(long)]
    no_warnings: bool,
    /// A file in $OUT in which cargo lists what the product is made of. Each of the checkout's
    /// files in it must be an input.
    #[arg(long)]
    made_of: Option<String>,
    /// Inputs: files, folders, links to other artefacts, or =TEXT.
    inputs: Vec<String>,
    /// The command that builds the artefact in $OUT.
    #[arg(last = true)]
    command: Vec<String>,
}

impl Keep {
    pub fn run(&self, lab: &Lab) -> Result<()> {
        let kept = lab.cache.join("kept").join(&self.name);
        fs::create_dir_all(&kept).with_context(|| format!("cannot make {}", kept.display()))?;
        let key = self.key(lab)?;
        let dir = kept.join(&key);
        if !dir.join(DONE).is_file() {
            let work = if self.in_place { dir.clone() } else { lab.build.join(self.work()) };
            fs::create_dir_all(&work).with_context(|| format!("cannot make {}", work.display()))?;
            let _lock = lock(&work.with_extension("lock"), &format!("{} {}", self.verb, self.name))?;
            if !dir.join(DONE).is_file() {
                self.make(lab, &work, &key)?;
                if !self.in_place {
                    publish(&work, &dir)?;
                }
                File::create(dir.join(DONE))?;
                prune(&kept, if self.in_place { usize::MAX } else { KEEP })?;
            }
        }
        // The folder's time is that of its last use, because `prune` removes the builds that were
        // not used for longest.
        let _ = File::open(&dir).and_then(|d| d.set_modified(SystemTime::now()));
        link(&dir, &lab.build.join(&self.name))
    }

    /// Returns the folder in which the artefact is built: for `debug-7.2/gpu`,
    /// `debug-7.2/work/gpu`.
    fn work(&self) -> PathBuf {
        let name = Path::new(&self.name);
        name.with_file_name("work").join(name.file_name().unwrap_or_default())
    }

    fn make(&self, lab: &Lab, work: &Path, key: &str) -> Result<()> {
        let start = Instant::now();
        let what = format!("{} {}", self.verb, self.name);
        if let Some(says) = &self.says {
            say(&format!("{what}: {says}"));
        }
        let step = Step::new(&what, lab.build.join(format!("log/{}.log", self.name.replace('/', "-"))))?;
        let Some((program, words)) = self.command.split_first() else { bail!("{what}: there is no command") };
        step.run(Command::new(program).args(words).env("OUT", work).current_dir(&lab.repo))?;
        if self.no_warnings {
            let log = fs::read(&step.log)?;
            let log = String::from_utf8_lossy(&log);
            let warning = log.lines().find(|line| line.to_ascii_lowercase().contains("warning"));
            let log = step.log.display();
            ensure!(warning.is_none(), "{what}: not without a warning: {} (log: {log})", warning.unwrap_or_default());
        }
        if let Some(file) = &self.made_of {
            let list = work.join(file);
            let list = fs::read_to_string(&list).with_context(|| format!("cannot read {}", list.display()))?;
            self.check(lab, &made_of(&list, lab)?)?;
        }
        ensure!(self.key(lab)? == key, "{what}: its inputs changed while it was built: again, please");
        say(&format!("{what}: {}, {} of processors", human(start.elapsed()), human(processor_time())));
        Ok(())
    }

    /// Returns a hash of all inputs.
    fn key(&self, lab: &Lab) -> Result<String> {
        let mut hash = Sha256::new();
        // Add each piece with its length, so that two different lists of pieces never give the same
        // bytes.
        let mut add = |piece: &[u8]| {
            hash.update((piece.len() as u64).to_le_bytes());
            hash.update(piece);
        };
        add(self.name.as_bytes());
        for input in &self.inputs {
            add(input.as_bytes());
            let path = lab.repo.join(input);
            match fs::read_link(&path) {
                _ if input.starts_with('=') => {}
                Ok(artefact) => add(artefact.file_name().unwrap_or_default().as_encoded_bytes()),
                Err(_) => {
                    for file in sources(&path)? {
                        let text = fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
                        add(file.strip_prefix(&path)?.as_os_str().as_encoded_bytes());
                        add(&text);
                    }
                }
            }
        }
        Ok(format!("{:x}", hash.finalize())[..16].to_string())
    }

    /// Fails unless each of these files of the checkout is an input.
    fn check(&self, lab: &Lab, files: &[PathBuf]) -> Result<()> {
        ensure!(!files.is_empty(), "cargo does not say what {} is made of", self.name);
        let mut inputs = BTreeSet::new();
        for input in self.inputs.iter().map(|input| lab.repo.join(input)).filter(|input| input.exists()) {
            inputs.extend(sources(&input)?);
        }
        match files.iter().find(|file| !inputs.contains(*file)) {
            Some(file) => bail!("{} is made of {}, too: name it in ci/qemu/artefacts.mk", self.name, lab.short(file)),
            None => Ok(()),
        }
    }
}

/// Returns the file itself or, for a folder, every file in it except what builds leave behind.
fn sources(path: &Path) -> Result<BTreeSet<PathBuf>> {
    let counts = |e: &DirEntry| {
        let (name, folder) = (e.file_name().to_string_lossy(), e.file_type().is_dir());
        let left = name.starts_with('.') || (folder && (name == "target" || name == "build")) || name.ends_with(".md");
        e.depth() == 0 || !left
    };
    let mut files = BTreeSet::new();
    for entry in WalkDir::new(path).into_iter().filter_entry(counts) {
        let entry = entry.with_context(|| format!("cannot read {}", path.display()))?;
        files.extend(entry.file_type().is_file().then(|| entry.into_path()));
    }
    Ok(files)
}

/// Takes a lock, so that only one run at a time builds something. The programs that build hold it,
/// too, because some end later than a lab that was interrupted. The kernel releases flock(2) when
/// the last of them has ended, however it ends.
fn lock(path: &Path, what: &str) -> Result<File> {
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(path);
    let file = file.with_context(|| format!("cannot open the lock {}", path.display()))?;
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        say(&format!("  {what}: another run is at it, waiting ({})", path.display()));
        flock(&file, FlockOperation::LockExclusive).with_context(|| format!("cannot lock {}", path.display()))?;
    }
    fcntl_setfd(&file, FdFlags::empty()).context("a lock for the programs that build")?;
    Ok(file)
}

/// Copies the products of a part that others use from its working folder to `dir`. It skips `src`,
/// into which the part's sources were copied. The paths in `Module.symvers` lose the working folder's
/// name, so that all checkouts have the same list.
fn publish(work: &Path, dir: &Path) -> Result<()> {
    let tmp = dir.with_extension(std::process::id().to_string());
    let mut any = false;
    for entry in WalkDir::new(work).into_iter().filter_entry(|e| e.file_name() != "src" && e.file_name() != "tree") {
        let entry = entry?;
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy());
        let product = name.ends_with(".ko") || path.parent().is_some_and(|folder| folder.ends_with("bin"));
        if entry.file_type().is_file() && (product || name.ends_with(".h") || name == "Module.symvers") {
            let to = tmp.join(path.strip_prefix(work)?);
            fs::create_dir_all(to.parent().unwrap_or(&tmp))?;
            fs::copy(path, &to).with_context(|| format!("cannot copy {}", path.display()))?;
            if name == "Module.symvers" {
                fs::write(&to, fs::read_to_string(path)?.replace(&format!("{}/", work.display()), ""))?;
            }
            any |= product;
        }
    }
    ensure!(any, "the build left neither a module nor a program in {}", work.display());
    // Two checkouts may finish at the same time: the first one gets the name.
    if fs::rename(&tmp, dir).is_err() {
        fs::remove_dir_all(&tmp)?;
    }
    Ok(())
}

fn link(dir: &Path, link: &Path) -> Result<()> {
    if fs::read_link(link).is_ok_and(|old| old == dir) {
        return Ok(());
    }
    fs::create_dir_all(link.parent().unwrap_or(link))?;
    let tmp = link.with_extension(std::process::id().to_string());
    symlink(dir, &tmp)?;
    fs::rename(&tmp, link).with_context(|| format!("cannot link {}", link.display()))
}

fn prune(kept: &Path, keep: usize) -> Result<()> {
    let mut found = Vec::new();
    for entry in fs::read_dir(kept)? {
        let entry = entry?;
        if entry.path().join(DONE).is_file() {
            found.push((entry.metadata()?.modified()?, entry.path()));
        }
    }
    found.sort();
    for (_, path) in found.iter().rev().skip(keep) {
        fs::remove_dir_all(path).with_context(|| format!("cannot remove {}", path.display()))?;
    }
    Ok(())
}

/// Returns the checkout's files in cargo's list of what a product depends on.
fn made_of(list: &str, lab: &Lab) -> Result<Vec<PathBuf>> {
    let (_product, files) = list.split_once(": ").unwrap_or_default();
    // In the list, a space in a name has a backslash before it.
    let files = files.replace("\\ ", "\0");
    let files = files.split_whitespace().filter_map(|file| fs::canonicalize(file.replace('\0', " ")).ok());
    // Leave out what build scripts made. It is in the cache, which may be in the checkout.
    let (repo, cache) = (fs::canonicalize(&lab.repo)?, fs::canonicalize(&lab.cache)?);
    Ok(files.filter(|file| file.starts_with(&repo) && !file.starts_with(&cache)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lab(dir: &Path, checkout: &str) -> Lab {
        let repo = dir.join(checkout);
        fs::create_dir_all(repo.join("in")).unwrap();
        fs::write(repo.join("in/a"), "one").unwrap();
        Lab { build: repo.join("build/lab"), repo, cache: dir.join("cache") }
    }

    fn keep(inputs: &[&str], script: &str) -> Keep {
        Keep {
            name: "k/x".into(),
            in_place: false,
            verb: "build".into(),
            says: None,
            no_warnings: false,
            made_of: None,
            inputs: inputs.iter().map(|i| i.to_string()).collect(),
            command: ["sh", "-ec", script].map(String::from).into(),
        }
    }

    const BUILD: &str = r#"mkdir -p "$OUT/bin"; cat in/a >"$OUT/bin/x"; touch "$OUT/y.o""#;

    fn said(lab: &Lab) -> String {
        fs::read_to_string(lab.build.join("k/x/bin/x")).unwrap()
    }

    #[test]
    fn checkouts_share_what_is_the_same_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let (first, second) = (lab(dir.path(), "first"), lab(dir.path(), "second"));
        keep(&["in"], BUILD).run(&first).unwrap();
        // The second artefact would fail if it were built, so it must come from the cache.
        keep(&["in"], "exit 1").run(&second).unwrap();
        assert_eq!(said(&second), "one");
        assert!(!second.build.join("k/x/y.o").exists(), "only products are kept");
        fs::write(second.repo.join("in/a"), "two").unwrap();
        assert!(keep(&["in"], "exit 1").run(&second).is_err());
        keep(&["in"], BUILD).run(&second).unwrap();
        assert_eq!((said(&first), said(&second)), ("one".into(), "two".into()));
        assert!(keep(&["in", "=more"], "exit 1").run(&first).is_err(), "a word is an input");
    }

    #[test]
    fn a_key_is_what_its_sources_say() {
        let dir = tempfile::tempdir().unwrap();
        let lab = lab(dir.path(), "first");
        let of = |inputs: &[&str]| keep(inputs, "true").key(&lab).unwrap();
        let first = of(&["in"]);
        assert_ne!(first, of(&["in/a"]));
        assert_ne!(of(&["=ab", "=c"]), of(&["=ab=c"]), "pieces run together");
        fs::create_dir(lab.repo.join("in/target")).unwrap();
        fs::write(lab.repo.join("in/target/x"), "junk").unwrap();
        fs::write(lab.repo.join("in/.a.o.cmd"), "junk").unwrap();
        assert_eq!(of(&["in"]), first, "what a build leaves behind changes the key");
        fs::rename(lab.repo.join("in/a"), lab.repo.join("in/b")).unwrap();
        assert_ne!(of(&["in"]), first, "a renamed file has the old key");
    }

    #[test]
    fn an_artefact_is_an_input_by_its_own_inputs() {
        let dir = tempfile::tempdir().unwrap();
        let lab = lab(dir.path(), "first");
        let second = || Keep { name: "k/z".into(), ..keep(&["build/lab/k/x"], BUILD) }.key(&lab).unwrap();
        keep(&["in"], BUILD).run(&lab).unwrap();
        let before = second();
        fs::write(lab.repo.join("in/a"), "two").unwrap();
        keep(&["in"], BUILD).run(&lab).unwrap();
        assert_ne!(second(), before);
    }

    #[test]
    fn a_list_of_symbols_is_the_same_in_each_checkout() {
        let dir = tempfile::tempdir().unwrap();
        let of = |name: &str| {
            let lab = lab(dir.path(), name);
            let says = format!("{BUILD}; printf '0x1\\tf\\t%s/src/m\\n' \"$OUT\" >$OUT/Module.symvers");
            keep(&["in", &format!("={name}")], &says).run(&lab).unwrap();
            fs::read_to_string(lab.build.join("k/x/Module.symvers")).unwrap()
        };
        assert_eq!(of("first"), "0x1\tf\tsrc/m\n");
        assert_eq!(of("second"), of("first"));
    }

    #[test]
    fn what_fails_is_not_kept() {
        let dir = tempfile::tempdir().unwrap();
        let lab = lab(dir.path(), "first");
        let error = |keep: &Keep| format!("{:#}", keep.run(&lab).unwrap_err());
        assert!(error(&keep(&["in"], "touch $OUT/y.o")).contains("neither a module nor a program"));
        assert!(error(&keep(&["in"], &format!("{BUILD}; echo two >in/a"))).contains("changed while"));
        let warns = Keep { no_warnings: true, ..keep(&["in"], &format!("{BUILD}; echo 'x.c: Warning: y'")) };
        assert!(error(&warns).contains("x.c: Warning: y"));
        keep(&["in"], BUILD).run(&lab).unwrap();
    }

    #[test]
    fn an_interrupted_build_in_place_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let lab = lab(dir.path(), "first");
        let kernel = |script: &str| Keep { in_place: true, ..keep(&["in"], script) };
        assert!(kernel("touch $OUT/half; exit 1").run(&lab).is_err());
        kernel("test -e $OUT/half; touch $OUT/image").run(&lab).unwrap();
        assert!(lab.build.join("k/x/image").is_file());
    }

    #[test]
    fn a_file_that_the_inputs_lack_ends_the_build() {
        let dir = tempfile::tempdir().unwrap();
        let lab = lab(dir.path(), "a checkout");
        let repo = lab.repo.display().to_string().replace(' ', "\\ ");
        let with = |inputs: &[&str], files: &str| {
            fs::write(lab.repo.join("list"), format!("x: {files} /usr/z.rs")).unwrap();
            let script = format!("{BUILD}; cp list \"$OUT/x.d\"");
            Keep { made_of: Some("x.d".into()), ..keep(inputs, &script) }.run(&lab).map_err(|e| e.to_string())
        };
        fs::write(lab.repo.join("x.txt"), "page").unwrap();
        let page = format!("{repo}/in/a {repo}/in/../x.txt");
        let error = with(&["in"], &page).unwrap_err();
        assert!(error.contains("made of x.txt, too"), "{error}");
        assert!(with(&["in"], "").unwrap_err().contains("does not say"));
        with(&["in", "x.txt"], &page).unwrap();
    }

    #[test]
    fn the_oldest_go_first() {
        let dir = tempfile::tempdir().unwrap();
        let old = SystemTime::now() - std::time::Duration::from_secs(1000);
        for (i, name) in ["1", "2", "3", "half"].iter().enumerate() {
            let path = dir.path().join(name);
            fs::create_dir(&path).unwrap();
            if *name != "half" {
                fs::write(path.join(DONE), "").unwrap();
            }
            let time = old + std::time::Duration::from_secs(i as u64);
            File::open(&path).unwrap().set_modified(time).unwrap();
        }
        prune(dir.path(), 2).unwrap();
        let left = |n: &str| dir.path().join(n).exists();
        assert!(!left("1") && left("2") && left("3") && left("half"), "what is being built stays");
    }
}
