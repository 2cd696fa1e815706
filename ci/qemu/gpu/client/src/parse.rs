// SPDX-License-Identifier: GPL-2.0

//! Reads the text formats of debugfs `nvidia_lab`.

use std::collections::BTreeMap;

/// The reason why a line could not be read.
pub type Complaint = String;

/// The accounting: gauges and counters by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accounting(BTreeMap<String, i64>);

impl Accounting {
    /// The values that must be 0 when a test has cleaned up.
    pub const CLEAN: [&'static str; 9] = [
        "live_pins",
        "live_persistent",
        "live_dma_bufs",
        "live_mappings",
        "live_allocations",
        "bar1_used",
        "leaked_tables",
        "callbacks_running",
        "violations",
    ];

    /// Returns the value of one line.
    ///
    /// # Panics
    ///
    /// If there is no such line: a test that asks for a wrong name must fail.
    #[must_use]
    pub fn get(&self, name: &str) -> i64 {
        *self.0.get(name).unwrap_or_else(|| panic!("the accounting has no line {name:?}: {:?}", self.0.keys()))
    }

    /// Returns whether nothing is pinned, mapped, allocated or violated.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.dirt().is_empty()
    }

    /// Returns the lines of [`Accounting::CLEAN`] that are not 0, as `name=value`.
    #[must_use]
    pub fn dirt(&self) -> Vec<String> {
        Self::CLEAN.iter().filter(|n| self.get(n) != 0).map(|n| format!("{n}={}", self.get(n))).collect()
    }

    /// Returns all lines in order of their names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, i64)> {
        self.0.iter().map(|(k, v)| (k.as_str(), *v))
    }
}

/// Reads the flavour in the `driver` file.
pub fn flavour(text: &str) -> Result<String, Complaint> {
    let flavour = text.lines().find_map(|line| line.strip_prefix("flavour "));
    flavour.map(str::to_owned).ok_or_else(|| format!("no flavour in {text:?}"))
}

/// Reads the `accounting` file.
pub fn accounting(text: &str) -> Result<Accounting, Complaint> {
    text.lines()
        .map(|line| {
            let (name, value) = line.split_once(' ').ok_or_else(|| format!("no value in line {line:?}"))?;
            Ok((name.to_owned(), number(value, line)?))
        })
        .collect::<Result<_, _>>()
        .map(Accounting)
}

/// A hold point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldState {
    /// The hold point's name.
    pub name: String,
    /// 1 if the next arrival will be stopped, otherwise 0.
    pub armed: u64,
    /// The number of threads that stand there now.
    pub waiting: u64,
    /// The number of arrivals since it was armed.
    pub arrived: u64,
}

/// Reads the `holds` file.
pub fn holds(text: &str) -> Result<Vec<HoldState>, Complaint> {
    text.lines()
        .map(|line| match line.split(' ').collect::<Vec<_>>()[..] {
            [name, armed, waiting, arrived] => Ok(HoldState {
                name: name.to_owned(),
                armed: number(armed, line)?,
                waiting: number(waiting, line)?,
                arrived: number(arrived, line)?,
            }),
            _ => Err(format!("not four words in line {line:?}")),
        })
        .collect()
}

/// The state of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Its owner has it.
    Live,
    /// Its owner has freed it, but a persistent pin holds it.
    Kept,
    /// Its memory was given back.
    Freed,
}

/// A line of the allocation log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// The handle. Handles grow and are never used again.
    pub id: u64,
    /// The thread group id of the allocating process.
    pub pid: u32,
    /// The name of the allocating thread, with underscores for spaces.
    pub comm: String,
    /// The number of the GPU.
    pub gpu: u32,
    /// The GPU address.
    pub va: u64,
    /// The number of bytes that were asked for.
    pub size: u64,
    /// The number of bytes of memory behind it.
    pub backing: u64,
    /// The layout: `NVLAB_LAYOUT_*`.
    pub layout: u32,
    /// The allocation's state.
    pub state: State,
    /// The CRC-32 of its bytes after the first pattern was written.
    pub crc_alloc: Option<u32>,
    /// The CRC-32 of its bytes when it was given back.
    pub crc_free: Option<u32>,
}

