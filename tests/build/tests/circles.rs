// SPDX-License-Identifier: GPL-2.0

//! Tests that the modules of a crate import each other without a circle, so that each file can be
//! read after those that it uses. An import is a path that begins with `crate`, `super`, `self` or
//! the name of a child, in a `use` or anywhere else. `mod child;` alone is none. Code of tests does
//! not count.

use build_tests::{repository, run};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// The folders of crates whose root does not lie in a folder `src` beside a Cargo.toml. (samples/edu-dma
/// has what it imports from the last one, by a root that gives those names out as its own.)
const OTHERS: [&str; 2] = ["kernel-lite/kernel", "src"];

/// The imports that close the circles which are known: each goes up, from a file to one that is read
/// after it. Without them no circle may be left, and none of them may be missing or needless.
const KNOWN: [(&str, &[(&str, &str)]); 2] = [
    // cuGetProcAddress() finds itself, too.
    ("ci/qemu/cuda/src", &[("entry.rs", "lib.rs")]),
    // What helps against one thing is said by the check of another: the machine knows the cure that fits
    // it, and a check of doctor ends in that of its cause.
    (
        "tools/peermemctl/src",
        &[
            ("doctor/hardware.rs", "doctor/gpus.rs"),
            ("doctor/hardware.rs", "doctor/log.rs"),
            ("doctor/module.rs", "doctor/api.rs"),
            ("doctor/module.rs", "doctor/driver.rs"),
            ("machine.rs", "doctor/driver.rs"),
            ("machine.rs", "giver.rs"),
            ("machine.rs", "way.rs"),
        ],
    ),
];

/// The files that are the root of a crate.
const ROOTS: [&str; 3] = ["lib.rs", "main.rs", "peer_client.rs"];

/// A word of Rust: a name, `::`, or another character. Comments, lifetimes and what stands in quotes
/// are none.
type Words = Vec<String>;

/// Returns the place behind a literal in quotes that begins at `at`.
fn behind_quotes(text: &[char], mut at: usize) -> usize {
    let quote = text[at];
    at += 1;
    while at < text.len() && text[at] != quote {
        at += if text[at] == '\\' { 2 } else { 1 };
    }
    at + 1
}

/// Returns the place behind a raw literal whose `r` ended at `at`, or `None` if there is none.
fn behind_raw(text: &[char], at: usize) -> Option<usize> {
    let hashes = text[at..].iter().take_while(|c| **c == '#').count();
    if text.get(at + hashes) != Some(&'"') {
        return None;
    }
    let end = |from: &usize| text[*from] == '"' && text[from + 1..].iter().take_while(|c| **c == '#').count() >= hashes;
    (at + hashes + 1..text.len()).find(end).map(|from| from + 1 + hashes)
}

/// Returns the words of a source.
fn words(text: &str) -> Words {
    let text: Vec<char> = text.chars().collect();
    let next_is = |at: usize, c: char| text.get(at + 1) == Some(&c);
    let (mut words, mut at) = (Words::new(), 0);
    while at < text.len() {
        let c = text[at];
        if c == '/' && next_is(at, '/') {
            at = text[at..].iter().position(|c| *c == '\n').map_or(text.len(), |line| at + line);
        } else if c == '/' && next_is(at, '*') {
            let end = (at + 2..text.len()).find(|end| text[*end] == '*' && next_is(*end, '/'));
            at = end.map_or(text.len(), |end| end + 2);
        } else if c == '"' {
            at = behind_quotes(&text, at);
        } else if c == '\'' {
            // A lifetime has no second quote.
            let is_character = next_is(at, '\\') || text.get(at + 2) == Some(&'\'');
            at = if is_character { behind_quotes(&text, at) } else { at + 1 };
        } else if c.is_alphanumeric() || c == '_' {
            let end = (at..text.len()).find(|end| !text[*end].is_alphanumeric() && text[*end] != '_');
            let end = end.unwrap_or(text.len());
            let word: String = text[at..end].iter().collect();
            at = match behind_raw(&text, end).filter(|_| ["r", "br", "cr"].contains(&word.as_str())) {
                Some(behind) => behind,
                None => {
                    words.push(word);
                    end
                }
            };
        } else if c == ':' && next_is(at, ':') {
            words.push("::".into());
            at += 2;
        } else {
            if !c.is_whitespace() {
                words.push(c.into());
            }
            at += 1;
        }
    }
    words
}

