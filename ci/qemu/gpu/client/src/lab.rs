// SPDX-License-Identifier: GPL-2.0

//! debugfs `nvidia_lab`: lets a test see and steer the stand-in.

use crate::error::{Error, Result};
use crate::parse::{self, Accounting, Allocation, BarPage, Chunk, Complaint, HoldState, PinLine};
use std::path::PathBuf;
use std::time::{Duration, Instant};

const DIR: &str = "/sys/kernel/debug/nvidia_lab";

/// The debugfs files of the GPU stand-in.
#[derive(Clone, Debug)]
pub struct Lab {
    dir: PathBuf,
}

impl Lab {
    /// Finds debugfs, which must be mounted, with nvidia.ko loaded.
    pub fn open() -> Result<Self> {
        let lab = Self { dir: DIR.into() };
        lab.read("accounting")?;
        Ok(lab)
    }

    fn read(&self, file: &str) -> Result<String> {
        let path = self.dir.join(file);
        std::fs::read_to_string(&path).map_err(|e| Error::new(format!("reading {}", path.display()), e))
    }

    fn parsed<T>(&self, file: &str, how: impl FnOnce(&str) -> std::result::Result<T, Complaint>) -> Result<T> {
        how(&self.read(file)?).map_err(|why| Error::invalid(format!("{DIR}/{file}"), why))
    }

    fn write(&self, file: &str, command: &str) -> Result<()> {
        let path = self.dir.join(file);
        std::fs::write(&path, command).map_err(|e| Error::new(format!("writing {command:?} to {}", path.display()), e))
    }

    /// Returns the flavour of the driver: `nvidia` (its own front), `odd` or `closed`.
    pub fn flavour(&self) -> Result<String> {
        self.parsed("driver", parse::flavour)
    }

    /// Returns gauges and counters.
    pub fn accounting(&self) -> Result<Accounting> {
        self.parsed("accounting", parse::accounting)
    }

    /// Sets the counters to zero, including violations. The gauges stay.
    pub fn reset_accounting(&self) -> Result<()> {
        self.write("accounting", "reset")
    }

    /// Shuts down each GPU that no pin holds open, as the driver does after its last program. This
    /// ends the pins whose put has failed, and forgets their tables.
    pub fn end_lost_pins(&self) -> Result<()> {
        self.write("accounting", "shut_down_idle")?;
        self.forget_leaked()
    }

    /// Ends the unbind of a GPU that waits for a persistent pin.
    pub fn end_unbind(&self) -> Result<()> {
        self.write("accounting", "forgive")
    }

    /// Takes the GPU lock for a moment, or until the hold point `gpu_busy` is released.
    pub fn use_gpu(&self) -> Result<()> {
        self.write("accounting", "use_gpu")
    }

    /// Resets `leaked_tables`, for tests that cannot unload nvidia.ko.
    pub fn forget_leaked(&self) -> Result<()> {
        self.write("accounting", "forget_leaked")
    }

    /// Changes a setting.
    pub fn set(&self, name: &str, value: u64) -> Result<()> {
        self.write("config", &format!("{name} {value}"))
    }

    /// Restores the default settings.
    pub fn reset_config(&self) -> Result<()> {
        self.write("config", "reset")
    }

    /// Changes a cost, in nanoseconds.
    pub fn cost(&self, name: &str, value: u64) -> Result<()> {
        self.write("cost", &format!("{name} {value}"))
    }

    /// Sets the costs to the time that a V100 takes to pin and unpin.
    pub fn cost_v100(&self) -> Result<()> {
        self.write("cost", "v100")
    }

    /// Sets all costs to zero.
    pub fn reset_cost(&self) -> Result<()> {
        self.write("cost", "reset")
    }

    /// Switches a fault on until it is switched off (value 0).
    pub fn fault(&self, name: &str, value: u64) -> Result<()> {
        self.write("faults", &format!("{name} {value}"))
    }

    /// Makes a fault strike `count` times.
    pub fn fault_n(&self, name: &str, value: u64, count: u64) -> Result<()> {
        self.write("faults", &format!("{name} {value} {count}"))
    }

    /// Switches all faults off.
    pub fn reset_faults(&self) -> Result<()> {
        self.write("faults", "reset")
    }

    /// Stops the next thread that comes to this hold point.
    pub fn arm(&self, name: &str) -> Result<Hold> {
        self.write("holds", &format!("arm {name}"))?;
        Ok(Hold { lab: self.clone(), name: name.to_owned(), released: false })
    }

    /// Returns the state of all hold points.
    pub fn holds(&self) -> Result<Vec<HoldState>> {
        self.parsed("holds", parse::holds)
    }

    /// Releases all threads at hold points.
    pub fn release_all(&self) -> Result<()> {
        self.write("holds", "release all")
    }

    /// Returns the last allocations, beginning with the oldest.
    pub fn allocations(&self) -> Result<Vec<Allocation>> {
        self.parsed("allocations", parse::allocations)
    }

    /// Returns the CRCs per 64 KiB of every allocation in the log.
    pub fn chunks(&self) -> Result<Vec<Chunk>> {
        self.parsed("chunks", parse::chunks)
    }

    /// Returns the live pins.
    pub fn pins(&self) -> Result<Vec<PinLine>> {
        self.parsed("pins", parse::pins)
    }

    /// Returns what BAR1 has mapped, one entry per 64 KiB.
    pub fn bar1(&self) -> Result<Vec<BarPage>> {
        self.parsed("bar1", parse::bar1)
    }
}

/// An armed hold point. Dropping it releases the tasks that stand there.
#[derive(Debug)]
pub struct Hold {
    lab: Lab,
    name: String,
    released: bool,
}

impl Hold {
    fn state(&self) -> Result<HoldState> {
        self.lab
            .holds()?
            .into_iter()
            .find(|h| h.name == self.name)
            .ok_or_else(|| Error::invalid(format!("{DIR}/holds"), format!("no {}", self.name)))
    }

    /// Waits until a thread stands there.
    pub fn wait(&self, timeout: Duration) -> Result<()> {
        let start = Instant::now();
        loop {
            let state = self.state()?;
            if state.waiting >= 1 {
                return Ok(());
            }
            if start.elapsed() >= timeout {
                return Err(Error::new(
                    format!("hold point {}", self.name),
                    std::io::Error::new(
                        std::io::ErrorKind::TimedOut,
                        format!("no thread came within {timeout:?}: {state:?}"),
                    ),
                ));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Releases all threads that stand there, and stops no further ones.
    pub fn release(mut self) -> Result<()> {
        self.let_go()
    }

    fn let_go(&mut self) -> Result<()> {
        self.released = true;
        self.lab.write("holds", &format!("release {}", self.name))
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if !self.released {
            // An error can be reported to nobody here. The hold ends by its own time limit then.
            let _ = self.let_go();
        }
    }
}
