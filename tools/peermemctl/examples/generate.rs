// SPDX-License-Identifier: GPL-2.0
//! `cargo run --example generate -- DIR`: man pages, shell completions and the schema of `--json`, from the parser and the
//! types that are printed.

use clap_complete::Shell;
use peermemctl::answer::Document;
use std::fs;
use std::path::{Path, PathBuf};

fn main() -> anyhow::Result<()> {
    into(&PathBuf::from(std::env::args().nth(1).unwrap_or_else(|| ".".to_owned())))
}

pub fn into(dir: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(dir)?;
    clap_mangen::generate_to(peermemctl::cli::parser(), dir)?;
    for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
        clap_complete::generate_to(shell, &mut peermemctl::cli::parser(), "peermemctl", dir)?;
    }
    let schema = serde_json::to_string_pretty(&schemars::schema_for!(Document))? + "\n";
    fs::write(dir.join("peermemctl.schema.json"), schema)?;
    Ok(())
}
