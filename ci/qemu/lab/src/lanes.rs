//! Jobs that do not need one another, on a few lanes beside each other, the longest first.

use anyhow::Result;
use lab::ktap::{print_test, Outcome, Test};
use lab::sh::{human, say};
use serde_json::Value;
use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::{channel, RecvTimeoutError};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// A person who watches hears of it at least so often.
const HEARTBEAT: Duration = Duration::from_secs(30);

/// What a job found out.
#[derive(Default)]
pub struct Found {
    pub tests: Vec<Test>,
    /// Result rows, by name.
    pub json: BTreeMap<String, Vec<Value>>,
}

pub struct Job<'a> {
    pub name: String,
    /// Seconds, roughly.
    pub takes: u64,
    pub run: Box<dyn FnOnce() -> Result<Found> + Send + 'a>,
}

pub struct Done {
    pub name: String,
    pub seconds: u64,
    pub found: Found,
}

impl Done {
    pub fn count(&self, want: impl Fn(&Outcome) -> bool) -> usize {
        self.found.tests.iter().filter(|t| want(&t.outcome)).count()
    }
}

/// As many as there are processors, but a boot is emulated by two threads and tests of this machine
/// use all: two are enough.
pub fn default() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(2)
}

/// Runs all of them, whatever becomes of each; what ended, in the order of `jobs`. A job that could
/// not be done is a failed test. `ended` is told of each at once.
pub fn run(jobs: Vec<Job>, lanes: usize, mut ended: impl FnMut(&Done)) -> Vec<Done> {
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
                    let failed = one.count(|o| *o == Outcome::Failed);
                    let verdict = if failed == 0 { String::new() } else { format!(", {failed} FAILED") };
                    say(&format!(
                        "  {}: {} passed{verdict}, {} ({} of {total} jobs done)",
                        one.name,
                        one.count(|o| *o == Outcome::Passed),
                        human(Duration::from_secs(one.seconds)),
                        done.len() + 1
                    ));
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

fn could_not(name: &str, error: &anyhow::Error) -> Found {
    let test =
        Test { name: format!("{name}: could not be run"), outcome: Outcome::Failed, notes: vec![format!("{error:#}")] };
    print_test(&test);
    Found { tests: vec![test], ..Default::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::bail;
    use std::sync::{Arc, Barrier};

    fn job<'a>(name: &str, takes: u64, run: impl FnOnce() -> Result<Found> + Send + 'a) -> Job<'a> {
        Job { name: name.to_string(), takes, run: Box::new(run) }
    }

    #[test]
    fn two_lanes_run_beside_each_other_and_the_order_stays() {
        let meet = Arc::new(Barrier::new(2));
        let jobs = (0..4)
            .map(|i| {
                let meet = meet.clone();
                job(&format!("job{i}"), 10 - i, move || {
                    meet.wait();
                    Ok(Found::default())
                })
            })
            .collect();
        let names: Vec<String> = run(jobs, 2, |_| ()).into_iter().map(|d| d.name).collect();
        assert_eq!(names, ["job0", "job1", "job2", "job3"]);
    }

    #[test]
    fn the_longest_start_first() {
        let order = Mutex::new(Vec::new());
        let jobs = [("short", 1), ("long", 100), ("middle", 50)]
            .map(|(name, takes)| {
                let order = &order;
                job(name, takes, move || {
                    order.lock().unwrap().push(name);
                    Ok(Found::default())
                })
            })
            .into();
        run(jobs, 1, |_| ());
        assert_eq!(order.into_inner().unwrap(), ["long", "middle", "short"]);
    }

    #[test]
    fn what_cannot_be_run_is_a_failure_and_the_rest_goes_on() {
        let mut told = 0;
        let jobs = vec![job("a", 1, || bail!("no such file")), job("b", 1, || Ok(Found::default()))];
        let done = run(jobs, 1, |_| told += 1);
        assert_eq!((done.len(), told), (2, 2));
        assert_eq!(done[0].count(|o| *o == Outcome::Failed), 1);
        assert!(done[0].found.tests[0].notes[0].contains("no such file"));
        assert_eq!(done[1].count(|o| *o == Outcome::Failed), 0);
    }

    #[test]
    fn nothing_to_do_is_done_at_once() {
        assert!(run(Vec::new(), 2, |_| ()).is_empty());
    }
}
