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

/// Where the pieces that the machine may lack come from; old releases lack the new ones. (The machine's own release and
/// its security updates, if it has them, have the stock kernel; Debian 12 has the oldest.)
const SUITES: [&str; 5] = ["trixie", "trixie-backports", "forky", "sid", "bookworm"];
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
        let machine = Machine::look(&apt)?;
        fs::write(apt.dir.join("etc/sources.list"), machine.sources_list())?;
        let step = Step::new("package lists", lab.build.join("log/apt-update.log"))?;
        sh::say("fetch: package lists of the Debian suites");
        if let Err(e) = step.run(apt.get().arg("update")) {
            // A suite that is gone ends nothing but what only it has; that says then which package is missing.
            sh::say(&format!("fetch: not every suite answers: {e:#}"));
        }
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

    /// What the machine's own apt knows. apt lists its mirrors only while it has package lists: where those were thrown
    /// away, they are fetched once into the private folder.
    fn targets(&self, codename: &str) -> Result<String> {
        let own = sh::output(sh::command(self.lab, "apt-get").arg("indextargets"))?;
        if pick_mirror(&own, "Debian", codename).is_some() {
            return Ok(own);
        }
        let lists = format!("Dir::State::lists={}/machine/lists", self.dir.display());
        sh::output(sh::command(self.lab, "apt-get").args(["-q", "-o", &lists, "update"]))?;
        sh::output(sh::command(self.lab, "apt-get").args(["-o", &lists, "indextargets"]))
    }

    /// Names of the packages that match a regular expression, in all suites.
    pub fn search(&self, regex: &str) -> Result<Vec<String>> {
        let text = sh::output(self.tool("apt-cache").args(["search", "--names-only", regex]))?;
        Ok(text.lines().filter_map(|l| l.split_whitespace().next()).map(str::to_string).collect())
    }

    /// The newest version of a package, of those that start like this, over all suites.
    pub fn newest(&self, package: &str, series: &str) -> Result<String> {
        let text = sh::output(self.tool("apt-cache").args(["madison", package]))?;
        newest(&text, package, series).ok_or_else(|| {
            let have: Vec<&str> = versions(&text, package).collect();
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

/// The machine's release and where it gets its packages from.
struct Machine {
    codename: String,
    mirror: Mirror,
    /// Of its security updates, if it has them.
    security: Option<Mirror>,
}

impl Machine {
    fn look(apt: &Apt) -> Result<Self> {
        let codename = release()?.codename;
        let targets = apt.targets(&codename)?;
        let mirror = pick_mirror(&targets, "Debian", &codename).ok_or_else(|| {
            anyhow!(
                "apt's configuration has no Debian mirror for {codename}: add one to /etc/apt and run apt-get update"
            )
        })?;
        let security = pick_mirror(&targets, "Debian-Security", &format!("{codename}-security"));
        Ok(Machine { codename, mirror, security })
    }

    fn sources_list(&self) -> String {
        let Machine { codename, mirror, security } = self;
        let mut suites: Vec<String> = SUITES.map(String::from).into();
        for suite in [codename.clone(), format!("{codename}-backports")] {
            if !suites.contains(&suite) {
                suites.push(suite);
            }
        }
        let mut list = String::new();
        for suite in suites {
            list += &mirror.line("deb", &suite);
        }
        if let Some(security) = security {
            list += &security.line("deb", &format!("{codename}-security"));
        }
        list + &mirror.line("deb-src", SUITES[0])
    }
}

impl Mirror {
    fn line(&self, kind: &str, suite: &str) -> String {
        let signed = self.signed_by.as_ref().map(|k| format!("[signed-by={k}] ")).unwrap_or_default();
        format!("{kind} {signed}{} {suite} {COMPONENTS}\n", self.uri)
    }
}

/// Reads `apt-get indextargets`: stanzas of `Field: value`.
fn pick_mirror(targets: &str, label: &str, codename: &str) -> Option<Mirror> {
    for stanza in targets.split("\n\n") {
        let field = |name: &str| stanza.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(": ")).unwrap_or("");
        if field("Codename") == codename
            && field("Origin") == "Debian"
            && field("Label") == label
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

/// This machine's Debian.
pub struct Release {
    pub codename: String,
    /// 12 or 13, as package versions have it after `+deb`.
    pub number: String,
}

pub fn release() -> Result<Release> {
    parse_release(&fs::read_to_string("/etc/os-release").context("cannot read /etc/os-release")?)
}

fn parse_release(os_release: &str) -> Result<Release> {
    let value = |name: &str| {
        os_release.lines().find_map(|l| Some(l.strip_prefix(name)?.strip_prefix('=')?.trim_matches('"').to_string()))
    };
    if value("ID").as_deref() != Some("debian") {
        bail!("this is {:?}: the lab runs on Debian 12 or 13", value("PRETTY_NAME").unwrap_or_default());
    }
    match (value("VERSION_CODENAME"), value("VERSION_ID")) {
        (Some(codename), Some(number)) => Ok(Release { codename, number }),
        _ => bail!("/etc/os-release has no VERSION_CODENAME or no VERSION_ID: the lab runs on Debian 12 or 13"),
    }
}

/// Reads `apt-cache madison`: `package | version | where`.
/// Of what `apt-cache madison` prints: it names the source package, too, whose version may be another one.
fn versions<'a>(text: &'a str, package: &'a str) -> impl Iterator<Item = &'a str> {
    let fields = text.lines().map(|line| line.split('|').map(str::trim));
    fields.filter_map(move |mut of| if of.next()? == package { of.next() } else { None })
}

fn newest(text: &str, package: &str, series: &str) -> Option<String> {
    versions(text, package).filter(|v| v.starts_with(series)).max_by_key(|v| numbers(v)).map(str::to_string)
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

    fn mirror(uri: &str) -> Mirror {
        Mirror { uri: uri.into(), signed_by: Some("/k.gpg".into()) }
    }

    #[test]
    fn the_mirror_is_the_release_not_its_security_updates() {
        assert_eq!(pick_mirror(TARGETS, "Debian", "bookworm"), Some(mirror("http://mirror.invalid/debian/")));
        assert_eq!(
            pick_mirror(TARGETS, "Debian-Security", "bookworm-security"),
            Some(mirror("http://security.invalid/"))
        );
        assert_eq!(pick_mirror(TARGETS, "Debian", "trixie"), None);
        assert_eq!(pick_mirror("", "Debian", "bookworm"), None);
    }

    #[test]
    fn every_suite_is_signed_and_there_once() {
        let machine = |codename: &str, security: Option<Mirror>| {
            Machine { codename: codename.into(), mirror: mirror("http://m.invalid"), security }.sources_list()
        };
        let list = machine("bookworm", Some(mirror("http://s.invalid")));
        assert!(list.lines().all(|l| l.contains("[signed-by=/k.gpg]")));
        let times = |list: &str, what: &str| list.lines().filter(|l| l.contains(what)).count();
        for suite in
            ["m.invalid bookworm main", "m.invalid bookworm-backports main", "s.invalid bookworm-security main"]
        {
            assert_eq!(times(&list, suite), 1, "{suite} in\n{list}");
        }
        let list = machine("trixie", None);
        assert_eq!((times(&list, "deb [signed-by=/k.gpg] http://m.invalid trixie "), times(&list, "security")), (1, 0));
    }

    #[test]
    fn newest_of_a_series() {
        let text =
            " nv | 570.1-1 | http://m.invalid sid/contrib amd64 Packages\n nv | 550.9.2-1 | http://m.invalid trixie\n\
             nv | 550.163.01-4 | http://m.invalid trixie\n nv-signed | 550.163.01+4 | http://m.invalid trixie Sources\n";
        assert_eq!(newest(text, "nv", "550.").as_deref(), Some("550.163.01-4"));
        assert_eq!(newest(text, "nv", "560."), None);
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
        let release = parse_release("ID=debian\nVERSION_CODENAME=bookworm\nVERSION_ID=\"12\"\n").unwrap();
        assert_eq!((release.codename.as_str(), release.number.as_str()), ("bookworm", "12"));
        let Err(e) = parse_release("ID=fedora\nPRETTY_NAME=\"Fedora 40\"\n") else { panic!("Fedora was taken") };
        assert!(e.to_string().contains("Fedora"));
    }
}
