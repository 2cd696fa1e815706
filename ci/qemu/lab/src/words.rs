//! The guest's words for what the lab names: the one place that knows them. (tests/guest and ci/qemu/ofed still call the
//! cores 25.04 and 5.5, and NVIDIA's module the rival.)

use crate::axes::{Core, Kernel, Mode, Module, Named};

/// Of each core that is tested: its name in the guest and in the parameter of ib_core.
const CORES: [(Core, &str); 2] = [(Core::V2510, "25.04"), (Core::V2410, "5.5")];

pub fn core(core: Core) -> Option<String> {
    let (_, word) = CORES.iter().find(|(known, _)| *known == core)?;
    Some(format!("guest.generation={word}"))
}

/// The core that the guest names, if it is one that is tested.
pub fn core_named(word: &str) -> Option<Core> {
    CORES.iter().find(|(_, known)| *known == word).map(|(core, _)| *core)
}

/// A test's name in the guest: it may name a core.
pub fn test(name: &str) -> String {
    let word = |part| CORES.iter().find(|(core, _)| core.name() == part).map_or(part, |(_, word)| *word);
    name.split('/').map(word).collect::<Vec<_>>().join("/")
}

pub fn mode(mode: Mode) -> Option<String> {
    (mode != Mode::Both).then(|| format!("guest.mode={}", mode.name()))
}

/// The mode that the guest names, if it is one that is tested.
pub fn mode_named(word: &str) -> bool {
    [Mode::Persistent, Mode::Legacy].iter().any(|mode| mode.name() == word)
}

/// Which module the guest has.
pub fn module(module: Module, kernel: Kernel) -> Option<String> {
    match module {
        Module::NvidiaC => Some("guest.rival=1".to_string()),
        Module::Ours if kernel.has_rust() => None,
        _ => Some("guest.provider=kernel-lite".to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guest_is_told_its_own_names() {
        assert_eq!(core(Core::V2410).as_deref(), Some("guest.generation=5.5"));
        assert_eq!((core(Core::Both), core(Core::Bare)), (None, None));
        assert_eq!(test("scenarios/25.10/legacy/free_during_dereg"), "scenarios/25.04/legacy/free_during_dereg");
        assert_eq!((core_named("25.04"), core_named("5.1")), (Some(Core::V2510), None));
        assert_eq!(module(Module::Ours, Kernel::Fast72), None);
        assert_eq!(module(Module::Ours, Kernel::Debian61).as_deref(), Some("guest.provider=kernel-lite"));
        assert_eq!(mode(Mode::Legacy).as_deref(), Some("guest.mode=legacy"));
    }
}
