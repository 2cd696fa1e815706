//! Debian packages of any suite, by name, without touching the machine's own apt: a private folder for apt's state, mirror
//! and keyring as the machine's configuration has them (whichever format it is written in: apt itself is asked), signatures
//! checked by apt as always.

use crate::ctx::Lab;
use crate::key::file_sha256;
use crate::sh::{self, Step};
use anyhow::{anyhow, bail, Context, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where the pieces that the machine may lack come from; old releases lack the new ones.
const SUITES: [&str; 4] = ["trixie", "trixie-backports", "forky", "sid"];
const COMPONENTS: &str = "main contrib";
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
const HELPER: &str = "/usr/lib/apt/apt-helper";

pub struct Apt<'a> {
    lab: &'a Lab,
    dir: PathBuf,
}

#[derive(Debug, PartialEq)]
struct Mirror {
    uri: String,
    signed_by: Option<String>,
}

/// One file of a source package, as the signed index has it.
#[derive(Debug, PartialEq)]
pub struct SourceFile {
    pub uri: String,
    pub name: String,
    pub sha256: String,
}

impl<'a> Apt<'a> {
    /// Refreshes the private package lists.
    pub fn open(lab: &'a Lab) -> Result<Self> {
        let dir = lab.cache.join("apt");
        for sub in ["state/lists/partial", "cache/archives/partial", "machine/lists/partial", "etc"] {
            let sub = dir.join(sub);
            fs::create_dir_all(&sub).with_context(|| format!("cannot make {}", sub.display()))?;
        }
        let apt = Apt { lab, dir };
        let mirror = apt.mirror()?;
        fs::write(apt.dir.join("etc/sources.list"), sources_list(&mirror))?;
        let step = Step::new("package lists", lab.build.join("log/apt-update.log"))?;
        sh::say("fetch: package lists of the Debian suites");
        step.run(apt.get().arg("update"))?;
        Ok(apt)
    }

    /// apt-get in the private folder.
    fn get(&self) -> Command {
        self.tool("apt-get")
    }

    fn tool(&self, program: &str) -> Command {
        let mut cmd = sh::command(self.lab, program);
        let dir = self.dir.display();
        for option in [
            format!("Dir::State={dir}/state"),
            format!("Dir::State::lists={dir}/state/lists"),
            format!("Dir::Cache={dir}/cache"),
            format!("Dir::Etc::sourcelist={dir}/etc/sources.list"),
            "Dir::Etc::sourceparts=/dev/null".into(),
            "Dir::Etc::preferencesparts=/dev/null".into(),
            "Acquire::Languages=none".into(),
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false".into(),
            "APT::Sandbox::User=root".into(),
            "APT::Update::Post-Invoke-Success=".into(),
        ] {
            cmd.arg("-o").arg(option);
        }
        cmd
    }

    /// The machine's own Debian mirror. apt lists it only while it has package lists: where those were thrown away, they
    /// are fetched once into the private folder.
    fn mirror(&self) -> Result<Mirror> {
        let codename = codename(&fs::read_to_string("/etc/os-release").context("cannot read /etc/os-release")?)?;
        let own = sh::output(sh::command(self.lab, "apt-get").arg("indextargets"))?;
        if let Some(mirror) = pick_mirror(&own, &codename) {
            return Ok(mirror);
        }
        let lists = format!("Dir::State::lists={}/machine/lists", self.dir.display());
        sh::output(sh::command(self.lab, "apt-get").args(["-q", "-o", &lists, "update"]))?;
        let own = sh::output(sh::command(self.lab, "apt-get").args(["-o", &lists, "indextargets"]))?;
        pick_mirror(&own, &codename).ok_or_else(|| {
            anyhow!(
                "apt's configuration has no Debian mirror for {codename}: add one to /etc/apt and run apt-get update"
            )
        })
    }

    /// The newest version of a package, of those that start like this, over all suites.
    pub fn newest(&self, package: &str, series: &str) -> Result<String> {
        let text = sh::output(self.tool("apt-cache").args(["madison", package]))?;
        newest(&text, series).ok_or_else(|| {
            let have: Vec<&str> = versions(&text).collect();
            anyhow!(
                "no suite has {package} {series}* any more (there: {}): put such a package into {}, or teach the lab a newer \
                 one (ci/qemu/lab/src/fetch.rs)",
                have.join(" "),
                self.lab.cache.join("dl").display()
            )
        })
    }

