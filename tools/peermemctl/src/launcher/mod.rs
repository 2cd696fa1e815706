// SPDX-License-Identifier: GPL-2.0
//! Reads a command line for the variables that its program will have. Nothing is run. What is not
//! understood is noted: a verdict on such a program is never "yes".

mod tables;

use crate::environment::assignment;
use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use tables::{
    APPTAINER_FLAGS, BUILTINS, CONTAINER_FLAGS, FOREIGN, HARMLESS, MPI_NONE, MPI_ONE, SRUN_FLAGS, SRUN_LONG_FLAGS,
    SRUN_LONG_WORDS, VERBS, WRAPPERS,
};

/// The environment that a command line makes.
pub struct Launched {
    pub variables: BTreeMap<String, String>,
    /// The things that may set or take away variables in a way that is not understood.
    pub not_understood: Vec<String>,
    /// Files of variables that are to be read.
    pub files: Vec<EnvFile>,
    /// The user as whom sudo runs the program.
    pub user: Option<String>,
    /// Returns whether a path is known to be no program.
    is_data: fn(&str) -> bool,
    /// Returns whether a path is known to be a script of a shell.
    is_script: fn(&str) -> bool,
}

/// A file of variables that a launcher is given.
pub enum EnvFile {
    /// Lines of `NAME=VALUE`, with quotes as a part of the value (`docker --env-file`).
    Plain(String),
    /// A script of a shell (`apptainer --env-file`).
    Script(String),
}

/// The deepest level at which launchers may start launchers.
const DEEPEST: usize = 16;

type Words<'a> = std::iter::Peekable<std::slice::Iter<'a, String>>;

impl Launched {
    /// Reads a command line that is started with these variables. `here` says that it is started on
    /// this machine and in this folder: then files tell which of its words are no programs.
    pub fn read(variables: BTreeMap<String, String>, words: &[String], here: bool) -> Self {
        let nothing: fn(&str) -> bool = |_| false;
        let (is_data, is_script) =
            if here { (is_data as fn(&str) -> bool, is_script as fn(&str) -> bool) } else { (nothing, nothing) };
        let mut launched =
            Self { variables, not_understood: Vec::new(), files: Vec::new(), user: None, is_data, is_script };
        launched.command(words, 0);
        launched.overlooked(words);
        launched
    }

    /// Notes words that look as if they set a variable of a library, although nothing that was read
    /// sets it: then an unknown option of a launcher does.
    fn overlooked(&mut self, words: &[String]) {
        if !self.not_understood.is_empty() {
            return;
        }
        let alone = words.iter().filter(|word| !word.contains(char::is_whitespace) && is_of_a_library(word));
        for word in alone {
            // `-eNAME=VALUE`, `--export=ALL,NAME=VALUE`
            let parts = word.split([',', ' ']).filter(|part| is_of_a_library(part));
            let is_read = |part: &str| {
                let start = LIBRARIES.iter().filter_map(|library| part.find(library)).min().unwrap_or(0);
                let found = part.get(start..).and_then(assignment);
                found
                    .is_some_and(|(name, value)| self.variables.get(&name).is_some_and(|read| read.starts_with(&value)))
            };
            if let Some(part) = parts.into_iter().find(|part| !is_read(part)) {
                let part = part.to_owned();
                return self.note(&format!("a command line with {part}"));
            }
        }
    }

    fn note(&mut self, what: &str) {
        let note = format!(
            "not understood: {what}; pass what follows `env` yourself: peermemctl doctor -- env NAME=VALUE ./program"
        );
        if !self.not_understood.contains(&note) {
            self.not_understood.push(note);
        }
    }

    fn set(&mut self, found: Option<(String, String)>) {
        self.variables.extend(found);
    }

