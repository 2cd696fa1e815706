// SPDX-License-Identifier: GPL-2.0

//! Tests that what a page links to and what a comment cites is in the tree.

use build_tests::{repository, run};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

/// Returns the files of the repository.
fn files() -> BTreeSet<String> {
    let listed = run(Command::new("git").current_dir(repository()).arg("ls-files"));
    assert!(listed.ok, "git: {}", listed.text);
    listed.text.lines().map(str::to_string).collect()
}

fn read(file: &str) -> String {
    fs::read_to_string(repository().join(file)).unwrap_or_default()
}

/// Returns the names that a link may have behind its `#`: those of headings as forges make them,
/// and those set by hand.
fn anchors(page: &str) -> BTreeSet<String> {
    let text = read(page);
    let headings = text.lines().filter(|line| line.starts_with('#')).map(|line| {
        let words = line.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
        words.chars().filter(|c| c.is_alphanumeric() || "-_".contains(*c)).collect()
    });
    let by_hand = text.split("<a id=\"").skip(1).filter_map(|rest| rest.split('"').next()).map(str::to_string);
    headings.chain(by_hand).collect()
}

/// Returns the file to which a link to `page` in `file` leads.
fn linked(file: &str, page: &str) -> PathBuf {
    let mut path = PathBuf::from(file);
    if !page.is_empty() {
        path.pop();
        for part in Path::new(page).components() {
            match part {
                Component::ParentDir => drop(path.pop()),
                part => path.push(part),
            }
        }
    }
    path
}

/// Returns whether the link `target` in `file` leads somewhere.
fn leads(file: &str, target: &str) -> bool {
    let (page, anchor) = target.split_once('#').unwrap_or((target, ""));
    let path = linked(file, page);
    let is_page = path.extension().is_some_and(|e| e == "md");
    repository().join(&path).exists()
        && (anchor.is_empty() || !is_page || anchors(path.to_str().expect("UTF-8")).contains(anchor))
}

/// Returns what the links of a page lead to, but for other sites.
fn targets(page: &str) -> Vec<String> {
    let text = read(page);
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets.filter(|target| !target.starts_with("http")).map(str::to_string).collect()
}

#[test]
fn links_lead_somewhere() {
    let mut broken = Vec::new();
    for page in files().iter().filter(|file| file.ends_with(".md")) {
        for target in targets(page).iter().filter(|target| !leads(page, target)) {
            broken.push(format!("{page}: {target}"));
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// Compares the code on the page for authors of drivers with the tree. Nobody compiles that code, so
/// each name in it must still be one of the layer's or of the sample's.
#[test]
fn the_drivers_page_calls_what_the_layer_has() {
    let code: String = files()
        .iter()
        .filter(|file| (file.starts_with("src/") || file.starts_with("samples/")) && file.ends_with(".rs"))
        .map(|file| read(file))
        .collect();
    let page = read("docs/own-driver.md");
    let lines = page.lines().filter(|line| line.starts_with("    ") && !line.starts_with("    make"));
    let lines: String = lines.map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n");
    let (mut missing, mut seen) = (Vec::new(), 0);
    for (at, _) in lines.match_indices(['(', ':', '{']) {
        let name: String =
            lines[..at].trim_end().rsplit(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default().into();
        if name.chars().next().is_none_or(|c| c.is_ascii_digit()) {
            continue;
        }
        seen += 1;
        let is_word = |(at, _): (usize, &str)| {
            let after = code[at + name.len()..].chars().next();
            !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_')
                && after.is_some_and(|c| !c.is_alphanumeric() && c != '_')
        };
        if !code.match_indices(name.as_str()).any(is_word) {
            missing.push(name);
        }
    }
    assert!(seen > 20, "{seen} names in the page's code");
    assert!(missing.is_empty(), "neither src/ nor the sample has {missing:?}");
}

/// docs/install.md says from which DKMS on the package works, and both kinds of package ask for it.
#[test]
fn the_packages_ask_for_the_dkms_that_install_md_names() {
    let page = read("docs/install.md");
    let version = page.split("DKMS from\n").nth(1).and_then(|rest| rest.split(' ').next()).expect("a version");
    for (file, before, behind) in
        [("packaging/debian/control", "dkms (>= ", ")"), ("packaging/rpm/nvidia-peermem-rust.spec", "dkms >= ", "\n")]
    {
        assert!(
            read(file).contains(&format!("{before}{version}{behind}")),
            "{file} asks for another dkms than {version}"
        );
    }
}

/// A release is built on the system that docs/install.md names, and its programs are held against the glibc that
/// the page promises.
#[test]
fn a_release_is_built_on_the_system_that_install_md_names() {
    let (page, workflow) = (read("docs/install.md"), read(".github/workflows/release.yml"));
    let after = |words: &str| {
        let rest = page.split(words).nth(1).unwrap_or_else(|| panic!("no {words}"));
        rest.split(' ').next().expect("a word").to_string()
    };
    let (debian, glibc) = (after("are built on Debian "), after("glibc "));
    assert!(workflow.contains(&format!("    container: debian:{debian}\n")), "it is not built on Debian {debian}");
    assert!(workflow.contains(&format!("= GLIBC_{glibc} ]")), "nothing holds it against glibc {glibc}");
}

#[test]
fn each_document_is_linked_from_another_page() {
    let files = files();
    let pages = || files.iter().filter(|file| file.ends_with(".md"));
    let mut found = BTreeSet::new();
    for page in pages() {
        for target in targets(page) {
            let file = linked(page, target.split('#').next().unwrap_or_default());
            if file != Path::new(page) {
                found.insert(file);
            }
        }
    }
    let documents = pages().filter(|page| page.starts_with("docs/"));
    let unlinked: Vec<&String> = documents.filter(|page| !found.contains(Path::new(page))).collect();
    assert!(unlinked.is_empty(), "no other page links {unlinked:?}");
}

#[test]
fn cited_pages_are_in_the_tree() {
    let files = files();
    let pages: BTreeSet<&str> =
        files.iter().filter(|f| f.ends_with(".md")).filter_map(|f| f.rsplit('/').next()).collect();
    let code = |file: &&String| {
        [".rs", ".c", ".h", ".sh", ".mk", "Makefile", "Kbuild", ".toml"].iter().any(|end| file.ends_with(end))
    };
    let mut broken = Vec::new();
    for file in files.iter().filter(code) {
        for word in read(file).split(|c: char| !c.is_alphanumeric() && !"-_./#".contains(c)) {
            let word = word.trim_end_matches('.');
            let (page, _) = word.split_once('#').unwrap_or((word, ""));
            let Some(name) = page.strip_suffix(".md").and_then(|_| page.rsplit('/').next()) else { continue };
            let there = if page.starts_with("docs/") { leads("README.md", word) } else { pages.contains(name) };
            if !there && name != ".md" {
                broken.push(format!("{file}: {word}"));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}