/// Returns the place behind the item that begins at `at`, with its attributes.
fn behind_item(words: &[String], mut at: usize) -> usize {
    let mut depth = 0;
    while let Some(word) = words.get(at) {
        at += 1;
        match word.as_str() {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" => depth -= 1,
            "}" => {
                depth -= 1;
                if depth <= 0 {
                    // Below 0 this is the end of what the item is in.
                    return if depth == 0 { at } else { at - 1 };
                }
            }
            ";" if depth == 0 => return at,
            _ => {}
        }
    }
    at
}

/// Returns the words without the items that only tests have.
fn without_tests(words: &[String]) -> Words {
    let (mut kept, mut at) = (Words::new(), 0);
    let begins = |at: usize, with: &[&str]| {
        words[at..].iter().zip(with).filter(|(word, with)| word == with).count() == with.len()
    };
    while at < words.len() {
        if begins(at, &["#", "[", "cfg", "(", "test"]) || begins(at, &["#", "[", "cfg", "(", "all", "(", "test"]) {
            at = behind_item(words, at);
        } else {
            kept.push(words[at].clone());
            at += 1;
        }
    }
    kept
}

/// Reads the tree of a path from `at` on, adds the paths of its leaves behind `before` to `found`, and
/// returns the place behind it.
fn leaves(words: &[String], mut at: usize, before: &[String], found: &mut Vec<Vec<String>>) -> usize {
    let is = |at: usize, what: &str| words.get(at).is_some_and(|word| word == what);
    let is_name =
        |at: usize| words.get(at).is_some_and(|word| word.starts_with(|c: char| c.is_alphabetic() || c == '_'));
    let mut path = before.to_vec();
    loop {
        if is(at, "{") {
            at += 1;
            while at < words.len() && !is(at, "}") {
                let behind = leaves(words, at, &path, found);
                at = if behind == at || is(behind, ",") { behind + 1 } else { behind };
                if is(at, "as") {
                    at += 2;
                }
                if is(at, ",") {
                    at += 1;
                }
            }
            return at + 1;
        }
        if !is_name(at) {
            break;
        }
        if !is(at, "self") || path.is_empty() {
            path.push(words[at].clone());
        }
        at += 1;
        if !is(at, "::") {
            break;
        }
        at += 1;
    }
    found.push(path);
    at
}

/// A file of a crate.
struct File {
    name: String,
    /// The path of its module.
    module: Vec<String>,
    words: Words,
}

impl File {
    /// Returns the names of the modules that it declares as files of their own.
    fn children(&self) -> BTreeSet<&str> {
        let declares = |three: &&[String]| three[0] == "mod" && three[2] == ";";
        self.words.windows(3).filter(declares).map(|three| three[1].as_str()).collect()
    }