/// Reads the `allocations` file.
pub fn allocations(text: &str) -> Result<Vec<Allocation>, Complaint> {
    text.lines()
        .map(|line| {
            let f = Fields::new(line)?;
            Ok(Allocation {
                id: f.number("id")?,
                pid: f.number("pid")?,
                comm: f.text("comm")?.to_owned(),
                gpu: f.number("gpu")?,
                va: f.number("va")?,
                size: f.number("size")?,
                backing: f.number("backing")?,
                layout: f.number("layout")?,
                state: match f.text("state")? {
                    "live" => State::Live,
                    "kept" => State::Kept,
                    "freed" => State::Freed,
                    other => return Err(format!("unknown state {other:?} in line {line:?}")),
                },
                crc_alloc: f.crc("crc_alloc")?,
                crc_free: f.crc("crc_free")?,
            })
        })
        .collect()
}

/// The CRCs of one 64 KiB chunk of an allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// The allocation.
    pub id: u64,
    /// The number of the chunk in the allocation.
    pub chunk: u32,
    /// The CRC after the first pattern was written.
    pub crc_alloc: Option<u32>,
    /// The CRC when the allocation was given back.
    pub crc_free: Option<u32>,
}

/// Reads the `chunks` file.
pub fn chunks(text: &str) -> Result<Vec<Chunk>, Complaint> {
    text.lines()
        .map(|line| {
            let f = Fields::new(line)?;
            Ok(Chunk {
                id: f.number("id")?,
                chunk: f.number("chunk")?,
                crc_alloc: f.crc("crc_alloc")?,
                crc_free: f.crc("crc_free")?,
            })
        })
        .collect()
}

/// A live pin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinLine {
    /// Whether the pin has no free callback.
    pub persistent: bool,
    /// The thread group id of the pinner.
    pub pid: u32,
    /// The number of the GPU.
    pub gpu: u32,
    /// The first address.
    pub va: u64,
    /// The number of bytes.
    pub len: u64,
    /// The number of entries that the table should have.
    pub entries: u32,
    /// The number of DMA mappings of the pin.
    pub mappings: u32,
    /// The table's kernel address, by which the provider knows the pin.
    pub table: u64,
    /// Whether the free callback is registered.
    pub armed: bool,
}

/// Reads the `pins` file.
pub fn pins(text: &str) -> Result<Vec<PinLine>, Complaint> {
    text.lines()
        .map(|line| {
            let f = Fields::new(line)?;
            Ok(PinLine {
                persistent: f.persistent()?,
                pid: f.number("pid")?,
                gpu: f.number("gpu")?,
                va: f.number("va")?,
                len: f.number("len")?,
                entries: f.number("entries")?,
                mappings: f.number("mappings")?,
                table: f.number("table")?,
                armed: f.number::<u32>("armed")? != 0,
            })
        })
        .collect()
}

/// 64 KiB of BAR1, and the memory that an extent maps there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BarPage {
    /// The number of the GPU.
    pub gpu: u32,
    /// The physical address in the BAR.
    pub bar: u64,
    /// The allocation.
    pub id: u64,
    /// The number of the page in the allocation.
    pub page: u64,
    /// The number of the page in video memory.
    pub video: u64,
}

/// Reads the `bar1` file.
pub fn bar1(text: &str) -> Result<Vec<BarPage>, Complaint> {
    text.lines()
        .map(|line| {
            let f = Fields::new(line)?;
            Ok(BarPage {
                gpu: f.number("gpu")?,
                bar: f.number("bar")?,
                id: f.number("id")?,
                page: f.number("page")?,
                video: f.number("video")?,
            })
        })
        .collect()
}