    /// Downloads a binary package (apt checks it against the signed index) and returns its file.
    pub fn download(&self, package: &str, version: &str) -> Result<PathBuf> {
        let dl = self.lab.cache.join("dl");
        let found = || -> Option<PathBuf> {
            let version = version.replace(':', "%3a");
            ["all", "amd64"].iter().map(|a| dl.join(format!("{package}_{version}_{a}.deb"))).find(|f| f.is_file())
        };
        if let Some(file) = found() {
            return Ok(file);
        }
        sh::say(&format!("fetch: {package} {version}"));
        let step = Step::new(format!("fetch {package}"), self.lab.build.join(format!("log/fetch-{package}.log")))?;
        // Into a folder of its own first: what lies in dl/ is whole.
        let partial = dl.join("partial");
        fs::create_dir_all(&partial)?;
        step.run(self.get().args(["download", &format!("{package}={version}")]).current_dir(&partial))?;
        for entry in fs::read_dir(&partial)? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with(&format!("{package}_")) {
                fs::rename(entry.path(), dl.join(entry.file_name()))?;
            }
        }
        found().ok_or_else(|| anyhow!("apt-get download {package}={version} left no file in {}", dl.display()))
    }

    /// The files of a source package. Some mirrors answer 404 for the .dsc of a version with a plus sign, so each file is
    /// fetched by itself, and checked against the hash in the signed index.
    pub fn source_files(&self, package: &str) -> Result<Vec<SourceFile>> {
        Ok(parse_uris(&sh::output(self.get().args(["source", "--print-uris", package]))?))
    }

    pub fn download_source(&self, file: &SourceFile) -> Result<PathBuf> {
        let to = self.lab.cache.join("dl").join(&file.name);
        if to.is_file() && file_sha256(&to)? == file.sha256 {
            return Ok(to);
        }
        sh::say(&format!("fetch: {}", file.name));
        let partial = self.lab.cache.join("dl").join(format!("{}.part", file.name));
        let log = self.lab.build.join(format!("log/fetch-{}.log", file.name));
        let step = Step::new(format!("fetch {}", file.name), log)?;
        let mut last = None;
        for uri in [file.uri.clone(), file.uri.replace("%2b", "+").replace("%2B", "+")] {
            let mut cmd = sh::command(self.lab, HELPER);
            cmd.args(["-o", "APT::Sandbox::User=root", "download-file", &uri])
                .arg(&partial)
                .arg(format!("SHA256:{}", file.sha256));
            match step.run(&mut cmd) {
                Ok(()) => {
                    last = None;
                    break;
                }
                Err(e) => last = Some(e),
            }
        }
        if let Some(e) = last {
            return Err(e);
        }
        let got = file_sha256(&partial)?;
        if got != file.sha256 {
            bail!("{}: SHA-256 is {got}, the signed index says {}", file.name, file.sha256);
        }
        fs::rename(&partial, &to)?;
        Ok(to)
    }
}

fn sources_list(mirror: &Mirror) -> String {
    let signed = mirror.signed_by.as_ref().map(|k| format!("[signed-by={k}] ")).unwrap_or_default();
    let mut list = String::new();
    for suite in SUITES {
        list += &format!("deb {signed}{} {suite} {COMPONENTS}\n", mirror.uri);
    }
    list += &format!("deb-src {signed}{} {} {COMPONENTS}\n", mirror.uri, SUITES[0]);
    list
}

/// Reads `apt-get indextargets`: stanzas of `Field: value`.
fn pick_mirror(targets: &str, codename: &str) -> Option<Mirror> {
    for stanza in targets.split("\n\n") {
        let field = |name: &str| stanza.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(": ")).unwrap_or("");
        if field("Codename") == codename
            && field("Origin") == "Debian"
            && field("Label") == "Debian"
            && !field("Repo-URI").is_empty()
        {
            let key = field("Signed-By");
            let signed_by = if key.starts_with('/') {
                Some(key.to_string())
            } else {
                Path::new(KEYRING).is_file().then(|| KEYRING.to_string())
            };
            return Some(Mirror { uri: field("Repo-URI").to_string(), signed_by });
        }
    }
    None
}

