// SPDX-License-Identifier: GPL-2.0

//! Runs independent jobs side by side on a few lanes, beginning with the longest.

use anyhow::Result;
use lab::ktap::{print_test, Counts, Test};
use lab::sh::{human, say};
use serde::Serialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::mpsc::{channel, RecvTimeoutError};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// The longest time for which a watching person hears nothing.
const HEARTBEAT: Duration = Duration::from_secs(30);

/// The results of a job.
#[derive(Default, Serialize)]
pub struct Found {
    pub tests: Vec<Test>,
    /// The guest's result rows, by name.
    pub json: BTreeMap<String, Vec<Value>>,
    /// NVIDIA's parts in the machines (parts.rs).
    pub nvidia: BTreeSet<String>,
}

impl From<Vec<Test>> for Found {
    fn from(tests: Vec<Test>) -> Self {
        Found { tests, ..Found::default() }
    }
}

impl Found {
    /// Returns the result of a job that was skipped, and prints why.
    pub fn skipped(name: impl Into<String>, why: &str) -> Self {
        let test = Test::skipped(name, why);
        print_test(&test);
        vec![test].into()
    }
}

pub struct Job<'a> {
    pub name: String,
    /// The job's rough duration in seconds.
    pub takes: u64,
    pub run: Box<dyn FnOnce() -> Result<Found> + Send + 'a>,
}

impl<'a> Job<'a> {
    pub fn new(name: impl Into<String>, takes: u64, run: impl FnOnce() -> Result<Found> + Send + 'a) -> Self {
        Job { name: name.into(), takes, run: Box::new(run) }
    }
}

#[derive(Serialize)]
pub struct Done {
    pub name: String,
    pub seconds: u64,
    #[serde(flatten)]
    pub found: Found,
}

impl Done {
    pub fn counts(&self) -> Counts {
        Counts::of(&self.found.tests)
    }
}

/// Returns the number of lanes: as many as there are processors, but at most two, because a boot may
/// be emulated by two threads and the tests of this machine use all processors.
fn lanes() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(2)
}

/// Runs all jobs, even if some fail, and returns their results in the order of `jobs`. A job that
/// could not be done counts as a failed test. `ended` is called for each job as soon as it ends.
pub fn run(jobs: Vec<Job>, ended: impl FnMut(&Done)) -> Vec<Done> {
    run_on(lanes(), jobs, ended)
}

fn run_on(lanes: usize, jobs: Vec<Job>, mut ended: impl FnMut(&Done)) -> Vec<Done> {
    let mut queue: Vec<(usize, Job)> = jobs.into_iter().enumerate().collect();
    let total = queue.len();
    queue.sort_by_key(|(_, job)| std::cmp::Reverse(job.takes));
    let queue = Mutex::new(VecDeque::from(queue));
    let at_it: Mutex<BTreeMap<usize, (String, Instant)>> = Mutex::default();
    let next = || queue.lock().unwrap_or_else(|e| e.into_inner()).pop_front();
    let mut done: Vec<(usize, Done)> = Vec::new();
    std::thread::scope(|scope| {
        let (to, results) = channel();
        for _ in 0..lanes.clamp(1, total.max(1)) {
            let (to, next, at_it) = (to.clone(), &next, &at_it);
            scope.spawn(move || {
                while let Some((number, job)) = next() {
                    let start = Instant::now();
                    at_it.lock().unwrap_or_else(|e| e.into_inner()).insert(number, (job.name.clone(), start));
                    let found = (job.run)().unwrap_or_else(|e| could_not(&job.name, &e));
                    at_it.lock().unwrap_or_else(|e| e.into_inner()).remove(&number);
                    let done = Done { name: job.name, seconds: start.elapsed().as_secs(), found };
                    if to.send((number, done)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(to);
        loop {
            match results.recv_timeout(HEARTBEAT) {
                Ok((number, one)) => {
                    let Counts { passed, failed, .. } = one.counts();
                    let verdict = if failed == 0 { String::new() } else { format!(", {failed} FAILED") };
                    let (name, took, count) = (&one.name, human(Duration::from_secs(one.seconds)), done.len() + 1);
                    say(&format!("  {name}: {passed} passed{verdict}, {took} ({count} of {total} jobs done)"));
                    ended(&one);
                    done.push((number, one));
                }
                Err(RecvTimeoutError::Timeout) => {
                    let at_it = at_it.lock().unwrap_or_else(|e| e.into_inner());
                    let now: Vec<String> =
                        at_it.values().map(|(name, since)| format!("{name} {}", human(since.elapsed()))).collect();
                    say(&format!("  at it: {} ({} of {total} jobs done)", now.join(", "), done.len()));
                }
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
    });
    done.sort_by_key(|(number, _)| *number);
    done.into_iter().map(|(_, one)| one).collect()
}

/// Counts all tests, and prints the failed ones once more.
pub fn count(done: &[Done]) -> Counts {
    let tests = || done.iter().flat_map(|one| &one.found.tests);
    let counts = Counts::of(tests());
    if counts.failed > 0 {
        println!("\nfailed:");
        tests().filter(|test| test.has_failed()).for_each(|test| println!("  {}", test.name));
    }
    if counts.skipped > 0 {
        println!("{} skipped", counts.skipped);
    }
    counts
}

fn could_not(name: &str, error: &anyhow::Error) -> Found {
    let test = Test::failed(format!("{name}: could not be run"), format!("{error:#}"));
    print_test(&test);
    vec![test].into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::bail;
    use std::sync::{Arc, Barrier};

    #[test]
    fn two_lanes_run_beside_each_other_and_the_order_stays() {
        let meet = Arc::new(Barrier::new(2));
        let jobs = (0..4)
            .map(|i| {
                let meet = meet.clone();
                Job::new(format!("job{i}"), 10 - i, move || {
                    meet.wait();
                    Ok(Found::default())
                })
            })
            .collect();
        let names: Vec<String> = run_on(2, jobs, |_| ()).into_iter().map(|d| d.name).collect();
        assert_eq!(names, ["job0", "job1", "job2", "job3"]);
    }

    #[test]
    fn the_longest_start_first() {
        let order = Mutex::new(Vec::new());
        let jobs = [("short", 1), ("long", 100), ("middle", 50)]
            .map(|(name, takes)| {
                let order = &order;
                Job::new(name, takes, move || {
                    order.lock().unwrap().push(name);
                    Ok(Found::default())
                })
            })
            .into();
        run_on(1, jobs, |_| ());
        assert_eq!(order.into_inner().unwrap(), ["long", "middle", "short"]);
    }

    #[test]
    fn what_cannot_be_run_is_a_failure_and_the_rest_goes_on() {
        let mut heard = 0;
        let jobs = vec![Job::new("a", 1, || bail!("no such file")), Job::new("b", 1, || Ok(Found::default()))];
        let done = run_on(1, jobs, |_| heard += 1);
        assert_eq!((done.len(), heard), (2, 2));
        assert_eq!(done.iter().map(|done| done.counts().failed).collect::<Vec<_>>(), [1, 0]);
        assert!(done[0].found.tests[0].notes[0].contains("no such file"));
    }
}
