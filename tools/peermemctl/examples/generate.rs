// SPDX-License-Identifier: GPL-2.0
//! `cargo run --example generate -- DIR`: man pages, shell completions and the schema of `--json`,
//! from the parser and the types that are printed.

use clap::Command;
use clap_complete::env::{Bash, EnvCompleter, Fish, Zsh};
use clap_mangen::roff::{bold, roman, Roff};
use clap_mangen::Man;
use peermemctl::answer::Document;
use peermemctl::manual;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

fn main() -> anyhow::Result<()> {
    into(&PathBuf::from(std::env::args().nth(1).unwrap_or_else(|| ".".to_owned())))
}

pub fn into(dir: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(dir)?;
    let mut parser = peermemctl::cli::parser().disable_help_subcommand(true);
    parser.build();
    page(&parser, "", dir)?;
    for command in parser.get_subcommands() {
        page(command, command.get_name(), dir)?;
    }
    // They ask the program while somebody types, so they know this machine's devices.
    let shells: [(&dyn EnvCompleter, &str); 3] =
        [(&Bash, "peermemctl.bash"), (&Fish, "peermemctl.fish"), (&Zsh, "_peermemctl")];
    for (shell, file) in shells {
        let mut script = Vec::new();
        shell.write_registration("COMPLETE", "peermemctl", "peermemctl", "peermemctl", &mut script)?;
        // zsh loads a file of this name as a function, and calls it once.
        if file.starts_with('_') {
            writeln!(script, "[[ $funcstack[1] = {file} ]] && _clap_dynamic_completer_peermemctl \"$@\"")?;
        }
        fs::write(dir.join(file), script)?;
    }
    let schema = serde_json::to_string_pretty(&schemars::schema_for!(Document))? + "\n";
    fs::write(dir.join("peermemctl.schema.json"), schema)?;
    Ok(())
}

/// The man page of a command.
fn page(command: &Command, name: &str, dir: &Path) -> io::Result<()> {
    let man = Man::new(command.clone()).manual("peermemctl");
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut text)?;
    }
    let mut roff = Roff::new();
    roff.control("SH", ["EXAMPLES"]);
    listed(&mut roff, manual::examples(name));
    roff.control("SH", ["FILES"]);
    listed(&mut roff, &manual::FILES);
    roff.control("SH", ["EXIT STATUS"]);
    listed(&mut roff, manual::exit_status(name));
    roff.control("SH", ["SEE ALSO"]);
    roff.text([roman(manual::SEE_ALSO)]);
    write!(text, "{}", roff.render())?;
    if name.is_empty() {
        man.render_version_section(&mut text)?;
    }
    fs::write(dir.join(man.get_filename()), text)
}

/// Words in bold, and what they mean.
fn listed(roff: &mut Roff, entries: &[(&str, &str)]) {
    for (word, meaning) in entries {
        roff.control("TP", []);
        roff.text([bold(*word)]);
        roff.text([roman(*meaning)]);
    }
}