    /// Reads assignments, then a launcher or the program itself.
    fn command(&mut self, words: &[String], depth: usize) {
        let mut words = words.iter().peekable();
        while let Some(found) = words.peek().and_then(|word| assignment(word)) {
            self.set(Some(found));
            words.next();
        }
        let Some(word) = words.next() else { return };
        if depth > DEEPEST {
            return self.note("more launchers than this program follows");
        }
        let name = word.rsplit('/').next().unwrap_or(word);
        match name {
            "env" => self.env(&mut words),
            "sudo" | "doas" => self.sudo(&mut words),
            "mpirun" | "mpiexec" | "orterun" | "prterun" | "mpiexec.hydra" | "mpirun_rsh" => self.mpi(name, &mut words),
            "srun" => self.srun(&mut words),
            "docker" | "podman" | "nerdctl" => self.docker(name, &mut words),
            "apptainer" | "singularity" => self.apptainer(name, &mut words),
            "kubectl" => return self.kubectl(words, depth),
            "bash" | "sh" | "dash" | "zsh" => return self.shell(name, words, depth),
            _ if FOREIGN.contains(&name) => return self.note(name),
            _ => match WRAPPERS.iter().find(|(wrapper, ..)| *wrapper == name) {
                Some((_, with_word, before)) => skip(&mut words, with_word, *before),
                // The program; its arguments set nothing, unless they look as if they did.
                None => {
                    let rest: Vec<&String> = words.collect();
                    if is_named_as_script(name) || word.contains('/') && (self.is_script)(word) {
                        self.note(&format!("the script {word}"));
                    } else if let Some(verb) = verb_of_a_launcher(word, &rest) {
                        self.note(&format!("{name} {verb}, which starts a program somewhere else"));
                    } else if let Some(word) =
                        rest.iter().find(|word| is_of_a_library(word) || mentions_a_library(word))
                    {
                        self.note(&format!("{name} with {word}"));
                    } else if !word.contains('/') && rest.iter().any(|word| is_a_program(word) && !(self.is_data)(word))
                    {
                        self.note(&format!("{name}, which starts another program"));
                    }
                    return;
                }
            },
        }
        let rest: Vec<String> = words.cloned().collect();
        // `env` alone prints what a program would have.
        if rest.is_empty() && name != "env" {
            self.note(&format!("{name} without a program"));
        }
        self.command(&rest, depth + 1);
    }

    fn env(&mut self, words: &mut Words) {
        while let Some(word) = words.next_if(|word| word.starts_with('-')) {
            match word.as_str() {
                "-" | "-i" | "--ignore-environment" => self.variables.clear(),
                "-u" | "--unset" => drop(words.next().map(|name| self.variables.remove(name))),
                "-C" | "--chdir" => drop(words.next()),
                "--" => break,
                "-0" | "--null" | "-v" | "--debug" => {}
                "-S" | "--split-string" => {
                    words.next();
                    self.note("env -S");
                }
                _ => match word.strip_prefix("--unset=").or_else(|| word.strip_prefix("-u")) {
                    Some(name) => drop(self.variables.remove(name)),
                    None if word.starts_with("--chdir=") => {}
                    None => self.note(&format!("env {word}")),
                },
            }
        }
    }

    /// Reads sudo, which by default passes no variable on but those in its own command line.
    fn sudo(&mut self, words: &mut Words) {
        /// Short options that take a word.
        const WITH_WORD: &str = "ughpCrtUDRT";
        let (mut kept, mut user) = (false, "root".to_owned());
        let mut names: Vec<String> = Vec::new();
        while let Some(word) = words.next_if(|word| word.starts_with('-')) {
            match word.strip_prefix("--") {
                Some("") => break,
                Some("preserve-env") => kept = true,
                Some("login") => self.note(&format!("sudo {word} (the profile of a login)")),
                Some("user") => user = words.next().cloned().unwrap_or_default(),
                Some(long) => {
                    if let Some(list) = long.strip_prefix("preserve-env=") {
                        names.extend(list.split(',').map(str::to_owned));
                    }
                    if let Some(name) = long.strip_prefix("user=") {
                        user = name.to_owned();
                    }
                }
                // Several in one word: `-iu NAME`, `-uNAME`.
                None => {
                    for (at, letter) in word.char_indices().skip(1) {
                        match letter {
                            'E' => kept = true,
                            'i' => self.note(&format!("sudo {word} (the profile of a login)")),
                            letter if WITH_WORD.contains(letter) => {
                                let rest = word.get(at + 1..).unwrap_or_default();
                                let value = if rest.is_empty() { words.next().cloned() } else { Some(rest.to_owned()) };
                                if letter == 'u' {
                                    user = value.unwrap_or_default();
                                }
                                break;
                            }
                            _ => {}
                        }
                    }
                }
            }
        }
        self.user = Some(user);
        if !kept {
            self.variables.retain(|name, _| names.contains(name));
        }
    }