/// Parses a decimal number, or a hexadecimal one with 0x.
fn number<T: TryFrom<i128>>(word: &str, line: &str) -> Result<T, Complaint> {
    let n = match word.strip_prefix("0x") {
        Some(hex) => i128::from_str_radix(hex, 16),
        None => word.parse(),
    };
    n.ok().and_then(|n| T::try_from(n).ok()).ok_or_else(|| format!("{word:?} is no number that fits, in line {line:?}"))
}

/// A line of `key=value` words.
struct Fields<'a> {
    line: &'a str,
    map: BTreeMap<&'a str, &'a str>,
}

impl<'a> Fields<'a> {
    fn new(line: &'a str) -> Result<Self, Complaint> {
        let map = line
            .split_whitespace()
            .map(|w| w.split_once('=').ok_or_else(|| format!("word {w:?} without = in line {line:?}")))
            .collect::<Result<_, _>>()?;
        Ok(Self { line, map })
    }

    fn text(&self, key: &str) -> Result<&'a str, Complaint> {
        self.map.get(key).copied().ok_or_else(|| format!("no {key}= in line {:?}", self.line))
    }

    fn number<T: TryFrom<i128>>(&self, key: &str) -> Result<T, Complaint> {
        number(self.text(key)?, self.line)
    }

    fn persistent(&self) -> Result<bool, Complaint> {
        match self.text("kind")? {
            "persistent" => Ok(true),
            "revocable" => Ok(false),
            other => Err(format!("unknown kind {other:?} in line {:?}", self.line)),
        }
    }

    fn crc(&self, key: &str) -> Result<Option<u32>, Complaint> {
        match self.text(key)? {
            "-" => Ok(None),
            hex => u32::from_str_radix(hex, 16)
                .map(Some)
                .map_err(|_| format!("{hex:?} is no CRC, in line {:?}", self.line)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounting_is_dirty_by_name() {
        let clean: String = Accounting::CLEAN.iter().map(|n| format!("{n} 0\n")).collect();
        let b = accounting(&(clean.clone() + "gets 7\n")).unwrap();
        assert!(b.is_clean());
        assert_eq!(b.get("gets"), 7);
        let b = accounting(&clean.replace("live_pins 0", "live_pins -3")).unwrap();
        assert_eq!(b.dirt(), ["live_pins=-3"]);
    }

    #[test]
    #[should_panic(expected = "no line \"live_pnis\"")]
    fn a_wrong_name_is_no_zero() {
        let _ = accounting("live_pins 0\n").unwrap().get("live_pnis");
    }

    #[test]
    fn an_allocation_without_and_with_crc() {
        let line = "id=7 pid=123 comm=ib_write_bw gpu=0 va=0x7f0000200000 size=131072 \
                    backing=2097152 layout=1 state=kept crc_alloc=1a2b3c4d crc_free=-\n";
        let a = &allocations(line).unwrap()[0];
        assert_eq!((a.id, a.pid, a.va), (7, 123, 0x7f00_0020_0000));
        assert_eq!(a.state, State::Kept);
        assert_eq!((a.crc_alloc, a.crc_free), (Some(0x1a2b_3c4d), None));
    }

    #[test]
    fn a_pin_line() {
        let line = "kind=revocable pid=1 gpu=0 va=0x200000 len=65536 entries=1 mappings=2 \
                    table=0xffff888012345678 armed=1\n";
        let p = &pins(line).unwrap()[0];
        assert!(!p.persistent && p.armed);
        assert_eq!(p.table, 0xffff_8880_1234_5678);
        assert_eq!(p.mappings, 2);
    }

    #[test]
    fn complaints_name_the_line() {
        for (text, want) in [
            ("kind=odd pid=1", "unknown kind \"odd\""),
            ("kind=revocable pid=-1", "\"-1\" is no number"),
            ("kind revocable", "without ="),
            ("kind=revocable", "no pid="),
        ] {
            let e = pins(text).unwrap_err();
            assert!(e.contains(want) && e.contains(text), "{e}");
        }
        assert!(holds("a 1 2").unwrap_err().contains("not four words"));
        assert!(accounting("live").unwrap_err().contains("no value"));
    }
}
