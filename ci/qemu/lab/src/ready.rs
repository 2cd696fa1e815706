//! What boots need, each built once: kernels with their parts, and images.

use crate::axes::{Also as More, Module};
use crate::boots::Row;
use crate::ctx::Lab;
use crate::fetch::{self, Sources};
use crate::image;
use crate::kernel::{self, Flavour, Kernel};
use crate::parts::{self, Parts};
use anyhow::{bail, Result};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, OnceLock};

/// Everything that is built before an image is made of it.
pub struct Ready {
    pub sources: Sources,
    pub kernel: Kernel,
    pub parts: Parts,
}

pub fn prepare(lab: &Lab, flavour: Flavour) -> Result<Ready> {
    let sources = fetch::all(lab, flavour)?;
    let kernel = kernel::build(lab, &sources.linux, flavour)?;
    let parts = parts::build(lab, &sources, &kernel)?;
    Ok(Ready { sources, kernel, parts })
}

/// Which image: its module, and what else is in it.
pub type Kind = (Module, More);

impl Ready {
    /// An image of this kind; what only it needs is built now.
    pub fn image(&self, lab: &Lab, kind: Kind) -> Result<PathBuf> {
        let (module, more) = kind;
        let parts = parts::with(lab, &self.sources, &self.kernel, &self.parts, kind)?;
        image::build(lab, &self.kernel, &parts, module, more)
    }

    /// An image of each of these kinds, each made once.
    pub fn images(&self, lab: &Lab, kinds: impl Iterator<Item = Kind>) -> Result<BTreeMap<Kind, PathBuf>> {
        let kinds: BTreeSet<Kind> = kinds.collect();
        kinds.into_iter().map(|kind| Ok((kind, self.image(lab, kind)?))).collect()
    }
}

/// Of some rows of the table: each kernel, and each kernel's images.
pub struct Images {
    ready: BTreeMap<Flavour, Ready>,
    images: BTreeMap<Flavour, BTreeMap<Kind, PathBuf>>,
}

impl Images {
    pub fn of<'r>(lab: &Lab, rows: impl Iterator<Item = &'r Row>) -> Result<Self> {
        let mut kinds: BTreeMap<Flavour, Vec<Kind>> = BTreeMap::new();
        for row in rows {
            kinds.entry(row.kernel).or_default().push(row.image());
        }
        let mut all = Images { ready: BTreeMap::new(), images: BTreeMap::new() };
        for (flavour, kinds) in kinds {
            all.build(lab, flavour)?;
            let images = all.ready(flavour).images(lab, kinds.into_iter())?;
            all.images.insert(flavour, images);
        }
        Ok(all)
    }

    /// A kernel that is to be there whether a row needs it or not.
    pub fn build(&mut self, lab: &Lab, flavour: Flavour) -> Result<()> {
        if let Entry::Vacant(place) = self.ready.entry(flavour) {
            place.insert(prepare(lab, flavour)?);
        }
        Ok(())
    }

    /// What was built for a kernel: of a row or by `build()`.
    pub fn ready(&self, flavour: Flavour) -> &Ready {
        &self.ready[&flavour]
    }

    /// The kernel and the image of a row that was among those of `of()`.
    pub fn get(&self, row: &Row) -> (&Kernel, &Path) {
        (&self.ready(row.kernel).kernel, &self.images[&row.kernel][&row.image()])
    }
}

/// What is being built while others wait for it.
pub struct Later<T> {
    built: OnceLock<Result<T, String>>,
    waiting: Mutex<()>,
    told: Condvar,
}

impl<T> Default for Later<T> {
    fn default() -> Self {
        Later { built: OnceLock::new(), waiting: Mutex::default(), told: Condvar::new() }
    }
}

impl<T> Later<T> {
    /// Whoever waits goes on. What was told first stays.
    pub fn tell(&self, built: Result<T>) {
        let _guard = self.waiting.lock().unwrap_or_else(|e| e.into_inner());
        let _ = self.built.set(built.map_err(|e| format!("{e:#}")));
        self.told.notify_all();
    }

    /// It could not be built: who builds something else need not go on.
    pub fn failed(&self) -> bool {
        self.built.get().is_some_and(Result::is_err)
    }

    /// Sleeps until it is there, or could not be built.
    pub fn wait(&self) -> Result<&T> {
        let guard = self.waiting.lock().unwrap_or_else(|e| e.into_inner());
        drop(self.told.wait_while(guard, |()| self.built.get().is_none()).unwrap_or_else(|e| e.into_inner()));
        match self.built.get() {
            Some(Ok(built)) => Ok(built),
            Some(Err(why)) => bail!("it was not built: {why}"),
            None => bail!("it was not built"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;
    use std::time::Duration;

    #[test]
    fn whoever_waits_gets_what_was_built_or_why_not() {
        let (good, bad) = (Later::default(), Later::<u32>::default());
        thread::scope(|scope| {
            let early = scope.spawn(|| *good.wait().unwrap());
            thread::sleep(Duration::from_millis(20));
            assert!(!good.failed() && !bad.failed());
            good.tell(Ok(17));
            bad.tell(Err(anyhow::anyhow!("no compiler")));
            assert_eq!(early.join().unwrap(), 17);
        });
        assert_eq!(*good.wait().unwrap(), 17);
        assert!(!good.failed() && bad.failed());
        assert!(bad.wait().unwrap_err().to_string().contains("no compiler"));
    }
}