    fn mpi(&mut self, name: &str, words: &mut Words) {
        while let Some(word) = words.peek().map(|word| word.as_str()) {
            // mpirun_rsh has its variables as words.
            if assignment(word).is_none() && !word.starts_with('-') {
                break;
            }
            words.next();
            match word {
                "-x" => {
                    let found = words.next().and_then(|word| assignment(word));
                    self.set(found);
                }
                "-env" | "-genv" | "--env" | "--genv" => {
                    // Intel's takes NAME=VALUE, too.
                    let name = words.next();
                    let whole = name.and_then(|name| assignment(name));
                    let pair = whole.or_else(|| name.cloned().zip(words.next().cloned()));
                    self.set(pair);
                }
                "-mca" | "--mca" | "-gmca" | "--gmca" | "--prtemca" | "--pmixmca" => {
                    let (key, value) = (words.next(), words.next());
                    if key.is_some_and(|key| key.contains("env_list")) {
                        value
                            .into_iter()
                            .flat_map(|list| list.split([';', ',']))
                            .for_each(|entry| self.set(assignment(entry)));
                    } else if let Some((key, value)) = key.zip(value) {
                        // As Open MPI passes it on.
                        self.set(Some((format!("OMPI_MCA_{key}"), value.clone())));
                    }
                }
                "-genvnone" | "-envnone" => self.variables.clear(),
                _ if MPI_ONE.contains(&word) => drop(words.next()),
                _ if MPI_NONE.contains(&word) => {}
                _ if word.split_once('=').is_some_and(|(option, _)| MPI_ONE.contains(&option)) => {}
                _ => match assignment(word) {
                    Some(found) => self.set(Some(found)),
                    None => self.note(&format!("{name} {word}")),
                },
            }
        }
    }

    fn srun(&mut self, words: &mut Words) {
        let mut is_given = false;
        while let Some(word) = words.next_if(|word| word.starts_with('-')) {
            if word == "--" {
                break;
            }
            // The image that Pyxis starts has variables of its own.
            // The images of Pyxis's other options, of OCI bundles and of CSCS's plugin have some,
            // too.
            let option = word.split('=').next().unwrap_or_default();
            match option {
                "--container-image" | "--container-name" | "--container" | "--environment" => {
                    self.note(&format!("srun {option} (the variables of its image)"));
                }
                "--multi-prog" => self.note("srun --multi-prog (a file names the programs)"),
                "--task-prolog" => self.note("srun --task-prolog (a program sets variables)"),
                "--export-file" => self.note("srun --export-file (a file of variables)"),
                _ => {}
            }
            let list = match word.strip_prefix("--export=") {
                Some(list) => Some(list.to_owned()),
                None if word == "--export" => words.next().cloned(),
                None => None,
            };
            if let Some(list) = list {
                is_given = true;
                self.export(&list);
                continue;
            }
            if word.starts_with("--") {
                if SRUN_LONG_WORDS.contains(&option) {
                    if option == word {
                        words.next();
                    }
                } else if !SRUN_LONG_FLAGS.contains(&option) {
                    self.note(&format!("srun {option}"));
                }
            } else if !SRUN_FLAGS.contains(&word.as_str()) && word.len() == 2 {
                // `-N 2` has its word apart; `-N2` has it in one piece.
                words.next();
            }
        }
        // sbatch sets it, and srun reads it where it has no --export.
        if let Some(list) = self.variables.get("SLURM_EXPORT_ENV").filter(|_| !is_given).cloned() {
            self.export(&list);
        }
    }

