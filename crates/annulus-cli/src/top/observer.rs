//! Observes a process at intervals.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use annulus::metrics::Snapshot;
use annulus_observe::alert::{Alerts, Rule};

use super::notes;
use super::process::Process;
use super::report::{AlertReport, ProcessFacts, Report};
use crate::fault::Fault;

/// A source of snapshots.
pub(super) trait Observed {
    fn snapshot(&mut self) -> io::Result<Snapshot>;
    /// Returns whether the process still exists.
    fn is_alive(&self) -> bool;
    fn facts(&self) -> ProcessFacts;
    /// Returns whether the process is released to the kernel; `None` if it has no switch.
    fn is_released(&mut self) -> Option<bool> {
        None
    }
    /// Requests the release of the process, or its resumption.
    fn switch(&mut self, _released: bool) -> io::Result<()> {
        Ok(())
    }
}

/// The result of an observation.
pub(super) enum Observation {
    Report(Box<Report>),
    /// The process has ended.
    Ended,
}

/// The age at which a snapshot is renewed within an interval. A process stops recording latencies 10 s after a
/// snapshot.
const RENEWED_AFTER: Duration = Duration::from_secs(5);

/// A process, and the snapshot at the start of the interval.
pub(super) struct Observer<L> {
    target: L,
    earlier: Snapshot,
    /// The time of the last snapshot.
    observed: Instant,
    alerts: Alerts,
}

impl Observer<Process> {
    pub(super) fn at(pid: u32, rules: &[Rule]) -> Result<Observer<Process>, Fault> {
        let mut process = Process::find(pid)?;
        if let Err(error) = process.snapshot()
            && error.kind() == io::ErrorKind::Unsupported
            && let Some(workers) = workers_of(&process.facts())
        {
            return Err(Fault::failed(workers));
        }
        Observer::new(process, rules)
    }
}

/// Returns a message that names the descendants that share their metrics, if the process itself does not.
fn workers_of(process: &ProcessFacts) -> Option<String> {
    let workers = Process::sharing_descendants(process.pid).ok()?;
    let first = workers.first()?.facts().pid;
    let list: Vec<String> = (workers.iter())
        .map(|worker| {
            let facts = worker.facts();
            format!("{} ({})", facts.pid, facts.command)
        })
        .collect();
    Some(format!(
        "process {} ({}) has no rings, but its child processes do: {}; show one of them: annulus top {first}",
        process.pid,
        process.command,
        list.join(", ")
    ))
}

impl<L: Observed> Observer<L> {
    pub(super) fn new(mut target: L, rules: &[Rule]) -> Result<Observer<L>, Fault> {
        let earlier = target.snapshot().map_err(refused)?;
        let mut alerts = Alerts::new(rules.iter().cloned());
        // The first snapshot is the base of the next one, and cannot raise an alert.
        alerts.look(&earlier);
        Ok(Observer {
            target,
            earlier,
            observed: Instant::now(),
            alerts,
        })
    }

    pub(super) fn facts(&self) -> ProcessFacts {
        self.target.facts()
    }

    /// Returns whether the process is released to the kernel; `None` if it has no switch.
    pub(super) fn is_released(&mut self) -> Option<bool> {
        self.target.is_released()
    }

    /// Requests the release of the process, or its resumption. Later reports show the effect.
    pub(super) fn switch(&mut self, released: bool) -> io::Result<()> {
        self.target.switch(released)
    }

    /// Ends the interval, and returns its report.
    pub(super) fn observe(&mut self) -> Result<Observation, Fault> {
        let facts = self.target.facts();
        self.observed = Instant::now();
        match self.target.snapshot() {
            Ok(now) => {
                let mut report = notes::report(facts, &self.earlier, &now);
                report.alerts = check_alerts(&mut self.alerts, &now);
                self.earlier = now;
                Ok(Observation::Report(Box::new(report)))
            }
            Err(_) if !self.target.is_alive() => Ok(Observation::Ended),
            Err(error) => Err(refused(error)),
        }
    }

    /// Starts a new interval.
    pub(super) fn restart(&mut self) -> Result<(), Fault> {
        self.observed = Instant::now();
        match self.target.snapshot() {
            Ok(now) => {
                self.alerts.look(&now);
                self.earlier = now;
            }
            // The next observation reports the end.
            Err(_) if !self.target.is_alive() => {}
            Err(error) => return Err(refused(error)),
        }
        Ok(())
    }

    /// Takes a snapshot if needed, so that the process continues to record latencies.
    pub(super) fn renew(&mut self) {
        if self.observed.elapsed() >= RENEWED_AFTER {
            self.observed = Instant::now();
            // The observation at the end of the interval reports an error.
            let _ = self.target.snapshot();
        }
    }

    /// Sleeps for an interval, or until the process ends.
    pub(super) fn wait(&mut self, interval: Duration) {
        const SLICE: Duration = Duration::from_millis(100);
        let until = Instant::now() + interval;
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            if left.is_zero() || !self.target.is_alive() {
                return;
            }
            self.renew();
            thread::sleep(left.min(SLICE));
        }
    }
}

/// Checks all rules. Returns their states, with the values of alerts that were raised or cleared.
fn check_alerts(alerts: &mut Alerts, now: &Snapshot) -> Vec<AlertReport> {
    let changes = alerts.look(now);
    let states = alerts.states().map(|state| {
        let change = changes.iter().find(|change| change.rule == state.rule);
        AlertReport {
            rule: state.rule.to_string(),
            raised: state.is_raised,
            measured: change.map(|change| change.value_text()),
        }
    });
    states.collect()
}

fn refused(error: io::Error) -> Fault {
    Fault::failed(error.to_string())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;
    use crate::top::snapshots_for_tests;

    struct Counted(Rc<Cell<usize>>);

    impl Observed for Counted {
        fn snapshot(&mut self) -> io::Result<Snapshot> {
            self.0.set(self.0.get() + 1);
            Ok(snapshots_for_tests::now())
        }
        fn is_alive(&self) -> bool {
            true
        }
        fn facts(&self) -> ProcessFacts {
            snapshots_for_tests::facts()
        }
    }

    #[test]
    fn a_long_interval_takes_further_snapshots_so_that_recording_continues() {
        let snapshots = Rc::new(Cell::new(0));
        let mut observer = Observer::new(Counted(snapshots.clone()), &[]).ok().unwrap();
        observer.earlier = snapshots_for_tests::earlier();
        observer.renew();
        assert_eq!(snapshots.get(), 1, "the snapshot is recent");
        observer.observed = Instant::now().checked_sub(RENEWED_AFTER).unwrap();
        observer.renew();
        observer.renew();
        assert_eq!(snapshots.get(), 2);
        let Ok(Observation::Report(report)) = observer.observe() else {
            panic!("the process exists");
        };
        let rate = report.total.rate("completed");
        assert_eq!(rate, 25_000.0, "rates cover the whole interval");
    }
}
