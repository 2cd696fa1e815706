// SPDX-License-Identifier: GPL-2.0
//! Takes out of a recorded machine what names people, hosts and their programs.

use std::collections::BTreeMap;

/// Names that tell nothing of whose machine it is.
const KEPT: [&str; 4] = ["*", "root", "-", ""];

/// Removes the host's name, names of processes, users, groups and signers, MAC and IP addresses,
/// and UUIDs from a text. Replaces a name by the same word wherever it stands.
pub fn anonymous(text: &str, host: &str) -> String {
    let mut names: BTreeMap<String, String> = BTreeMap::new();
    if !host.is_empty() {
        names.insert(host.to_owned(), "host".to_owned());
    }
    let mut path = "";
    for line in text.lines() {
        let mut name = |sort: &str, name: &str| {
            let number = names.values().filter(|other| other.starts_with(sort)).count() + 1;
            if !KEPT.contains(&name) && name.len() > 1 {
                names.entry(name.to_owned()).or_insert_with(|| format!("{sort}-{number}"));
            }
        };
        match line.split_at_checked(1) {
            Some(("|", value)) if path.ends_with("/comm") => name("process", value),
            Some(("|", value)) if path.ends_with("/status") => {
                value.strip_prefix("Name:\t").into_iter().for_each(|value| name("process", value));
            }
            Some(("|", value)) if path.contains("/etc/security/limits") => {
                let who = value.split_ascii_whitespace().next().unwrap_or_default();
                name("user", who.trim_start_matches('@'));
            }
            Some(("|", value)) if path.starts_with("/proc/driver/nvidia-peermem/") => {
                let comm = value.split(' ').find_map(|field| field.strip_prefix("comm="));
                comm.into_iter().for_each(|value| name("process", value));
            }
            Some(("|", value)) => value.strip_prefix("signer ").into_iter().for_each(|value| name("signer", value)),
            _ => path = line.split(' ').nth(1).unwrap_or(path),
        }
    }
    let named = names.iter().rev().fold(text.to_owned(), |text, (name, word)| replaced(&text, name, word));
    named.split_inclusive('\n').map(without_addresses).collect()
}

/// Replaces `name` by `word` in `text`, but not where it is a part of another word.
fn replaced(text: &str, name: &str, word: &str) -> String {
    let is_part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(name) {
        let inside = is_part(before.chars().next_back()) || is_part(after.chars().next());
        out.push_str(before);
        out.push_str(if inside { name } else { word });
        rest = after;
    }
    out + rest
}

/// Replaces MAC addresses, IPv4 addresses and UUIDs in a line. PCI addresses stay.
fn without_addresses(line: &str) -> String {
    let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, ':' | '.' | '-');
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(start) = rest.find(is_word) {
        let (before, word) = rest.split_at(start);
        let (word, after) = word.split_at(word.find(|c| !is_word(c)).unwrap_or(word.len()));
        out.push_str(before);
        out.push_str(if is_mac(word) {
            "00:00:00:00:00:00"
        } else if is_ip(word) {
            "192.0.2.1"
        } else if is_uuid(word.trim_start_matches("GPU-")) {
            "00000000-0000-0000-0000-000000000000"
        } else {
            word
        });
        rest = after;
    }
    out + rest
}

fn parts_are(word: &str, separator: char, lengths: &[usize]) -> bool {
    let parts: Vec<&str> = word.split(separator).collect();
    let is_hex = |part: &str| part.bytes().all(|byte| byte.is_ascii_hexdigit());
    parts.len() == lengths.len()
        && parts.iter().zip(lengths).all(|(part, length)| part.len() == *length && is_hex(part))
}

fn is_mac(word: &str) -> bool {
    parts_are(word, ':', &[2; 6])
}

fn is_uuid(word: &str) -> bool {
    parts_are(word, '-', &[8, 4, 4, 4, 12])
}

/// Returns whether a word is an IPv4 address: four numbers. Versions of three parts, and versions
/// of four parts with large numbers, are none.
fn is_ip(word: &str) -> bool {
    word.parse::<std::net::Ipv4Addr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_named() {
        let text = "\
# all
F /proc/7/comm
|alices-job
F /proc/driver/nvidia-peermem/registrations
|pid=7 comm=alices-job client=nv_mem gpu=0000:18:00.0
F /etc/security/limits.d/rdma.conf
|@secretlab - memlock unlimited
|* - memlock unlimited
F /dev/kmsg
|6,1,2,-;nvidia-peermem on gpu17.example.org: 0c:42:a1:00:11:22 10.1.2.3 GPU-0a1b2c3d-0001-0002-0003-0a1b2c3d4e5f
|6,1,3,-;NVRM: 580.159.04 at 0000:18:00.0, not gpu170
M /lib/modules/6/nvidia-peermem.ko
|signer Bob's key
";
        let out = anonymous(text, "gpu17");
        for name in ["alice", "secretlab", "gpu17.", "0c:42", "10.1.2.3", "0a1b2c3d", "Bob"] {
            assert!(!out.contains(name), "{name}: {out}");
        }
        for kept in ["process-1", "user-1", "0000:18:00.0", "580.159.04", "gpu170", "|* - memlock", "client=nv_mem"] {
            assert!(out.contains(kept), "{kept}: {out}");
        }
        // The same name is the same word.
        assert_eq!(out.matches("process-1").count(), 2, "{out}");
    }
}