    /// Reads the list of srun's --export: `ALL` keeps what there is, otherwise only what is named
    /// stays.
    fn export(&mut self, list: &str) {
        let entries: Vec<&str> = list.split(',').collect();
        if !entries.contains(&"ALL") {
            self.variables.retain(|name, _| entries.contains(&name.as_str()));
        }
        entries.iter().for_each(|entry| self.set(assignment(entry)));
    }

    /// Reads docker run and exec: the container has the variables of its image and of `-e`.
    fn docker(&mut self, name: &str, words: &mut Words) {
        let own = std::mem::take(&mut self.variables);
        let verb = loop {
            match words.next() {
                Some(word) if word.starts_with('-') => {
                    if !word.contains('=') {
                        words.next();
                    }
                }
                Some(word) if ["container", "compose"].contains(&word.as_str()) => {}
                other => break other.map_or("", |word| word.as_str()),
            }
        };
        while let Some(word) = words.next_if(|word| word.starts_with('-')) {
            let entry = match word.as_str() {
                "-e" | "--env" => words.next().cloned(),
                "--env-file" => {
                    self.files.extend(words.next().cloned().map(EnvFile::Plain));
                    None
                }
                _ => match word.strip_prefix("--env-file=") {
                    Some(file) => {
                        self.files.push(EnvFile::Plain(file.to_owned()));
                        None
                    }
                    None => {
                        let entry = word.strip_prefix("--env=").or_else(|| {
                            word.strip_prefix("-e").filter(|entry| entry.contains('=') && !word.starts_with("--"))
                        });
                        if entry.is_none() && !word.contains('=') && !CONTAINER_FLAGS.contains(&word.as_str()) {
                            words.next();
                        }
                        entry.map(str::to_owned)
                    }
                },
            };
            // A name alone passes the variable on.
            match entry.as_deref().map(|entry| (assignment(entry), own.get(entry))) {
                Some((Some(found), _)) => self.set(Some(found)),
                Some((None, Some(value))) => self.set(entry.zip(Some(value.clone()))),
                _ => {}
            }
        }
        // This word is the image, or the container.
        words.next();
        self.note(&format!("{name} {verb} (the variables of its image)"));
    }

    /// Reads apptainer exec and run, which pass the variables on, and add those of the image.
    fn apptainer(&mut self, name: &str, words: &mut Words) {
        let inherited: Vec<(String, String)> = ["APPTAINERENV_", "SINGULARITYENV_"]
            .iter()
            .flat_map(|prefix| {
                self.variables
                    .iter()
                    .filter_map(move |(name, value)| Some((name.strip_prefix(*prefix)?.to_owned(), value.clone())))
            })
            .collect();
        let verb = words.find(|word| !word.starts_with('-')).map_or("", |word| word.as_str());
        while let Some(word) = words.next_if(|word| word.starts_with('-')) {
            let list = match word.as_str() {
                "--env" => words.next().cloned(),
                "--env-file" => {
                    self.files.extend(words.next().cloned().map(EnvFile::Script));
                    None
                }
                "-e" | "--cleanenv" => {
                    self.variables.clear();
                    None
                }
                _ => {
                    if let Some(file) = word.strip_prefix("--env-file=") {
                        self.files.push(EnvFile::Script(file.to_owned()));
                    }
                    if !word.contains('=') && !APPTAINER_FLAGS.contains(&word.as_str()) {
                        words.next();
                    }
                    word.strip_prefix("--env=").map(str::to_owned)
                }
            };
            list.iter().flat_map(|list| list.split(',')).for_each(|entry| self.set(assignment(entry)));
        }
        self.variables.extend(inherited);
        words.next();
        let what = if verb == "exec" { "the variables of its image" } else { "what its image runs" };
        self.note(&format!("{name} {verb} ({what})"));
    }

