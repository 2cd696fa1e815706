// SPDX-License-Identifier: GPL-2.0
//! Reads a command line for the variables that its program will have. Nothing is run. What is not
//! understood is noted: a verdict on such a program is never "yes".

mod tables;

use crate::modprobe;
use crate::root::{Missing, Root};
use crate::variables::{assignment, split_words, BEGINNINGS, SGLANG_DEVICES, VLLM_PROTOCOL};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use tables::{
    Wrapper, APPTAINER_FLAGS, BUILTINS, COMMANDS, CONTAINER_FLAGS, FOREIGN, HARMLESS, JOBS, MPI_HOSTS, MPI_NONE,
    MPI_ONE, OPEN_MPI, OPEN_MPI_OF_USER, SRUN_FLAGS, SRUN_LONG_FLAGS, SRUN_LONG_WORDS, SRUN_WORDS, SUDO_FLAGS,
    SUDO_WORDS, VERBS, WRAPPERS,
};

/// The environment that a command line makes.
pub struct Launched<'a> {
    pub variables: BTreeMap<String, String>,
    /// The things that may set or take away variables in a way that is not understood.
    pub not_understood: Vec<String>,
    /// The user as whom sudo runs the program.
    pub user: Option<String>,
    /// The folder in which the program is started, if that is known.
    pub folder: Option<String>,
    /// Says whether the program may run on another machine or in a container, where other files are.
    pub is_elsewhere: bool,
    root: &'a Root,
}

/// The deepest level at which launchers may start launchers.
const DEEPEST: usize = 16;

type Words<'a> = std::iter::Peekable<std::slice::Iter<'a, String>>;

