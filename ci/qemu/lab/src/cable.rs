// SPDX-License-Identifier: GPL-2.0

//! The cable between the network cards of two machines, and the record of which machine was lost.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// The value of `guest.role=` for each machine.
pub const ROLES: [&str; 2] = ["server", "client"];

/// How long a machine whose partner is lost may go on, to report what it saw.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// One machine's end of the cable. Each machine has a datagram socket, so it does not matter which
/// starts first.
#[derive(Clone, Debug)]
pub struct Cable {
    role: usize,
    dir: PathBuf,
    /// The machine that was lost first, when it was lost, and why.
    lost: Arc<OnceLock<(usize, Instant, String)>>,
}

impl Cable {
    /// Returns both ends, in the order of `ROLES`. Their sockets are in the folder `dir`.
    pub fn ends(dir: &Path) -> [Cable; 2] {
        let lost = Arc::default();
        [0, 1].map(|role| Cable { role, dir: dir.to_path_buf(), lost: Arc::clone(&lost) })
    }

    fn socket(&self, role: usize) -> String {
        self.dir.join(ROLES[role % 2]).display().to_string()
    }

    /// Returns the argument for QEMU's -netdev.
    pub fn netdev(&self) -> String {
        format!(
            "dgram,id=net0,local.type=unix,local.path={},remote.type=unix,remote.path={}",
            self.socket(self.role),
            self.socket(self.role + 1)
        )
    }

    /// Returns the card's address. QEMU would give the first card of both machines the same one.
    pub fn mac(&self) -> String {
        format!("52:54:00:77:00:{:02x}", self.role + 1)
    }

    /// Records that this machine did not end well.
    pub fn lose(&self, why: &str) {
        let _ = self.lost.set((self.role, Instant::now(), why.to_string()));
    }

    /// Returns why this machine must stop, if its partner was lost long enough ago.
    pub fn alone(&self) -> Option<String> {
        let (role, when, why) = self.lost.get().filter(|lost| lost.0 != self.role)?;
        let over = when.elapsed() > LAST_WORDS;
        over.then(|| format!("stopped, because the {} is lost: {why}", ROLES[*role]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_ends_of_one_cable() {
        let [server, client] = Cable::ends(Path::new("/tmp/x"));
        assert!(server.netdev().contains("local.path=/tmp/x/server,") && server.netdev().ends_with("=/tmp/x/client"));
        assert!(client.netdev().contains("local.path=/tmp/x/client,") && client.netdev().ends_with("=/tmp/x/server"));
        assert_ne!(server.mac(), client.mac());
    }

    #[test]
    fn who_is_left_alone_hears_why() {
        let [server, client] = Cable::ends(Path::new("/tmp/x"));
        let long_ago = Instant::now().checked_sub(LAST_WORDS + Duration::from_secs(1)).unwrap();
        server.lost.set((0, long_ago, "QEMU ended with signal 9".into())).unwrap();
        client.lose("its partner is gone");
        assert_eq!(client.alone().unwrap(), "stopped, because the server is lost: QEMU ended with signal 9");
        assert_eq!(server.alone(), None);
        let [server, client] = Cable::ends(Path::new("/tmp/x"));
        server.lose("QEMU ended with signal 9");
        assert_eq!(client.alone(), None, "no time for last words");
    }
}
