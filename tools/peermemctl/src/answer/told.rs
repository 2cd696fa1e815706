// SPDX-License-Identifier: GPL-2.0
//! Gives the rows of the module's files, or says why there are none.

use crate::machine::Machine;
use crate::peermem;
use crate::root::{Missing, Root};
use anyhow::{bail, Result};

/// Returns the rows of one of the module's files, or an error that says why the file cannot be
/// read. Looks at the rest of the machine only when there are no rows, so that the reason for a
/// refusal is there at once.
pub(super) fn told<T>(root: &Root, rows: Result<T, Missing>) -> Result<T> {
    let missing = match rows {
        Ok(rows) => return Ok(rows),
        Err(missing) => missing,
    };
    match (missing, &Machine::look(root).loaded) {
        (Missing::Denied, _) => bail!("only root may see that: run it as root"),
        (Missing::Unknown, _) => bail!("{}; {}", peermem::UNKNOWN, peermem::KNOW_IT),
        (_, None) => bail!("nvidia_peermem is not loaded; peermemctl doctor says why"),
        (_, Some(loaded)) => bail!(
            "the loaded nvidia_peermem ({}) does not tell: there is no {}",
            match loaded.maker {
                crate::module_file::Maker::Nvidia => "NVIDIA's",
                _ => "a build without it",
            },
            peermem::DIR
        ),
    }
}