impl<'a> Launched<'a> {
    /// Reads a command line that is started with these variables and in this folder. On this machine, files tell
    /// which of its words are no programs.
    pub fn read(root: &'a Root, variables: BTreeMap<String, String>, folder: Option<String>, words: &[String]) -> Self {
        let not_understood = Vec::new();
        let mut launched = Self { variables, not_understood, user: None, folder, is_elsewhere: false, root };
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
                let start = BEGINNINGS.iter().filter_map(|library| part.find(library)).min().unwrap_or(0);
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

    /// Notes that the program may run somewhere else, with variables and files that are there.
    fn elsewhere(&mut self, what: &str) {
        self.is_elsewhere = true;
        self.note(what);
    }

    /// Takes note of a change of the working directory.
    fn enter(&mut self, folder: &str) {
        self.folder = match &self.folder {
            _ if folder.starts_with('/') => Some(folder.to_owned()),
            Some(own) => Some(format!("{own}/{folder}")),
            None => None,
        };
    }

    /// Returns the path of a file that is named in the folder in which the program is started.
    fn path(&self, file: &str) -> String {
        match &self.folder {
            Some(folder) if !file.starts_with('/') => format!("{folder}/{file}"),
            _ => file.to_owned(),
        }
    }

    /// Reads a file that a launcher is given.
    fn text(&mut self, file: &str) -> String {
        self.root.text(&self.path(file)).unwrap_or_else(|_| {
            self.note(&format!("{file}, which cannot be read"));
            String::new()
        })
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
        let name = base(word);
        match name {
            "env" => self.env(&mut words),
            "sudo" | "doas" => self.sudo(&mut words),
            "mpirun" | "mpiexec" | "orterun" | "prterun" | "mpiexec.hydra" | "mpirun_rsh" => self.mpi(name, &mut words),
            "srun" => self.srun(&mut words),
            "docker" | "podman" | "nerdctl" => self.docker(name, &mut words),
            "apptainer" | "singularity" => self.apptainer(name, &mut words),
            "kubectl" => return self.kubectl(words, depth),
            "bash" | "sh" | "dash" | "zsh" => return self.shell(name, words, depth),
            "exec" => self.exec(&mut words),
            _ if FOREIGN.contains(&name) => return self.elsewhere(name),
            _ => match WRAPPERS.iter().find(|wrapper| wrapper.name == name) {
                Some(wrapper) => self.wrapper(wrapper, &mut words),
                None => return self.program(word, &words.collect::<Vec<_>>()),
            },
        }
        let rest: Vec<String> = words.cloned().collect();
        // `env` alone prints what a program would have.
        if rest.is_empty() && name != "env" {
            self.note(&format!("{name} without a program"));
        }
        self.command(&rest, depth + 1);
    }

    /// Reads the program. Its arguments set nothing, unless they look as if they did, or as if it started another one.
    fn program(&mut self, word: &str, arguments: &[&String]) {
        let name = base(word);
        self.of_connector(arguments);
        let sets = |word: &&&String| is_of_a_library(word) || mentions_a_library(word);
        if word.starts_with('-') {
            self.note(&format!("{word} in the place of a program"));
        } else if is_named_as_script(name) || word.contains('/') && self.root.is_live() && is_script(&self.path(word)) {
            self.note(&format!("the script {word}"));
        } else if let Some(verb) = verb_of_a_launcher(word, arguments) {
            self.elsewhere(&format!("{name} {verb}, which starts a program somewhere else"));
        } else if let Some(word) = arguments.iter().find(sets) {
            self.note(&format!("{name} with {word}"));
        } else if let Some(other) = self.other_program(word, arguments) {
            self.elsewhere(&format!("{name} with {other}, which may start another program"));
        }
    }

    /// Takes note of what arguments of vLLM and SGLang tell Mooncake.
    fn of_connector(&mut self, arguments: &[&String]) {
        let quoted = format!("\"{VLLM_PROTOCOL}\"");
        let protocol = arguments.iter().find_map(|word| {
            let value = word.split_once(quoted.as_str())?.1.trim_start().strip_prefix(':')?;
            value.trim_start().strip_prefix('"')?.split('"').next()
        });
        let after = arguments.iter().skip_while(|word| word.as_str() != SGLANG_DEVICES).nth(1);
        let joined = arguments.iter().find_map(|word| word.strip_prefix(SGLANG_DEVICES)?.strip_prefix('='));
        let devices = after.map(|list| list.as_str()).or(joined);
        let found = [(VLLM_PROTOCOL, protocol), (SGLANG_DEVICES, devices)];
        self.variables.extend(found.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned()))));
    }

    /// Returns the argument which shows that a command starts another program, a shell or a script.
    fn other_program<'w>(&self, command: &str, arguments: &[&'w String]) -> Option<&'w str> {
        let is_command = |word: &str| {
            let name = base(word);
            is_named_as_script(name) || SHELLS.contains(&name) || COMMANDS.contains(&name) || is_python(name)
        };
        let words = arguments.iter().map(|word| word.as_str());
        if is_python(base(command)) {
            let module = words.clone().skip_while(|word| *word != "-m").nth(1);
            let is_launcher = |module: &&str| module.split('.').next().is_some_and(|of| FOREIGN.contains(&of));
            // What torchrun starts is a script of Python's, unless it is told otherwise.
            let any = words.clone().any(|word| ["--no-python", "--no_python"].contains(&word));
            return module.filter(is_launcher).or_else(|| words.clone().find(|word| any && is_command(word)));
        }
        let is_own = command.contains('/') && !is_of_system(command);
        let before = std::iter::once("").chain(words.clone());
        let after = words.clone().skip(1).chain([""]);
        let mut all = before.zip(words.clone().zip(after));
        // Where the command is, a file that is to be written is no program either.
        let is_here = is_own && Path::new(&self.path(command)).exists();
        let is_none = |path: &str| is_data(path) || is_here && !Path::new(path).exists();
        let is_program = |word: &str| is_a_program(word) && !(self.root.is_live() && is_none(&self.path(word)));
        let found = all.find(|(before, (word, after))| match is_own {
            // A user's own program has values behind its options.
            true if before.starts_with('-') && *before != "--" && !before.contains('=') => false,
            true if *word == "--" => !after.starts_with('-') && !after.is_empty(),
            true => is_program(word) || is_command(word),
            false => is_program(word) || is_command(word) || word.ends_with(".py") || is_job(base(word)),
        });
        found.map(|(_, (word, _))| word)
    }

    /// Skips the options of a wrapper, and its words before the program. An option that is not known may take a word,
    /// which would be taken for the program.
    fn wrapper(&mut self, wrapper: &Wrapper, words: &mut Words) {
        let mut before = wrapper.before;
        loop {
            while let Some(word) = words.next_if(|word| word.starts_with('-') && word.len() > 1) {
                let option = word.split('=').next().unwrap_or_default();
                // `-n5`, `-oL`
                let has_word = |of: &&str| !of.starts_with("--") && option.starts_with(*of);
                if word == "--" {
                    break;
                } else if wrapper.with_word.contains(&word.as_str()) {
                    words.next();
                } else if !wrapper.flags.contains(&option)
                    && option == word
                    && !wrapper.with_word.iter().any(has_word)
                    // `nice -5`
                    && word.get(1..).is_none_or(|number| number.parse::<u32>().is_err())
                {
                    self.note(&format!("{} {word}", wrapper.name));
                }
            }
            if before == 0 {
                return;
            }
            words.next();
            before -= 1;
        }
    }

    /// Reads exec, a word of shells.
    fn exec(&mut self, words: &mut Words) {
        while let Some(word) = words.next_if(|word| word.starts_with('-')) {
            match word.as_str() {
                "--" => break,
                "-a" => drop(words.next()),
                "-c" => self.variables.clear(),
                "-l" => {}
                _ => self.note(&format!("exec {word}")),
            }
        }
    }

    fn env(&mut self, words: &mut Words) {
        while let Some(word) = words.next_if(|word| word.starts_with('-')) {
            match word.as_str() {
                "-" | "-i" | "--ignore-environment" => self.variables.clear(),
                "-u" | "--unset" => drop(words.next().map(|name| self.variables.remove(name))),
                "-C" | "--chdir" => {
                    if let Some(folder) = words.next() {
                        self.enter(folder);
                    }
                }
                "--" => break,
                "-0" | "--null" | "-v" | "--debug" => {}
                "-S" | "--split-string" => {
                    words.next();
                    self.note("env -S");
                }
                _ => match word.strip_prefix("--unset=").or_else(|| word.strip_prefix("-u")) {
                    Some(name) => drop(self.variables.remove(name)),
                    None => match word.strip_prefix("--chdir=") {
                        Some(folder) => self.enter(folder),
                        None => self.note(&format!("env {word}")),
                    },
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
                    let (option, value) = match long.split_once('=') {
                        Some((option, value)) => (option, Some(value.to_owned())),
                        None if SUDO_WORDS.contains(&long) => (long, words.next().cloned()),
                        None => (long, None),
                    };
                    match (option, value) {
                        ("preserve-env", Some(list)) => names.extend(list.split(',').map(str::to_owned)),
                        ("user", Some(name)) => user = name,
                        ("chdir", Some(folder)) => self.enter(&folder),
                        _ if SUDO_WORDS.contains(&option) || SUDO_FLAGS.contains(&option) => {}
                        _ => self.note(&format!("sudo {word}")),
                    }
                }
                // Several in one word: `-iu NAME`, `-uNAME`.
                None => {
                    for (at, letter) in word.char_indices().skip(1) {
                        match letter {
                            'E' => kept = true,
                            'i' => self.note(&format!("sudo {word} (the profile of a login)")),
                            's' => self.note(&format!("sudo {word} (a shell)")),
                            letter if WITH_WORD.contains(letter) => {
                                let rest = word.get(at + 1..).unwrap_or_default();
                                let value = if rest.is_empty() { words.next().cloned() } else { Some(rest.to_owned()) };
                                match (letter, value) {
                                    ('u', value) => user = value.unwrap_or_default(),
                                    ('D', Some(folder)) => self.enter(&folder),
                                    _ => {}
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
            let is_dropped = |name: &&String| is_ours(name) && !names.contains(name);
            let dropped = self.variables.keys().find(is_dropped).filter(|name| self.sudo_may_keep(name)).cloned();
            if let Some(name) = dropped {
                self.note(&format!("sudo, whose sudoers may pass {name} on"));
            }
            self.variables.retain(|name, _| names.contains(name));
        }
        self.of_login();
    }

    /// Returns whether sudo may pass a variable on by itself: by its configuration, or as that cannot be read.
    fn sudo_may_keep(&self, name: &str) -> bool {
        const FOLDER: &str = "/etc/sudoers.d";
        let files = self.root.names(FOLDER).into_iter().map(|file| format!("{FOLDER}/{file}"));
        let start = name.split('_').next().unwrap_or(name);
        std::iter::once("/etc/sudoers".to_owned()).chain(files).any(|file| match self.root.text(&file) {
            Ok(text) => text.lines().filter(|line| !line.trim_start().starts_with('#')).any(|line| {
                line.contains("!env_reset")
                    || line.contains("env_keep") && (line.contains(start) || line.contains("\"*"))
            }),
            Err(missing) => missing == Missing::Denied,
        })
    }

    /// Adds the variables that PAM has for a program that sudo starts: those of /etc/environment, where pam_env reads
    /// that.
    fn of_login(&mut self) {
        const PAM: [&str; 3] = ["/etc/pam.d/sudo", "/etc/pam.d/system-auth", "/etc/pam.d/common-session"];
        let reads = |file: &&str| {
            let text = self.root.text(file).unwrap_or_default();
            text.lines().any(|line| !line.trim_start().starts_with('#') && line.contains("pam_env.so"))
        };
        if PAM.iter().any(reads) {
            let text = self.root.text("/etc/environment").unwrap_or_default();
            for (name, value) in text.lines().flat_map(split_words).filter_map(|word| assignment(&word)) {
                self.variables.entry(name).or_insert(value);
            }
        }
    }

    fn mpi(&mut self, name: &str, words: &mut Words) {
        let (mut has_hosts, mut exported) = (false, BTreeSet::new());
        while let Some(word) = words.peek().map(|word| word.as_str()) {
            // mpirun_rsh has its variables as words.
            if assignment(word).is_none() && !word.starts_with('-') {
                break;
            }
            words.next();
            let option = word.split('=').next().unwrap_or_default();
            has_hosts |= MPI_HOSTS.contains(&option);
            match word {
                "-x" => {
                    let word = words.next();
                    exported.extend(word.map(|word| word.split('=').next().unwrap_or_default().to_owned()));
                    self.set(word.and_then(|word| assignment(word)));
                }
                "-wdir" | "--wdir" | "-wd" => {
                    if let Some(folder) = words.next() {
                        self.enter(folder);
                    }
                }
                _ if option == "--wdir" => self.enter(word.split_once('=').map_or("", |(_, folder)| folder)),
                "-env" | "-genv" | "--env" | "--genv" => {
                    // Intel's takes NAME=VALUE, too.
                    let name = words.next();
                    let whole = name.and_then(|name| assignment(name));
                    let pair = whole.or_else(|| name.cloned().zip(words.next().cloned()));
                    self.set(pair);
                }
                "-mca" | "--mca" | "-gmca" | "--gmca" | "--prtemca" | "--pmixmca" => {
                    // As Open MPI passes it on.
                    if let Some((key, value)) = words.next().zip(words.next()) {
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
        // Others pass on what they have.
        if !["mpiexec.hydra", "mpirun_rsh"].contains(&name) {
            exported.extend(self.open_mpi());
            let stays = |var: &&String| is_ours(var) && !var.starts_with("OMPI_") && !exported.contains(*var);
            if let Some(var) = self.variables.keys().find(stays).filter(|_| has_hosts).cloned() {
                self.note(&format!("{name} with other nodes, to which Open MPI passes {var} by -x {var} only"));
            }
        }
    }

    /// Adds the parameters that Open MPI finds in its files, and the variables that its parameters have for all
    /// processes. Returns the names of these.
    fn open_mpi(&mut self) -> Vec<String> {
        let of_user = self.variables.get("HOME").map(|home| format!("{home}/{OPEN_MPI_OF_USER}"));
        for file in of_user.into_iter().chain([OPEN_MPI.to_owned()]) {
            let text = self.root.text(&file).unwrap_or_default();
            let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
            for (name, value) in lines.filter_map(|line| line.split_once('=')) {
                self.variables.entry(format!("OMPI_MCA_{}", name.trim())).or_insert(value.trim().to_owned());
            }
        }
        let is_list = |name: &str| name.starts_with("OMPI_MCA_") && name.ends_with("env_list");
        let lists = self.variables.iter().filter(|(name, _)| is_list(name)).map(|(_, list)| list);
        let found: Vec<_> = lists.flat_map(|list| list.split([';', ','])).filter_map(assignment).collect();
        self.variables.extend(found.iter().cloned());
        found.into_iter().map(|(name, _)| name).collect()
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
                    self.elsewhere(&format!("srun {option} (the variables of its image)"));
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
                    let value = match word.split_once('=') {
                        Some((_, value)) => Some(value),
                        None => words.next().map(|word| word.as_str()),
                    };
                    if let Some(folder) = value.filter(|_| option == "--chdir") {
                        self.enter(folder);
                    }
                } else if !SRUN_LONG_FLAGS.contains(&option) {
                    self.note(&format!("srun {option}"));
                }
            } else if let Some(letter) = word.chars().nth(1) {
                // `-N 2` has its word apart; `-N2` has it in one piece.
                let of = word.get(2..).unwrap_or_default();
                if SRUN_WORDS.contains(letter) {
                    let value = if of.is_empty() { words.next().cloned() } else { Some(of.to_owned()) };
                    if let Some(folder) = value.filter(|_| letter == 'D') {
                        self.enter(&folder);
                    }
                } else if !SRUN_FLAGS.contains(letter) {
                    self.note(&format!("srun {word}"));
                }
            }
        }
        // sbatch sets the second, and srun reads them where it has no --export.
        let mut names = ["SRUN_EXPORT_ENV", "SLURM_EXPORT_ENV"].into_iter();
        let list = names.find_map(|name| self.variables.get(name)).filter(|_| !is_given).cloned();
        if let Some(list) = list {
            self.export(&list);
        }
        let mut files = modprobe::SLURM.iter().filter_map(|file| self.root.text(file).ok());
        let sets = |line: &str| {
            let set = line.trim().split_once('=');
            set.is_some_and(|(key, _)| key.trim().eq_ignore_ascii_case("TaskProlog"))
        };
        if files.any(|text| text.lines().any(sets)) {
            self.note("srun with TaskProlog of slurm.conf (a program sets variables)");
        }
    }

    /// Reads the list of srun's --export: `ALL` keeps what there is, which wins over what the list sets; otherwise only
    /// what is named stays.
    fn export(&mut self, list: &str) {
        let entries: Vec<&str> = list.split(',').collect();
        if !entries.contains(&"ALL") {
            self.variables.retain(|name, _| entries.contains(&name.as_str()));
        }
        for (name, value) in entries.into_iter().filter_map(assignment) {
            self.variables.entry(name).or_insert(value);
        }
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
        // Of two files the later one wins, and the command line over both.
        let (mut of_files, mut given) = (BTreeMap::new(), BTreeMap::new());
        while let Some(word) = words.next_if(|word| word.starts_with('-')) {
            let (option, value) = match word.split_once('=') {
                Some((option, value)) if word.starts_with("--") || option == "-e" => (option, Some(value.to_owned())),
                _ => (word.as_str(), None),
            };
            let attached = word.strip_prefix("-e").filter(|entry| !word.starts_with("--") && entry.contains('='));
            match option {
                "--env-file" => {
                    let file = value.or_else(|| words.next().cloned()).unwrap_or_default();
                    let text = self.text(&file);
                    of_files.extend(text.lines().filter_map(|line| assignment(line.trim_start())));
                }
                "-e" | "--env" => {
                    let entry = value.or_else(|| words.next().cloned()).unwrap_or_default();
                    // A name alone passes the variable on.
                    let passed = own.get(&entry).map(|value| (entry.clone(), value.clone()));
                    given.extend(assignment(&entry).or(passed));
                }
                _ if attached.is_some() => given.extend(attached.and_then(assignment)),
                _ if word.contains('=') || CONTAINER_FLAGS.contains(&word.as_str()) => {}
                _ => drop(words.next()),
            }
        }
        self.variables = of_files;
        self.variables.extend(given);
        // This word is the image, or the container.
        words.next();
        self.elsewhere(&format!("{name} {verb} (the variables of its image)"));
    }

    /// Reads apptainer exec and run, which pass the variables on, and add those of the image.
    /// Options win over variables of its own, and APPTAINERENV_ over SINGULARITYENV_.
    fn apptainer(&mut self, name: &str, words: &mut Words) {
        let of_prefix = |prefix: &str| -> Vec<(String, String)> {
            let all = self.variables.iter();
            all.filter_map(|(name, value)| Some((name.strip_prefix(prefix)?.to_owned(), value.clone()))).collect()
        };
        let inherited = ["SINGULARITYENV_", "APPTAINERENV_"].map(of_prefix);
        let verb = words.find(|word| !word.starts_with('-')).map_or("", |word| word.as_str());
        let (mut of_files, mut given) = (BTreeMap::new(), BTreeMap::new());
        while let Some(word) = words.next_if(|word| word.starts_with('-')) {
            let (option, value) = match word.split_once('=') {
                Some((option, value)) => (option, Some(value.to_owned())),
                None => (word.as_str(), None),
            };
            match option {
                "--env" => {
                    let list = value.or_else(|| words.next().cloned()).unwrap_or_default();
                    given.extend(list.split(',').filter_map(assignment));
                }
                "--env-file" => {
                    let file = value.or_else(|| words.next().cloned()).unwrap_or_default();
                    match of_script(&self.text(&file)) {
                        Ok(read) => of_files.extend(read),
                        Err(line) => self.note(&format!("{file} with {line}")),
                    }
                }
                "-e" | "--cleanenv" => self.variables.clear(),
                _ if value.is_some() || APPTAINER_FLAGS.contains(&option) => {}
                _ => drop(words.next()),
            }
        }
        self.variables.extend(inherited.into_iter().flatten().chain(of_files).chain(given));
        words.next();
        let what = if verb == "exec" { "the variables of its image" } else { "what its image runs" };
        self.elsewhere(&format!("{name} {verb} ({what})"));
    }

    fn kubectl(&mut self, words: Words, depth: usize) {
        self.variables.clear();
        let words: Vec<String> = words.cloned().collect();
        let verb = words.iter().find(|word| !word.starts_with('-')).map_or("", |word| word.as_str()).to_owned();
        if let Some(at) = words.iter().position(|word| word == "--") {
            self.command(words.get(at + 1..).unwrap_or_default(), depth + 1);
        }
        self.elsewhere(&format!("kubectl {verb} (the variables of the pod)"));
    }

    /// Reads `bash -c SCRIPT`: assignments and exports between `;` and `&&`.
    fn shell(&mut self, name: &str, mut words: Words, depth: usize) {
        let flags: Vec<&String> = std::iter::from_fn(|| words.next_if(|word| word.starts_with('-'))).collect();
        let Some(script) = words.next() else { return self.note(name) };
        let script = &without_comments(script);
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
            let first = |part: &str| split_words(part).first().cloned().unwrap_or_default();
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
        // Redirections of output do not matter here, but for files that libraries read.
        let script = script.replace(">&", ">").replace("&>", ">").replace(['\n', '&'], ";");
        let parts: Vec<Vec<String>> = script.split(';').map(split_words).collect();
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
            if let Some(file) = words.iter().find(|word| FILES.iter().any(|file| word.ends_with(file))) {
                if !["test", "[", "ls"].contains(&first) && !starts(words) {
                    self.note(&format!("{shell} -c with {first}, which may write {file}"));
                }
            }
            let given = words.get(1).map_or("", String::as_str);
            if first == "cd" {
                match given {
                    "" => self.folder = self.variables.get("HOME").cloned(),
                    "-" => self.folder = None,
                    folder => self.enter(folder),
                }
            } else if first == "ulimit" && given.contains('l') && words.last().is_none_or(|limit| limit != "unlimited")
            {
                self.note(&format!("{shell} -c with {}", words.join(" ")));
            } else if first == "export" && given == "-n" {
                for word in words.iter().skip(2) {
                    own.extend(self.variables.remove(word).map(|value| (word.clone(), value)));
                }
            } else if first == "export" {
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

/// The ends of the names of files in which libraries find variables.
const FILES: [&str; 3] = ["nccl.conf", "ucx.conf", "mca-params.conf"];

/// Returns whether a program of this name starts others, with variables that are not its own.
pub fn starts_others(name: &str) -> bool {
    const LAUNCHERS: [&str; 17] = [
        "sudo",
        "doas",
        "mpirun",
        "mpiexec",
        "orterun",
        "prterun",
        "mpiexec.hydra",
        "mpirun_rsh",
        "srun",
        "docker",
        "podman",
        "nerdctl",
        "apptainer",
        "singularity",
        "kubectl",
        "slurmstepd",
        "prted",
    ];
    LAUNCHERS.contains(&name) || FOREIGN.contains(&name) || SHELLS.contains(&name)
}

/// Returns whether a variable is one by which verdicts go.
fn is_ours(name: &str) -> bool {
    BEGINNINGS.iter().any(|start| name.starts_with(start))
}

/// Returns a script without its comments.
fn without_comments(script: &str) -> String {
    let (mut text, mut quote, mut is_comment, mut before) = (String::new(), None, false, ' ');
    for c in script.chars() {
        match (quote, c) {
            (_, '\n') if is_comment => is_comment = false,
            (Some(open), c) if c == open => quote = None,
            (None, '"' | '\'') if !is_comment => quote = Some(c),
            (None, '#') if before.is_whitespace() || before == ';' => is_comment = true,
            _ => {}
        }
        if !is_comment {
            text.push(c);
        }
        before = c;
    }
    text
}

/// Returns the variables that a script of nothing but assignments sets, or the line that is more.
fn of_script(text: &str) -> Result<BTreeMap<String, String>, String> {
    let mut variables = BTreeMap::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let more = || line.to_owned();
        let words = split_words(line);
        let words = if words.first().is_some_and(|word| word == "export") { words.get(1..) } else { Some(&*words) };
        if line.contains(['$', '`', ';', '&', '|', '(', '\\']) {
            return Err(more());
        }
        for word in words.unwrap_or_default() {
            let (name, value) = assignment(word).ok_or_else(more)?;
            variables.insert(name, value);
        }
    }
    Ok(variables)
}

/// Returns the name of a file without its folder.
fn base(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Returns whether a command runs scripts of Python's with the environment as it is.
fn is_python(name: &str) -> bool {
    let version = |c: char| c.is_ascii_digit() || c == '.';
    ["python", "pypy", "torchrun"].contains(&name.trim_end_matches(version))
}

/// Returns whether a file has the name of a description of a job.
fn is_job(name: &str) -> bool {
    name.rsplit_once('.').is_some_and(|(_, end)| JOBS.contains(&end))
}

/// Returns whether an argument, or what follows `=` or `,` in it, sets a variable that libraries read.
fn is_of_a_library(word: &str) -> bool {
    word.contains('=') && word.split(['=', ',', ':', ' ']).any(|part| is_ours(part.trim_matches(['"', '\''])))
}

/// Returns whether an argument, such as a script in Python, has the name of a variable of a library in it.
fn mentions_a_library(word: &str) -> bool {
    // FI_ and MC_ alone are too short to mean anything.
    ["NCCL_", "UCX_", "NVSHMEM_", "MOONCAKE_"].iter().any(|library| {
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
    let is_of_system = !command.contains('/') || is_of_system(command);
    let mut plain = arguments.iter().filter(|word| !word.starts_with('-')).map(|word| word.as_str()).take(3);
    let is_word = |word: &&str| word.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
    // A file before the word makes it an argument of a program: `python3 train.py run`.
    plain.by_ref().take_while(is_word).find(|word| VERBS.contains(word)).filter(|_| is_of_system)
}

/// Returns whether a command is in a folder of the system's.
fn is_of_system(command: &str) -> bool {
    ["/usr/", "/bin/", "/sbin/", "/opt/", "/snap/"].iter().any(|folder| command.starts_with(folder))
}

/// Returns whether an argument is a program by its look, or says that one follows: then what it is given
/// to is a launcher. `./train` is one, `./config.yaml` is none.
fn is_a_program(word: &str) -> bool {
    word == "--" || word.strip_prefix("./").is_some_and(|file| !file.is_empty() && !file.contains('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Launched<'static> {
        let own = [("OWN".to_owned(), "1".to_owned())].into_iter().collect();
        // Nothing is there.
        let root = Box::leak(Box::new(Root::new(Path::new("/nonexistent"))));
        Launched::read(root, own, None, &split_words(line))
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
            ("bash -c 'export -n OWN; ./app'", false),
            ("bash -c 'exec -c ./app'", false),
            ("bash -c 'exec ./app'", true),
            ("env SRUN_EXPORT_ENV=NONE SLURM_EXPORT_ENV=ALL srun ./app", false),
        ] {
            assert_eq!(read(line).variables.contains_key("OWN"), stays, "{line}");
        }
    }

    /// The one that wins of several that set a variable.
    #[test]
    fn one_of_several_that_set_a_variable_wins() {
        for (line, wanted) in [
            ("env X=1 srun --export=ALL,X=0 ./app", Some("1")),
            ("env SRUN_EXPORT_ENV=ALL,X=1 srun ./app", Some("1")),
            ("env X=1 srun --export=X=0 ./app", Some("0")),
            ("env APPTAINERENV_X=0 SINGULARITYENV_X=1 apptainer exec image.sif ./app", Some("0")),
            ("env APPTAINERENV_X=1 apptainer exec --env X=0 image.sif ./app", Some("0")),
            ("apptainer exec --env X=1 -e image.sif ./app", Some("1")),
            ("env OMPI_MCA_mca_base_env_list=X=1 mpirun -np 8 ./app", Some("1")),
            ("mpirun --mca mca_base_env_list 'Y=0;X=1' ./app", Some("1")),
            ("bash -c 'export Y=1 # X=1\n./app'", None),
            ("bash -c 'export X=1#2; ./app'", Some("1#2")),
        ] {
            assert_eq!(read(&line.replace("\\n", "\n")).variables.get("X").map(String::as_str), wanted, "{line}");
        }
    }

    #[test]
    fn the_folder_is_the_one_that_launchers_change_to() {
        for line in [
            "env -C /work ./app",
            "env --chdir=/work ./app",
            "srun --chdir=/work ./app",
            "srun -D /work ./app",
            "mpirun -wdir /work -np 2 ./app",
            "sudo --chdir /work ./app",
            "bash -c 'cd /work; ./app'",
        ] {
            assert_eq!(read(line).folder.as_deref(), Some("/work"), "{line}");
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
        let read = |root: &str, line: &str| {
            let folder = Some(env!("CARGO_MANIFEST_DIR").to_owned());
            Launched::read(&Root::new(Path::new(root)), BTreeMap::new(), folder, &split_words(line)).not_understood
        };
        for line in ["env -i app ./src", "env -C tests ./public.rs ./trees", "./Cargo.toml ./nowhere"] {
            assert!(read("/", line).is_empty(), "{:?}", read("/", line));
            assert!(!read("/nonexistent", line).is_empty(), "{line}");
        }
        for line in ["./nowhere ./else", "app ./nowhere"] {
            assert!(!read("/", line).is_empty(), "{line}");
        }
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
            // Launchers that no list has, by what is among their arguments, and those that lists have.
            "site-run node-1 python3 train.py",
            "site-run -n 2 train.py",
            "site-submit job.pbs",
            "site-submit -q gpu train.sub",
            "site-run --all /usr/bin/bash train",
            "oarsh node-1 train",
            "gcloud compute ssh vm-1",
            "charmrun ++nodelist hosts namd3 stmv.namd",
            "python3 -m deepspeed.launcher.runner --hostfile hosts train.py",
            "python3 -m accelerate.commands.launch train.py",
            // By whatever path.
            "/opt/site/bin/site-launcher -- ./app",
            "/usr/bin/oarsh node-1 ./app",
            "/usr/bin/app ./data",
            "./bind.py -- ./app",
            "./bind.py -- app",
            "./wrapper ./app",
            "./wrapper bash train.sh",
            // Scripts behind wrappers, and behind options that have a word apart.
            "nsys profile -o report bash train.sh",
            "nsys launch --trace=cuda bash train.sh",
            "ncu --set full bash train.sh",
            "flock /tmp/lock ./train.sh",
            "torchrun --no-python --nproc_per_node 8 bash train.sh",
            "torchrun --no-python --nproc_per_node 8 ./train.sh",
            "python3 -m torch.distributed.run --no-python bash train.sh",
            "numactl --cpunodebind 0 --membind 0 bash train.sh",
            "mpirun -np 2 numactl --cpunodebind 0 bash train.sh",
            "numactl --unheard-of 0 ./app",
            "sudo --chdir /work bash train.sh",
            "sudo --unheard-of ./app",
            "srun -I -n 2 bash train.sh",
            "strace -f -o out -a 40 bash train.sh",
            "srun -y ./app",
            // Files that libraries read, written first; a limit that registrations run into.
            "bash -c 'echo NCCL_IB_DISABLE=1 > /root/.nccl.conf; ./app'",
            "bash -c 'cp job.nccl.conf /etc/nccl.conf; ./app'",
            "bash -c 'ulimit -l 64; ./app'",
        ] {
            assert!(!read(line).not_understood.is_empty(), "{line}");
        }
        for line in [
            "./app",
            "./app ./config.yaml ./data/x.bin",
            "/usr/bin/app /data",
            "./app --data ./data --script ./hook.sh",
            "./app -- --lr 1",
            "/work/bin/app --lr 1",
            "python3 ./train.py",
            "python3.12 train.py --launcher ./run.sh",
            "python3 -m torch.distributed.run --nproc_per_node 8 train.py",
            "torchrun --nproc_per_node 8 train.py",
            "torchrun --no-python --nproc_per_node 8 ./train",
            "numactl --cpunodebind 0 --membind 0 -l ./app",
            "nsys profile -o report --trace cuda ./app",
            "sudo --chdir /work --group rdma ./app",
            "srun -I -n 2 ./app",
            "stdbuf -oL nice -5 ./app",
            "taskset -c 0-7 chrt -f 50 ./app",
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
