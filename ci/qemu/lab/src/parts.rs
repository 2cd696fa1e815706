// SPDX-License-Identifier: GPL-2.0

//! Names NVIDIA's parts of an image, with their versions, as the modules themselves carry them:
//! screens, logs and pages have the names from here.

use crate::artefacts::{Built, Kind};
use crate::axes::{Also, Module};
use crate::sh;
use std::collections::BTreeSet;

impl Built {
    /// Returns what is NVIDIA's in images of this kind: the driver's front, and the C module where
    /// the image has it. Images without a GPU driver have nothing of NVIDIA's.
    pub fn nvidia(&self, (module, also): Kind) -> Vec<String> {
        let driver = match module {
            Module::Odd => "gpu-odd",
            Module::Newest => "gpu-newest",
            Module::Closed => "gpu-closed",
            Module::Tegra => return Vec::new(),
            Module::Ours | Module::Lite | Module::Installed | Module::NvidiaC => "gpu",
        };
        let driver = self.says(&format!("{driver}/nvidia.ko"), "lab_driver");
        let both = matches!(module, Module::NvidiaC | Module::Installed) || also == Also::NvidiaC;
        let c = both.then(|| self.says("nvidia_c/nvidia-peermem.ko", "version")).flatten();
        driver.into_iter().chain(c.map(|version| format!("NVIDIA's C nvidia-peermem {version}"))).collect()
    }

    /// Returns what a module says of itself, if the kernel has the module.
    fn says(&self, file: &str, field: &str) -> Option<String> {
        let file = self.part(file);
        let said = sh::output(sh::command("modinfo").args(["-F", field]).arg(&file)).ok().filter(|_| file.exists())?;
        Some(said.trim().to_string()).filter(|said| !said.is_empty())
    }
}

/// Returns the names in one line.
pub fn line<'a>(names: impl IntoIterator<Item = &'a String>) -> String {
    let names: BTreeSet<&str> = names.into_iter().map(String::as_str).collect();
    if names.is_empty() {
        return "nothing of NVIDIA's".to_string();
    }
    names.into_iter().collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_names_each_part_once() {
        let names =
            ["NVIDIA's driver front 2", "NVIDIA's C nvidia-peermem 1", "NVIDIA's driver front 2"].map(String::from);
        assert_eq!(line(&names), "NVIDIA's C nvidia-peermem 1, NVIDIA's driver front 2");
        assert_eq!(line(&[]), "nothing of NVIDIA's");
    }
}