    fn kubectl(&mut self, words: Words, depth: usize) {
        self.variables.clear();
        let words: Vec<String> = words.cloned().collect();
        let verb = words.iter().find(|word| !word.starts_with('-')).map_or("", |word| word.as_str()).to_owned();
        if let Some(at) = words.iter().position(|word| word == "--") {
            self.command(words.get(at + 1..).unwrap_or_default(), depth + 1);
        }
        self.note(&format!("kubectl {verb} (the variables of the pod)"));
    }

    /// Reads `bash -c SCRIPT`: assignments and exports between `;` and `&&`.
    fn shell(&mut self, name: &str, mut words: Words, depth: usize) {
        let flags: Vec<&String> = std::iter::from_fn(|| words.next_if(|word| word.starts_with('-'))).collect();
        let Some(script) = words.next() else { return self.note(name) };
        let is_login = |flag: &&&String| match flag.strip_prefix("--") {
            Some(long) => long == "login",
            None => flag.contains(['l', 'i']),
        };
        if let Some(flag) = flags.iter().find(is_login) {
            self.note(&format!("{name} {flag} (the profile of a shell)"));
        } else if name == "zsh" {
            self.note("zsh (its .zshenv)");
        } else if name == "bash" && self.variables.contains_key("BASH_ENV") {
            self.note("bash with BASH_ENV, a script that it runs first");
        }
        if !flags.iter().any(|flag| !flag.starts_with("--") && flag.ends_with('c')) {
            return self.note(&format!("the script {script}"));
        }
        // What is set after a condition may not be set.
        let is_conditional = script.split("&&").skip(1).zip(script.split("&&")).any(|(then, before)| {
            let first = |part: &str| split(part).first().cloned().unwrap_or_default();
            let last = before.rsplit([';', '\n']).next().unwrap_or_default();
            let is_sure =
                assignment(&first(last)).is_some() || ["export", "unset", "cd"].contains(&first(last).as_str());
            let sets = assignment(&first(then)).is_some() || ["export", "unset"].contains(&first(then).as_str());
            sets && !is_sure
        });
        if is_conditional || script.contains(['$', '`', '(', '{', '|', '<', '*', '\\']) {
            self.note(&format!("{name} -c with more than assignments"));
        }
        let exports_all = flags.iter().any(|flag| !flag.starts_with("--") && flag.contains('a'));
        self.script(name, script, exports_all, depth);
    }

    /// Reads the commands of a script, one after the other. The verdict is for the last, if all that it starts
    /// have the same variables.
    fn script(&mut self, shell: &str, script: &str, exports_all: bool, depth: usize) {
        // Redirections of output do not matter here.
        let script = script.replace(">&", ">").replace("&>", ">").replace(['\n', '&'], ";");
        let parts: Vec<Vec<String>> = script.split(';').map(split).collect();
        let is_set = |words: &[String]| words.iter().all(|word| assignment(word).is_some());
        let starts = |words: &Vec<String>| {
            let first = words.first().map_or("", String::as_str);
            !is_set(words) && !["export", "unset"].contains(&first) && !HARMLESS.contains(&first)
        };
        let last = parts.iter().rposition(starts);
        // These are the shell's own variables, which it passes on once they are exported.
        let mut own = BTreeMap::new();
        let mut started: Option<BTreeMap<String, String>> = None;
        for (at, words) in parts.iter().enumerate() {
            let Some(first) = words.first().map(String::as_str) else { continue };
            if first == "export" {
                for word in words.iter().skip(1) {
                    let of_shell = own.get(word).map(|value: &String| (word.clone(), value.clone()));
                    self.set(assignment(word).or(of_shell));
                }
            } else if first == "unset" {
                for word in words.iter().skip(1) {
                    own.remove(word);
                    self.variables.remove(word);
                }
            } else if is_set(words) {
                for (name, value) in words.iter().filter_map(|word| assignment(word)) {
                    // One that has come from outside stays exported.
                    if exports_all || self.variables.contains_key(&name) {
                        self.variables.insert(name.clone(), value.clone());
                    }
                    own.insert(name, value);
                }
            } else if starts(words) {
                // Before the program, a word without a folder may be a function that sets variables, as `ml` is.
                let may_be_function = Some(at) != last && !first.contains('/') && assignment(first).is_none();
                if BUILTINS.contains(&first) || may_be_function {
                    self.note(&format!("{shell} -c with {}", words.join(" ")));
                }
                let of_shell = self.variables.clone();
                self.command(words, depth + 1);
                if started.is_some_and(|before| before != self.variables) {
                    self.note(&format!("{shell} -c with programs of different variables"));
                }
                started = Some(std::mem::replace(&mut self.variables, of_shell));
            }
        }
        if let Some(variables) = started {
            self.variables = variables;
        }
    }
}