    /// Returns the paths that it names, each from the root of its crate.
    fn paths(&self) -> Vec<Vec<String>> {
        let children = self.children();
        let is = |at: usize, what: &str| self.words.get(at).is_some_and(|word| word == what);
        let (mut found, mut at, mut depth) = (Vec::new(), 0, 0);
        // The modules inside of this file that the place is in, with the depth of their braces.
        let mut inside: Vec<(usize, String)> = Vec::new();
        while at < self.words.len() {
            let word = self.words[at].as_str();
            match word {
                "{" => depth += 1,
                "}" => {
                    depth -= 1;
                    inside.retain(|(of, _)| *of <= depth);
                }
                "mod" if is(at + 2, "{") => inside.push((depth + 1, self.words[at + 1].clone())),
                _ => {}
            }
            let begins = is(at + 1, "::") && (at == 0 || !is(at - 1, "::"));
            // `pub(in crate::module)` imports nothing.
            let is_visibility = at > 2 && is(at - 1, "in") && is(at - 2, "(") && is(at - 3, "pub");
            let is_child = children.contains(word) && inside.is_empty();
            // `$crate` in a macro is for those who use it.
            let is_of_macro = at > 0 && is(at - 1, "$");
            if !begins || is_visibility || is_of_macro || !(is_child || ["crate", "super", "self"].contains(&word)) {
                at += 1;
                continue;
            }
            let mut here = self.module.clone();
            here.extend(inside.iter().map(|(_, name)| name.clone()));
            let mut named = Vec::new();
            at = leaves(&self.words, at, &[], &mut named);
            // An exported macro is at the root of its crate, wherever it was written.
            if word == "crate" && is(at, "!") && ["(", "[", "{"].iter().any(|open| is(at + 1, open)) {
                continue;
            }
            for path in named {
                let ups = path.iter().take_while(|name| *name == "super").count();
                let (base, rest) = match path[0].as_str() {
                    "crate" => (Vec::new(), &path[1..]),
                    "super" => (here[..here.len().saturating_sub(ups)].to_vec(), &path[ups..]),
                    "self" => (here.clone(), &path[1..]),
                    _ => (here.clone(), &path[..]),
                };
                found.push([base, rest.to_vec()].concat());
            }
        }
        found
    }
}

/// Adds the sources below a folder to `files`.
fn collect(folder: &Path, module: &[String], files: &mut Vec<(PathBuf, Vec<String>)>) {
    for entry in fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("entry").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        if path.is_dir() {
            collect(&path, &[module, &[name]].concat(), files);
        } else if let Some(stem) = name.strip_suffix(".rs") {
            let is_root = module.is_empty() && ROOTS.contains(&name.as_str());
            let own = if is_root || stem == "mod" { module.to_vec() } else { [module, &[stem.into()]].concat() };
            files.push((path, own));
        }
    }
}

/// Returns the files of a crate.
fn read(folder: &Path) -> Vec<File> {
    let mut files = Vec::new();
    collect(folder, &[], &mut files);
    files.sort();
    let read = |(path, module): (PathBuf, Vec<String>)| File {
        name: path.strip_prefix(folder).expect("below the folder").to_string_lossy().into_owned(),
        words: without_tests(&words(&fs::read_to_string(&path).expect("readable"))),
        module,
    };
    files.into_iter().map(read).collect()
}

/// Returns what each file uses of which others: by the numbers of both, the first name that is used.
fn uses(files: &[File]) -> Vec<BTreeMap<usize, String>> {
    // The root of a file's crate is the one that declares it; a folder may have two.
    let root = |file: &File| {
        let of = |root: &&usize| file.module.first().is_some_and(|top| files[**root].children().contains(top.as_str()));
        let roots: Vec<usize> = (0..files.len()).filter(|at| files[*at].module.is_empty()).collect();
        roots.iter().find(of).or(roots.first()).copied()
    };
    let by_module: BTreeMap<&[String], usize> = files
        .iter()
        .enumerate()
        .map(|(at, file)| (file.module.as_slice(), at))
        .filter(|(module, _)| !module.is_empty())
        .collect();
    let of = |(at, file): (usize, &File)| {
        let mut uses = BTreeMap::new();
        for path in file.paths() {
            let length = (1..=path.len()).rev().find(|length| by_module.contains_key(&path[..*length]));
            let used = match length {
                Some(length) => Some(by_module[&path[..length]]),
                None => root(file),
            };
            let name = path.get(length.unwrap_or(0)).or(path.last()).map_or("*", String::as_str);
            if let Some(used) = used.filter(|used| *used != at) {
                uses.entry(used).or_insert_with(|| name.to_string());
            }
        }
        uses
    };
    files.iter().enumerate().map(of).collect()
}