fn codename(os_release: &str) -> Result<String> {
    let value = |name: &str| {
        os_release.lines().find_map(|l| Some(l.strip_prefix(name)?.strip_prefix('=')?.trim_matches('"').to_string()))
    };
    if value("ID").as_deref() != Some("debian") {
        bail!("this is {:?}: the lab runs on Debian 12 or 13", value("PRETTY_NAME").unwrap_or_default());
    }
    value("VERSION_CODENAME")
        .ok_or_else(|| anyhow!("/etc/os-release has no VERSION_CODENAME: the lab runs on Debian 12 or 13"))
}

/// Reads `apt-cache madison`: `package | version | where`.
fn versions(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|l| l.split('|').nth(1)).map(str::trim)
}

fn newest(text: &str, series: &str) -> Option<String> {
    versions(text).filter(|v| v.starts_with(series)).max_by_key(|v| numbers(v)).map(str::to_string)
}

/// The numbers of a version, to compare 7.2.9 with 7.2.13.
pub fn numbers(version: &str) -> Vec<u64> {
    version.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect()
}

/// Reads `apt-get source --print-uris`: `'uri' name size SHA256:hash`.
fn parse_uris(text: &str) -> Vec<SourceFile> {
    let mut files = Vec::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let [uri, name, _size, hash] = words[..] {
            if let (true, Some(sha256)) = (uri.starts_with('\''), hash.strip_prefix("SHA256:")) {
                files.push(SourceFile { uri: uri.trim_matches('\'').into(), name: name.into(), sha256: sha256.into() });
            }
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGETS: &str = "MetaKey: main/binary-amd64/Packages\nCodename: bookworm-security\nLabel: Debian-Security\nOrigin: Debian\n\
        Repo-URI: http://security.invalid/\nSigned-By: /k.gpg\n\nMetaKey: x\nCodename: bookworm\nLabel: Debian\nOrigin: Debian\n\
        Repo-URI: http://mirror.invalid/debian/\nSigned-By: /k.gpg\n";

    #[test]
    fn the_mirror_is_the_release_not_its_security_updates() {
        let mirror = pick_mirror(TARGETS, "bookworm").unwrap();
        assert_eq!(mirror, Mirror { uri: "http://mirror.invalid/debian/".into(), signed_by: Some("/k.gpg".into()) });
        assert_eq!(pick_mirror(TARGETS, "trixie"), None);
        assert_eq!(pick_mirror("", "bookworm"), None);
    }

    #[test]
    fn every_suite_is_signed() {
        let list = sources_list(&pick_mirror(TARGETS, "bookworm").unwrap());
        assert_eq!(list.lines().count(), SUITES.len() + 1);
        assert!(list.lines().all(|l| l.contains("[signed-by=/k.gpg]")));
    }

    #[test]
    fn newest_of_a_series() {
        let text =
            " nv | 570.1-1 | http://m.invalid sid/contrib amd64 Packages\n nv | 550.9.2-1 | http://m.invalid trixie\n\
             nv | 550.163.01-4 | http://m.invalid trixie\n";
        assert_eq!(newest(text, "550.").as_deref(), Some("550.163.01-4"));
        assert_eq!(newest(text, "560."), None);
    }

    #[test]
    fn source_files_come_with_their_hash() {
        let text = "Need to get 1005 kB of source archives.\n\
            'http://m.invalid/p/perftest_25.01.0%2b0.80.orig.tar.gz' perftest_25.01.0+0.80.orig.tar.gz 997698 SHA256:54e8\n";
        let files = parse_uris(text);
        assert_eq!(files.len(), 1);
        assert_eq!(files[0].name, "perftest_25.01.0+0.80.orig.tar.gz");
        assert_eq!(files[0].sha256, "54e8");
    }

    #[test]
    fn only_debian() {
        assert_eq!(codename("ID=debian\nVERSION_CODENAME=bookworm\n").unwrap(), "bookworm");
        assert!(codename("ID=fedora\nPRETTY_NAME=\"Fedora 40\"\n").unwrap_err().to_string().contains("Fedora"));
    }
}