/// The beginnings of the names of variables that libraries read.
const LIBRARIES: [&str; 5] = ["NCCL_", "UCX_", "NVSHMEM_", "FI_", "MC_"];

/// Returns whether an argument, or what follows `=` or `,` in it, sets a variable that libraries read.
fn is_of_a_library(word: &str) -> bool {
    let is_set = |part: &str| LIBRARIES.iter().any(|library| part.starts_with(library));
    word.contains('=') && word.split(['=', ',', ':', ' ']).any(|part| is_set(part.trim_matches(['"', '\''])))
}

/// Returns whether an argument, such as a script in Python, has the name of a variable of a library in it.
fn mentions_a_library(word: &str) -> bool {
    // FI_ and MC_ alone are too short to mean anything.
    ["NCCL_", "UCX_", "NVSHMEM_"].iter().any(|library| {
        word.match_indices(library).any(|(at, _)| {
            let (before, after) =
                (word.get(..at).unwrap_or_default(), word.get(at + library.len()..).unwrap_or_default());
            !before.ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
                && after.starts_with(|c: char| c.is_ascii_uppercase())
        })
    })
}

/// Returns whether a path leads to a folder, or to a file that nobody may execute.
fn is_data(path: &str) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.is_dir() || found.permissions().mode() & 0o111 == 0)
}

/// Returns whether a file has the name of a script of a shell.
fn is_named_as_script(name: &str) -> bool {
    name.rsplit_once('.').is_some_and(|(_, end)| SHELLS.contains(&end))
}

/// Returns whether a file begins as scripts of a shell do.
fn is_script(path: &str) -> bool {
    let mut start = [0; 128];
    let length = std::fs::File::open(path).and_then(|mut file| file.read(&mut start)).unwrap_or(0);
    let text = String::from_utf8_lossy(start.get(..length).unwrap_or_default()).into_owned();
    let first = text.lines().next().unwrap_or_default();
    first.strip_prefix("#!").is_some_and(|words| {
        words.split_ascii_whitespace().any(|word| SHELLS.contains(&word.rsplit('/').next().unwrap_or(word)))
    })
}

/// Shells, whose scripts may set variables.
const SHELLS: [&str; 8] = ["sh", "bash", "dash", "zsh", "ksh", "csh", "tcsh", "fish"];

/// Returns the word by which a command without a folder, or of the system, is asked to start what somebody
/// else runs: `systemctl start train`, `dask cuda worker`, `service train start`.
fn verb_of_a_launcher<'a>(command: &str, arguments: &[&'a String]) -> Option<&'a str> {
    const FOLDERS: [&str; 5] = ["/usr/", "/bin/", "/sbin/", "/opt/", "/snap/"];
    let is_of_system = !command.contains('/') || FOLDERS.iter().any(|folder| command.starts_with(folder));
    let mut plain = arguments.iter().filter(|word| !word.starts_with('-')).map(|word| word.as_str()).take(3);
    let is_word = |word: &&str| word.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
    // A file before the word makes it an argument of a program: `python3 train.py run`.
    plain.by_ref().take_while(is_word).find(|word| VERBS.contains(word)).filter(|_| is_of_system)
}

/// Returns whether an argument is a program by its look, or says that one follows: then what it is given
/// to is a launcher. `./train` is one, `./config.yaml` is none.
fn is_a_program(word: &str) -> bool {
    word == "--" || word.strip_prefix("./").is_some_and(|file| !file.is_empty() && !file.contains('.'))
}

