//! The cable between the network cards of two machines, and how each of them fares.

use crate::sh::human;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// `guest.role=` of each.
pub const ROLES: [&str; 2] = ["server", "client"];

/// What is left to do for one machine when the other has powered off: the end of its last suite,
/// with the scans for leaks.
const LAST_SUITE: Duration = Duration::from_secs(300);
/// A machine whose partner is lost may still say what it saw.
const LAST_WORDS: Duration = Duration::from_secs(5);

#[derive(Clone, Debug, Default)]
enum State {
    #[default]
    Runs,
    Off(Instant),
    /// It ended in no good way.
    Lost(Instant, String),
}

/// How both of them fare.
#[derive(Debug, Default)]
struct Fates(Mutex<[State; 2]>);

/// One machine's end of the cable: a datagram socket of each machine, so that neither has to be
/// there first.
#[derive(Clone, Debug)]
pub struct Cable {
    role: usize,
    dir: PathBuf,
    fates: Arc<Fates>,
}

impl Cable {
    /// Both, in the order of `ROLES`; their sockets are in this folder.
    pub fn ends(dir: &Path) -> [Cable; 2] {
        let fates = Arc::new(Fates::default());
        [0, 1].map(|role| Cable { role, dir: dir.to_path_buf(), fates: fates.clone() })
    }

    fn socket(&self, role: usize) -> String {
        self.dir.join(ROLES[role % 2]).display().to_string()
    }

    /// For QEMU's -netdev.
    pub fn netdev(&self) -> String {
        format!(
            "dgram,id=net0,local.type=unix,local.path={},remote.type=unix,remote.path={}",
            self.socket(self.role),
            self.socket(self.role + 1)
        )
    }

    /// QEMU gives every first card the same one.
    pub fn mac(&self) -> String {
        format!("52:54:00:77:00:{:02x}", self.role + 1)
    }

    pub fn ended(&self, why: Option<&str>) {
        let now = Instant::now();
        let state = why.map_or(State::Off(now), |why| State::Lost(now, why.to_string()));
        let mut fates = self.fates.0.lock().unwrap_or_else(|e| e.into_inner());
        fates[self.role % 2] = state;
    }

    /// Why this machine need not go on.
    pub fn alone(&self) -> Option<String> {
        let other = (self.role + 1) % 2;
        match &self.fates.0.lock().unwrap_or_else(|e| e.into_inner())[other] {
            State::Lost(when, why) if when.elapsed() > LAST_WORDS => {
                Some(format!("stopped, because the {} is lost: {why}", ROLES[other]))
            }
            State::Off(when) if when.elapsed() > LAST_SUITE => {
                Some(format!("stopped: it was still at it {} after the {} was off", human(LAST_SUITE), ROLES[other]))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cables() -> [Cable; 2] {
        Cable::ends(Path::new("/tmp/x"))
    }

    #[test]
    fn two_ends_of_one_cable() {
        let [server, client] = cables();
        assert!(server.netdev().contains("local.path=/tmp/x/server,") && server.netdev().ends_with("=/tmp/x/client"));
        assert!(client.netdev().contains("local.path=/tmp/x/client,") && client.netdev().ends_with("=/tmp/x/server"));
        assert_ne!(server.mac(), client.mac());
    }

    #[test]
    fn who_is_left_alone_hears_why() {
        let [server, client] = cables();
        assert_eq!(client.alone(), None);
        server.ended(None);
        assert_eq!(client.alone(), None, "the other one finished its tests first");
        let [server, client] = cables();
        server.ended(Some("QEMU ended with signal 9"));
        assert_eq!(client.alone(), None, "no time for last words");
        let long_ago = Instant::now().checked_sub(LAST_WORDS + Duration::from_secs(1)).unwrap();
        server.fates.0.lock().unwrap()[0] = State::Lost(long_ago, "QEMU ended with signal 9".into());
        assert_eq!(client.alone().unwrap(), "stopped, because the server is lost: QEMU ended with signal 9");
        assert_eq!(server.alone(), None);
    }
}