/// Returns the shortest way by which a file uses itself through others, beginning and ending with it.
fn circle(uses: &[BTreeMap<usize, String>], of: usize) -> Option<Vec<usize>> {
    let mut before = BTreeMap::new();
    let mut next = VecDeque::from([of]);
    while let Some(at) = next.pop_front() {
        for used in uses[at].keys() {
            if *used == of {
                let mut way = vec![of, at];
                while let Some(former) = before.get(way.last().expect("not empty")).filter(|_| way.last() != Some(&of))
                {
                    way.push(*former);
                }
                way.reverse();
                return Some(way);
            }
            if !before.contains_key(used) {
                before.insert(*used, at);
                next.push_back(*used);
            }
        }
    }
    None
}

/// Returns a sentence for each circle of a crate, for no file more than one.
fn circles(files: &[File], uses: &[BTreeMap<usize, String>]) -> Vec<String> {
    let mut ways: Vec<Vec<usize>> = (0..files.len()).filter_map(|of| circle(uses, of)).collect();
    ways.sort_by_key(Vec::len);
    let (mut said, mut sentences) = (BTreeSet::new(), Vec::new());
    for way in ways {
        if way.iter().any(|at| said.contains(at)) {
            continue;
        }
        said.extend(way.iter().copied());
        let say =
            |two: &[usize]| format!("{} uses {} of {}", files[two[0]].name, uses[two[0]][&two[1]], files[two[1]].name);
        sentences.push(way.windows(2).map(say).collect::<Vec<_>>().join(", "));
    }
    sentences
}

/// Returns a sentence for each circle of the crate in a folder that is not `known`, and for each import
/// of `known` that closes none.
fn complaints(folder: &Path, known: &[(&str, &str)]) -> Vec<String> {
    let files = read(folder);
    let mut uses = uses(&files);
    let number = |name: &str| files.iter().position(|file| file.name == name);
    let taken: Vec<_> = known
        .iter()
        .map(|(user, used)| {
            let (user, used) = (number(user)?, number(used)?);
            Some((user, used, uses[user].remove(&used)?))
        })
        .collect();
    let mut found = circles(&files, &uses);
    for ((user, used), taken) in known.iter().zip(taken) {
        let closes = taken.is_some_and(|(user, used, name)| {
            uses[user].insert(used, name);
            let closes = circle(&uses, user).is_some();
            uses[user].remove(&used);
            closes
        });
        if !closes {
            found.push(format!("KNOWN has that {user} uses {used}, which closes no circle: take it out"));
        }
    }
    found
}

/// Returns the folders of all crates with more than one file. A file's place in its folder is its
/// module's path, as `crate::` names it.
fn crates() -> Vec<String> {
    let listed = run(Command::new("git").args(["ls-files", "*Cargo.toml"]).current_dir(repository()));
    assert!(listed.ok, "git: {}", listed.text);
    let beside = |manifest: &str| manifest.strip_suffix("Cargo.toml").map(|folder| format!("{folder}src"));
    let is_crate = |folder: &String| {
        let mut files = Vec::new();
        let path = repository().join(folder);
        if path.is_dir() {
            collect(&path, &[], &mut files);
        }
        files.len() > 1
    };
    let found: BTreeSet<String> = listed.text.lines().filter_map(beside).filter(is_crate).collect();
    found.into_iter().chain(OTHERS.map(str::to_string)).collect()
}

#[test]
fn the_modules_of_a_crate_import_each_other_without_a_circle() {
    let (crates, mut found, mut imports) = (crates(), Vec::new(), 0);
    for folder in &crates {
        let path = repository().join(folder);
        imports += uses(&read(&path)).iter().map(BTreeMap::len).sum::<usize>();
        let known = KNOWN.iter().find(|(of, _)| of == folder).map_or(&[][..], |(_, known)| known);
        found.extend(complaints(&path, known).into_iter().map(|sentence| format!("{folder}: {sentence}")));
    }
    assert!(crates.len() > 15 && imports > 1000, "{imports} imports in {crates:?}");
    assert!(
        found.is_empty(),
        "modules import each other in a circle; move what one needs of the other to where both can see it: {found:#?}"
    );
}