/// Skips options, and words before the program.
fn skip(words: &mut Words, with_word: &[&str], before: usize) {
    while let Some(word) = words.next_if(|word| word.starts_with('-')) {
        if word == "--" {
            break;
        }
        if with_word.contains(&word.as_str()) {
            words.next();
        }
    }
    for _ in 0..before {
        words.next();
    }
}

/// Splits a part of a script into words; quotes go.
pub fn split(part: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for c in part.chars() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (None, '"' | '\'') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            _ => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Launched {
        let own = [("OWN".to_owned(), "1".to_owned())].into_iter().collect();
        Launched::read(own, &split(line), false)
    }

    /// Each sets X=1 for the program.
    #[test]
    fn launchers_are_looked_through() {
        for line in [
            "X=1 ./app",
            "env A=1 X=1 ./app",
            "/usr/bin/env -u A -- X=1 ./app",
            "env -i X=1 ./app",
            "mpirun -np 2 -x X=1 ./app",
            "mpirun --mca pml ob1 -H a,b -x X=1 -x Y ./app",
            "mpiexec -genv X 1 ./app",
            "mpirun -np 2 env X=1 ./app",
            "srun --export=ALL,X=1 ./app",
            "srun -N 2 --export ALL,X=1 ./app",
            "sudo X=1 ./app",
            "sudo -u user env X=1 ./app",
            "timeout 60 env X=1 ./app",
            "timeout -k 5 --signal=KILL 60 nice -n 5 env X=1 ./app",
            "numactl --cpunodebind=0 -m 0 env X=1 ./app",
            "docker run --rm --gpus all -e X=1 image app",
            "docker run -eX=1 --shm-size 1g image",
            "docker exec --env X=1 container app",
            "podman run --env=X=1 image",
            "nerdctl run --env X=1 image app",
            "nerdctl -n k8s.io run image env X=1 app",
            "apptainer exec --nv --env A=2,X=1 image.sif ./app",
            "singularity exec --bind /a image.sif env X=1 ./app",
            "kubectl exec pod -c main -- env X=1 ./app",
            "bash -c 'export X=1; ./app'",
            "bash -lc 'cd /tmp && X=1 ./app'",
            "sh -c 'X=1; export X; ./app'",
            "sh -ec 'X=1 && export X && ./app'",
            "bash -ac 'X=1; ./app'",
            "bash -c 'X=1 timeout 9 ./app > /tmp/log 2>&1'",
            "srun bash -c 'export X=1; timeout 5 ./app'",
        ] {
            assert_eq!(read(line).variables.get("X").map(String::as_str), Some("1"), "{line}");
        }
        for line in ["./app X=1", "env -u X ./app X=1", "X=1 env -u X ./app", "bash -c 'X=1; ./app'", "X=1 sudo ./app"]
        {
            assert_eq!(read(line).variables.get("X"), None, "{line}");
        }
    }

    #[test]
    fn what_is_not_passed_on_is_gone() {
        for (line, stays) in [
            ("./app", true),
            ("env -i ./app", false),
            ("sudo ./app", false),
            ("sudo -E ./app", true),
            ("sudo --preserve-env=OWN ./app", true),
            ("srun --export=NONE ./app", false),
            ("srun --export=OWN ./app", true),
            ("docker run image ./app", false),
            ("docker run -e OWN image ./app", true),
            ("apptainer exec -e image ./app", false),
            ("kubectl exec pod -- ./app", false),
        ] {
            assert_eq!(read(line).variables.contains_key("OWN"), stays, "{line}");
        }
    }

    /// A program's own data do not make it a launcher; whatever may be a program does.
    #[test]
    fn what_lies_there_tells_data_from_programs() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::create_dir(path("data")).unwrap();
        for (name, mode) in [("input", 0o644), ("train", 0o755)] {
            std::fs::write(path(name), "").unwrap();
            std::fs::set_permissions(path(name), std::fs::Permissions::from_mode(mode)).unwrap();
        }
        for (name, data) in [("data", true), ("input", true), ("train", false), ("nowhere", false)] {
            assert_eq!(is_data(path(name).to_str().unwrap()), data, "{name}");
        }
        let app = |here: bool| {
            // Tests run in the crate's folder.
            Launched::read(BTreeMap::new(), &split("srun -n 2 app ./src"), here).not_understood
        };
        assert!(app(true).is_empty(), "{:?}", app(true));
        assert!(!app(false).is_empty());
    }

    #[test]
    fn what_is_not_understood_is_said() {
        for line in [
            "docker run image app",
            "kubectl exec pod -- app",
            "ssh host ./app",
            "bash train.sh",
            "bash -c 'source env.sh; ./app'",
            "bash -c 'X=$(cat x) ./app'",
            "env -S 'X=1 ./app'",
            "mpirun --unheard-of ./app",
            "sbatch job.sh",
            "srun --container-image=nvcr.io/x ./app",
            "srun -N 2 --container-image nvcr.io/x env X=1 ./app",
            "podman-remote run image app",
            "docker-compose run service app",
            "microk8s kubectl exec pod -- app",
            "chroot /srv ./app",
            "apptainer run image.sif",
            "launcher --env NCCL_IB_DISABLE=1 ./app",
            "launcher --env=UCX_TLS=tcp,NCCL_NET=IB ./app",
            "python3 run.py --envs NCCL_DEBUG=INFO",
            "srun --container-name=x ./app",
            "srun --environment=ngc ./app",
            "buildah run container app",
            "ip netns exec pod ./app",
            "bwrap --setenv NCCL_IB_DISABLE 1 ./app",
            "setpriv --reset-env ./app",
            "some-launcher ./app",
            "some-launcher --flag -- app",
            "gdb --args ./app",
            "python3 -c \"import os; os.environ['NCCL_IB_DISABLE']='1'\"",
            "pixi run train",
            "fish -c ./app",
            "./app.sh",
            "srun -N 2 /shared/run.bash",
            "bash -lc ./app",
            "bash --login -c ./app",
            "zsh -c ./app",
            "sudo -i ./app",
            "sudo -iu user ./app",
            "srun --multi-prog job.conf",
            "srun --task-prolog=setup ./app",
            "srun -N 2",
            "timeout 9",
            "uv run --env-file f app",
            "poetry run app",
            "envdir dir app",
            "make train",
            "bash -c 'ml nccl; ./app'",
            "bash -c 'spack load nccl && ./app'",
            "bash -c 'X=1 ./warmup; ./app'",
            "bash -c 'declare -x X=1; ./app'",
            "bash -c 'test -e /x && export X=1; ./app'",
            "mpirun --tune=job.conf ./app",
            "mpirun --am=job.conf ./app",
            "systemctl start train.service",
            "service train start",
            "supervisorctl start train",
            "pm2 start train",
            "podman-hpc run image train",
            "/usr/bin/nvidia-docker run image train",
            "/bin/systemctl start train",
            "finch run image train",
            "incus exec container train",
            "arena submit mpijob",
            "dask cuda worker",
            "srun --unheard-of docker run image train",
            "srun --export-file=vars ./app",
            "apptainer exec --nv image.sif ./app",
        ] {
            assert!(!read(line).not_understood.is_empty(), "{line}");
        }
        for line in [
            "./app",
            "./app ./config.yaml ./data/x.bin",
            "/usr/bin/app ./data",
            "python3 ./train.py",
            "all_reduce_perf -b 8 -e 1G",
            "env X=1 ./app",
            "mpirun -np 2 ./app --flag",
            "srun -n 4 ./app",
            "sudo X=1 ./app",
            "timeout 9 ./app",
            "python3 train.py run",
            "./train run",
            "mpirun --map-by=ppr:8:node ./app",
            "srun --wait 0 --gres-flags=enforce-binding ./app",
            "srun --quiet --kill-on-bad-exit -N2 -n 16 --gpus-per-node 8 ./app",
            "bash -c 'nvidia-smi; mkdir -p out && cd out; ./app'",
        ] {
            assert!(read(line).not_understood.is_empty(), "{line}: {:?}", read(line).not_understood);
        }
    }
}
