// SPDX-License-Identifier: GPL-2.0
//! Talks to the other machine, where two are joined by a cable. Both run the same tests, and in
//! each test their processes talk over a TCP connection of their own, a line of JSON at a time.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use serde_json::{json, Value};

use crate::test::Env;

const PORT: u16 = 7100;
/// The time to wait for the other machine, which may still be booting, or be slow to load what the
/// test needs.
const MEET: Duration = Duration::from_secs(180);
/// The file with the reason why the other machine was given up. No later test waits for it again.
const LOST: &str = "/run/peer-lost";
/// The word by which a failed test makes the other side fail, too.
const FAILED: &str = "failed";

/// The value of `guest.role=`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Server,
    Client,
}

impl Role {
    /// Reads the role. A machine on its own is a server without clients.
    pub fn of(values: &BTreeMap<String, String>) -> Result<Self> {
        match values.get("role").map(String::as_str) {
            None | Some("server") => Ok(Self::Server),
            Some("client") => Ok(Self::Client),
            Some(other) => bail!("guest.role={other}: use server or client"),
        }
    }

    pub fn address(self) -> &'static str {
        match self {
            Self::Server => "192.168.77.1",
            Self::Client => "192.168.77.2",
        }
    }

    pub fn other(self) -> Self {
        match self {
            Self::Server => Self::Client,
            Self::Client => Self::Server,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Client => "client",
        }
    }
}

pub struct Peer {
    pub role: Role,
    stream: TcpStream,
    lines: Receiver<String>,
    /// Lines that came before somebody asked for them.
    early: VecDeque<String>,
}

/// Runs one test on both machines. If one fails, the other fails at once.
pub fn together(env: &Env, what: &str, test: impl FnOnce(&mut Peer) -> Result<()>) -> Result<()> {
    let mut peer = Peer::meet(env, what)?;
    let result = test(&mut peer);
    if let Err(e) = &result {
        // The connection to the other side may be what failed.
        let _ = peer.tell(FAILED, json!(format!("{e:#}")));
    }
    result
}

impl Peer {
    fn meet(env: &Env, what: &str) -> Result<Self> {
        let role = Role::of(&env.values)?;
        ensure!(env.values.contains_key("role"), "this test needs two machines: a row of the lab's table with `pair`");
        if let Ok(why) = fs::read_to_string(LOST) {
            bail!("not tried: {why}");
        }
        let stream = match connect(role) {
            Ok(stream) => stream,
            Err(e) => {
                let why = format!("the {} was not there within {MEET:?}: {e:#}", role.other().name());
                fs::write(LOST, &why).with_context(|| format!("write {LOST}"))?;
                bail!(why);
            }
        };
        let (to, lines) = channel();
        let reader = BufReader::new(stream.try_clone().context("the connection")?);
        thread::spawn(move || {
            for line in reader.lines().map_while(Result::ok) {
                if to.send(line).is_err() {
                    return;
                }
            }
        });
        let mut peer = Self { role, stream, lines, early: VecDeque::new() };
        peer.tell("hello", json!(what))?;
        let theirs = peer.hear("hello", MEET)?;
        ensure!(theirs == what, "out of step: the {} is at {theirs}, this machine at {what}", role.other().name());
        Ok(peer)
    }

    pub fn tell(&mut self, word: &str, value: Value) -> Result<()> {
        let line = format!("{}\n", json!([word, value]));
        self.stream.write_all(line.as_bytes()).with_context(|| format!("tell the {} {word}", self.role.other().name()))
    }

    /// Returns the value of the other machine's next line, whose word must be `word`.
    pub fn hear(&mut self, word: &str, limit: Duration) -> Result<Value> {
        let other = self.role.other().name();
        let line = match self.early.pop_front() {
            Some(line) => line,
            None => match self.lines.recv_timeout(limit) {
                Ok(line) => line,
                Err(RecvTimeoutError::Timeout) => bail!("the {other} did not say {word:?} within {limit:?}"),
                Err(RecvTimeoutError::Disconnected) => bail!("the {other} went away before it said {word:?}"),
            },
        };
        let (said, value) = parse(&line)?;
        ensure!(said != FAILED, "the {other} failed: {}", value.as_str().unwrap_or_default());
        ensure!(said == word, "the {other} said {said:?} where {word:?} was due");
        Ok(value)
    }

    /// Returns whether the next line has this word, and takes it if so.
    pub fn has_said(&mut self, word: &str) -> bool {
        let next = self.early.front().and_then(|line| parse(line).ok());
        let said = next.is_some_and(|(said, _)| said == word);
        if said {
            self.early.pop_front();
        }
        said
    }

    /// Fails if the other side has failed or is gone. A machine calls this repeatedly while it
    /// works.
    pub fn is_well(&mut self) -> Result<()> {
        let other = self.role.other().name();
        loop {
            match self.lines.try_recv() {
                Ok(line) => {
                    let (said, value) = parse(&line)?;
                    ensure!(said != FAILED, "the {other} failed: {}", value.as_str().unwrap_or_default());
                    self.early.push_back(line);
                }
                Err(TryRecvError::Empty) => return Ok(()),
                // The other side is gone, but what it sent before is kept.
                Err(TryRecvError::Disconnected) if !self.early.is_empty() => return Ok(()),
                Err(TryRecvError::Disconnected) => bail!("the {other} went away"),
            }
        }
    }
}

fn parse(line: &str) -> Result<(String, Value)> {
    let (word, value): (String, Value) =
        serde_json::from_str(line).with_context(|| format!("the other machine said {line:?}"))?;
    Ok((word, value))
}

fn connect(role: Role) -> Result<TcpStream> {
    let end = Instant::now() + MEET;
    match role {
        Role::Server => {
            let listener = TcpListener::bind((role.address(), PORT)).context("listen")?;
            listener.set_nonblocking(true).context("listen")?;
            loop {
                match listener.accept() {
                    Ok((stream, _)) => {
                        stream.set_nonblocking(false).context("accept")?;
                        return Ok(stream);
                    }
                    Err(e) if e.kind() == std::io::ErrorKind::WouldBlock && Instant::now() < end => {}
                    Err(e) => return Err(e).context("nobody connected"),
                }
                thread::sleep(Duration::from_millis(20));
            }
        }
        Role::Client => {
            let to = SocketAddr::new(role.other().address().parse().context("address")?, PORT);
            loop {
                match TcpStream::connect_timeout(&to, Duration::from_secs(5)) {
                    Ok(stream) => return Ok(stream),
                    Err(e) if Instant::now() > end => return Err(e).with_context(|| format!("connect to {to}")),
                    Err(_) => thread::sleep(Duration::from_millis(100)),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(role: &str) -> BTreeMap<String, String> {
        BTreeMap::from([("role".to_string(), role.to_string())])
    }

    #[test]
    fn roles_have_addresses_of_their_own() {
        assert_eq!(Role::of(&BTreeMap::new()).unwrap(), Role::Server);
        assert_eq!(Role::of(&values("client")).unwrap().other(), Role::of(&values("server")).unwrap());
        assert_ne!(Role::Server.address(), Role::Client.address());
        assert!(Role::of(&values("judge")).is_err());
    }

    #[test]
    fn a_line_is_a_word_and_a_value() {
        assert_eq!(parse(r#"["hello", {"a": 1}]"#).unwrap(), ("hello".to_string(), json!({"a": 1})));
        assert!(parse("hello").is_err());
    }
}
