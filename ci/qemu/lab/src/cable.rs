// SPDX-License-Identifier: GPL-2.0

//! The cable between the network cards of two machines, and which of them is lost.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// `guest.role=` of each.
pub const ROLES: [&str; 2] = ["server", "client"];

/// A machine whose partner is lost may still say what it saw.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// One machine's end of the cable: a datagram socket of each machine, so that neither has to be
/// there first.
#[derive(Clone, Debug)]
pub struct Cable {
    role: usize,
    dir: PathBuf,
    /// Which was lost first, when, and why.
    lost: Arc<OnceLock<(usize, Instant, String)>>,
}

impl Cable {
    /// Both, in the order of `ROLES`; their sockets are in this folder.
    pub fn ends(dir: &Path) -> [Cable; 2] {
        let lost = Arc::default();
        [0, 1].map(|role| Cable { role, dir: dir.to_path_buf(), lost: Arc::clone(&lost) })
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

    /// This machine ended in no good way.
    pub fn lose(&self, why: &str) {
        let _ = self.lost.set((self.role, Instant::now(), why.to_string()));
    }

    /// Why this machine need not go on.
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