/// Makes a crate of these files and returns the circles in it.
fn planted(files: &[(&str, &str)]) -> Vec<String> {
    planted_but(files, &[])
}

/// Does the same where some imports are known.
fn planted_but(files: &[(&str, &str)], known: &[(&str, &str)]) -> Vec<String> {
    let folder = TempDir::new().expect("folder");
    for (name, text) in files {
        let file = folder.path().join(name);
        fs::create_dir_all(file.parent().expect("folder")).expect("folder");
        fs::write(file, text).expect("file");
    }
    complaints(folder.path(), known)
}

#[test]
fn a_circle_is_named_file_by_file() {
    let root = ("lib.rs", "mod a;\nmod b;\nmod c;\n");
    let two = [root, ("a.rs", "use crate::b::{X, Z};\n"), ("b.rs", "fn f() -> super::a::Y {}\n")];
    assert_eq!(planted(&two), ["a.rs uses X of b.rs, b.rs uses Y of a.rs"]);
    let three = [
        root,
        ("a.rs", "use crate::{b::X};\n"),
        ("b.rs", "pub(crate) use crate::c::{self, P as Q};\n"),
        ("c.rs", "fn f() { crate::a::g(); }\n"),
    ];
    assert_eq!(planted(&three), ["a.rs uses X of b.rs, b.rs uses c of c.rs, c.rs uses g of a.rs"]);
}

#[test]
fn a_known_circle_is_none_until_it_is_gone() {
    let root = ("lib.rs", "mod a;\nmod b;\n");
    let (up, down) = (("a.rs", "use crate::b::X;\n"), ("b.rs", "use crate::a::Y;\n"));
    assert!(planted_but(&[root, up, down], &[("a.rs", "b.rs")]).is_empty());
    let needless = ["KNOWN has that a.rs uses b.rs, which closes no circle: take it out"];
    assert_eq!(planted_but(&[root, up, ("b.rs", "")], &[("a.rs", "b.rs")]), needless);
    assert_eq!(planted_but(&[root, ("a.rs", ""), down], &[("a.rs", "b.rs")]), needless);
}

#[test]
fn a_child_that_uses_what_its_parent_takes_from_it_is_a_circle() {
    let parent = "mod child;\npub use child::Both;\n";
    let up = [("lib.rs", "mod a;\n"), ("a/mod.rs", parent), ("a/child.rs", "use super::{Data};\n")];
    assert_eq!(planted(&up), ["a/child.rs uses Data of a/mod.rs, a/mod.rs uses Both of a/child.rs"]);
    let sibling = [("lib.rs", "mod a;\nmod b;\npub use a::A;\n"), ("a.rs", ""), ("b.rs", "use crate::A;\n")];
    assert!(planted(&sibling).is_empty());
}

#[test]
fn a_tree_without_a_circle_passes() {
    let tests = "#[cfg(test)]\nmod tests {\n    use crate::b::X;\n    #[test]\n    fn f() {}\n}\n";
    let b = "// crate::b\nuse crate::a::{Y, c::Z};\npub(in crate::a) struct S;\nconst TEXT: &str = \"crate::b\";\n\
             const RAW: &str = r#\"\"crate::b\"#;\nfn f<'a>(c: &'a char) -> bool { *c == '\"' || *c == '\\'' }\n\
             mod inside {\n    use super::S;\n}\n";
    let down = [
        ("main.rs", "mod a;\nmod b;\nmod m;\nfn main() { b::f(&'x'); m::g(); }\n"),
        ("a/mod.rs", "pub mod c;\n#[cfg(all(test, not(feature = \"x\")))]\nuse crate::b::f;\n"),
        ("a/c.rs", tests),
        ("b.rs", b),
        ("m.rs", "macro_rules! m { () => { $crate::f() }; }\nfn g() { crate::m!(); }\n"),
    ];
    assert!(planted(&down).is_empty(), "{:?}", planted(&down));
}
