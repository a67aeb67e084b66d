//! Looking at a process, again and again.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use annulus::metrics::Snapshot;
use annulus_observe::alert::{Alerts, Rule};

use super::process::Process;
use super::report::{AlertReport, ProcessFacts, Report};
use crate::fault::Fault;

/// Where snapshots come from.
pub(super) trait Observed {
    fn snapshot(&mut self) -> io::Result<Snapshot>;
    /// Whether it is still the process that was looked at first.
    fn lives(&self) -> bool;
    fn facts(&self) -> ProcessFacts;
    /// Whether it has been handed back to the kernel; `None`: it has no switch.
    fn is_released(&mut self) -> Option<bool> {
        None
    }
    /// Has it handed back, or served again.
    fn switch(&mut self, _released: bool) -> io::Result<()> {
        Ok(())
    }
}

/// What came of a look.
pub(super) enum Observation {
    Report(Box<Report>),
    /// The process has ended.
    Ended,
}

/// A process records latencies for 10 s after a look; in an interval that is longer it is looked at in between.
const RENEWED_AFTER: Duration = Duration::from_secs(5);

/// A process and the snapshot that the next one is compared with.
pub(super) struct Observer<L> {
    look: L,
    earlier: Snapshot,
    looked: Instant,
    alerts: Alerts,
}

impl Observer<Process> {
    pub(super) fn at(pid: u32, rules: &[Rule]) -> Result<Observer<Process>, Fault> {
        Observer::new(Process::find(pid)?, rules)
    }
}

impl<L: Observed> Observer<L> {
    pub(super) fn new(mut look: L, rules: &[Rule]) -> Result<Observer<L>, Fault> {
        let earlier = look.snapshot().map_err(refused)?;
        let mut alerts = Alerts::new(rules.iter().cloned());
        // The first is what the next one is compared with; nothing can be raised by it.
        alerts.look(&earlier);
        Ok(Observer {
            look,
            earlier,
            looked: Instant::now(),
            alerts,
        })
    }

    pub(super) fn facts(&self) -> ProcessFacts {
        self.look.facts()
    }

    /// As it is asked now.
    pub(super) fn is_released(&mut self) -> Option<bool> {
        self.look.is_released()
    }

    /// Asks it; what is shown then says what has come of it.
    pub(super) fn switch(&mut self, released: bool) -> io::Result<()> {
        self.look.switch(released)
    }

    /// What has happened since the last look.
    pub(super) fn look(&mut self) -> Result<Observation, Fault> {
        let facts = self.look.facts();
        self.looked = Instant::now();
        match self.look.snapshot() {
            Ok(now) => {
                let mut report = Report::between(facts, &self.earlier, &now);
                report.alerts = judged(&mut self.alerts, &now);
                self.earlier = now;
                Ok(Observation::Report(Box::new(report)))
            }
            Err(_) if !self.look.lives() => Ok(Observation::Ended),
            Err(error) => Err(refused(error)),
        }
    }

    /// The next look counts from now on.
    pub(super) fn begin_anew(&mut self) -> Result<(), Fault> {
        self.looked = Instant::now();
        match self.look.snapshot() {
            Ok(now) => {
                self.alerts.look(&now);
                self.earlier = now;
            }
            // The next look says so.
            Err(_) if !self.look.lives() => {}
            Err(error) => return Err(refused(error)),
        }
        Ok(())
    }

    /// Has the process go on recording latencies.
    pub(super) fn renew(&mut self) {
        if self.looked.elapsed() >= RENEWED_AFTER {
            self.looked = Instant::now();
            // If that is no longer possible, the look at the end of the interval says so.
            let _ = self.look.snapshot();
        }
    }

    /// Sleeps for an interval, or until the process ends.
    pub(super) fn wait(&mut self, interval: Duration) {
        const SLICE: Duration = Duration::from_millis(100);
        let until = Instant::now() + interval;
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            if left.is_zero() || !self.look.lives() {
                return;
            }
            self.renew();
            thread::sleep(left.min(SLICE));
        }
    }
}

/// All rules, with what was measured for those that were raised or cleared just now.
fn judged(alerts: &mut Alerts, now: &Snapshot) -> Vec<AlertReport> {
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
    use crate::top::corrupted;

    struct Counted(Rc<Cell<usize>>);

    impl Observed for Counted {
        fn snapshot(&mut self) -> io::Result<Snapshot> {
            self.0.set(self.0.get() + 1);
            Ok(corrupted::now())
        }
        fn lives(&self) -> bool {
            true
        }
        fn facts(&self) -> ProcessFacts {
            corrupted::facts()
        }
    }

    #[test]
    fn within_a_long_interval_the_process_is_looked_at_before_it_stops_to_record() {
        let looks = Rc::new(Cell::new(0));
        let mut looker = Observer::new(Counted(looks.clone()), &[]).ok().unwrap();
        looker.earlier = corrupted::earlier();
        looker.renew();
        assert_eq!(looks.get(), 1, "it has just been looked at");
        looker.looked = Instant::now().checked_sub(RENEWED_AFTER).unwrap();
        looker.renew();
        looker.renew();
        assert_eq!(looks.get(), 2);
        let Ok(Observation::Report(report)) = looker.look() else {
            panic!("the process lives");
        };
        let whole = report.total.rate("completed");
        assert_eq!(whole, 25_000.0, "rates are those of the whole interval");
    }
}
