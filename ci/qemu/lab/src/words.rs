//! The `guest.` words by which the lab tells the guest what it boots.

use crate::axes::{Core, Kernel, Mode, Module, Named};

pub fn core(core: Core) -> Option<String> {
    Core::TESTED.contains(&core).then(|| format!("guest.generation={}", core.name()))
}

pub fn mode(mode: Mode) -> Option<String> {
    (mode != Mode::Both).then(|| format!("guest.mode={}", mode.name()))
}

/// Which module the guest has.
pub fn module(module: Module, kernel: Kernel) -> Option<String> {
    match module {
        Module::NvidiaC => Some("guest.nvidia_c=1".to_string()),
        Module::Ours if kernel.has_rust() => None,
        _ => Some("guest.kernel_crate=lite".to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_guest_is_told() {
        assert_eq!(core(Core::V2410).as_deref(), Some("guest.generation=24.10"));
        assert_eq!((core(Core::Both), core(Core::Bare)), (None, None));
        assert_eq!(module(Module::Ours, Kernel::Fast72), None);
        assert_eq!(module(Module::Ours, Kernel::Debian61).as_deref(), Some("guest.kernel_crate=lite"));
        assert_eq!(mode(Mode::Legacy).as_deref(), Some("guest.mode=legacy"));
    }
}
