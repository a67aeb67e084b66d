//! Sums of counters, and differences between two snapshots.

use super::{
    Counts, ErrorCounts, OperationCounts, PreloadCounts, ReasonCounts, Snapshot, Source, SourceKind,
};

impl Counts {
    /// Returns the sum of both.
    pub fn plus(&self, other: &Counts) -> Counts {
        self.with(other, u64::wrapping_add)
    }

    /// Returns the difference to `earlier`, with the current values of the gauges.
    pub fn since(&self, earlier: &Counts) -> Counts {
        Counts {
            in_flight: self.in_flight,
            pool_held: self.pool_held,
            ..self.with(earlier, u64::saturating_sub)
        }
    }
}

impl PreloadCounts {
    fn add(&mut self, other: &PreloadCounts) {
        add_reasons(&mut self.passed, &other.passed);
        add_reasons(&mut self.handed_back, &other.handed_back);
        add_reasons(&mut self.listeners_left, &other.listeners_left);
        self.rings = self.rings.wrapping_add(other.rings);
        self.connections = self.connections.wrapping_add(other.connections);
        self.buffers = self.buffers.wrapping_add(other.buffers);
        self.buffers_free = self.buffers_free.wrapping_add(other.buffers_free);
    }

    fn since(&self, earlier: &PreloadCounts) -> PreloadCounts {
        PreloadCounts {
            passed: reasons_since(&self.passed, &earlier.passed),
            handed_back: reasons_since(&self.handed_back, &earlier.handed_back),
            listeners_left: reasons_since(&self.listeners_left, &earlier.listeners_left),
            rings: self.rings,
            connections: self.connections,
            buffers: self.buffers,
            buffers_free: self.buffers_free,
        }
    }
}

fn add_reasons(own: &mut Vec<ReasonCounts>, others: &[ReasonCounts]) {
    for other in others {
        match own.iter_mut().find(|own| own.reason == other.reason) {
            Some(own) => own.count = own.count.saturating_add(other.count),
            None => own.push(*other),
        }
    }
}

fn reasons_since(now: &[ReasonCounts], earlier: &[ReasonCounts]) -> Vec<ReasonCounts> {
    let grown = now.iter().map(|now| {
        let then = earlier.iter().find(|then| then.reason == now.reason);
        ReasonCounts {
            reason: now.reason,
            count: now.count.saturating_sub(then.map_or(0, |then| then.count)),
        }
    });
    grown.filter(|grown| grown.count > 0).collect()
}

impl OperationCounts {
    fn add(&mut self, other: &OperationCounts) {
        self.completed = self.completed.saturating_add(other.completed);
        self.failed = self.failed.saturating_add(other.failed);
        self.latency.add(&other.latency);
        self.queue.add(&other.queue);
        self.device.add(&other.device);
    }

    fn since(&self, earlier: &OperationCounts) -> OperationCounts {
        OperationCounts {
            name: self.name,
            completed: self.completed.saturating_sub(earlier.completed),
            failed: self.failed.saturating_sub(earlier.failed),
            latency: self.latency.since(&earlier.latency),
            queue: self.queue.since(&earlier.queue),
            device: self.device.since(&earlier.device),
        }
    }
}

impl Source {
    /// Adds the counters of `other`. Its kind, owner and index are not kept.
    pub fn add(&mut self, other: &Source) {
        self.counters = self.counters.plus(&other.counters);
        for operation in &other.operations {
            let own = self
                .operations
                .iter_mut()
                .find(|own| own.name == operation.name);
            match own {
                Some(own) => own.add(operation),
                None => self.operations.push(operation.clone()),
            }
        }
        for error in &other.errors {
            match self.errors.iter_mut().find(|own| own.errno == error.errno) {
                Some(own) => own.count = own.count.saturating_add(error.count),
                None => self.errors.push(*error),
            }
        }
        self.errors
            .sort_by_key(|error| std::cmp::Reverse(error.count));
        self.preload.add(&other.preload);
    }

    fn is(&self, other: &Source) -> bool {
        (self.kind, self.owner, self.index) == (other.kind, other.owner, other.index)
    }

    fn since(&self, earlier: &Source) -> Source {
        let operation = |now: &OperationCounts| match earlier.operation(now.name) {
            Some(then) => now.since(then),
            None => now.clone(),
        };
        let error = |now: &ErrorCounts| {
            let then = earlier.errors.iter().find(|then| then.errno == now.errno);
            ErrorCounts {
                errno: now.errno,
                count: now.count.saturating_sub(then.map_or(0, |then| then.count)),
            }
        };
        let errors = self.errors.iter().map(error);
        Source {
            counters: self.counters.since(&earlier.counters),
            operations: self.operations.iter().map(operation).collect(),
            errors: errors.filter(|error| error.count > 0).collect(),
            preload: self.preload.since(&earlier.preload),
            ..self.clone()
        }
    }
}

impl Snapshot {
    /// Returns the sum of all sources.
    ///
    /// The sum over all engines and runtimes of the process. `in_flight` is a gauge, and 0 when nothing runs:
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// use annulus::{Engine, metrics};
    ///
    /// let (one, other) = (Engine::new()?, Engine::new()?);
    /// one.nop().await?;
    /// other.nop().await?;
    /// let counters = metrics::snapshot().total().counters;
    /// assert_eq!((counters.completed, counters.in_flight), (2, 0));
    /// # Ok(()) }) }
    /// ```
    pub fn total(&self) -> Source {
        let mut total = Source::default();
        for source in &self.sources {
            total.add(source);
        }
        total
    }

    /// Returns the difference to `earlier`, a snapshot of the same process.
    ///
    /// If a source ended between the two, its last counts are part of the ended source.
    ///
    /// The time between the two gives a rate:
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// use annulus::metrics;
    ///
    /// let engine = annulus::Engine::new()?;
    /// let before = metrics::snapshot();
    /// engine.nop().await?;
    /// let now = metrics::snapshot();
    /// let seconds = (now.at_ns - before.at_ns) as f64 / 1e9;
    /// let completed = now.since(&before).total().counters.completed;
    /// println!("{} operations/s", completed as f64 / seconds);
    /// assert_eq!(completed, 1);
    /// # Ok(()) }) }
    /// ```
    pub fn since(&self, earlier: &Snapshot) -> Snapshot {
        let source = |now: &Source| match earlier.sources.iter().find(|then| then.is(now)) {
            Some(then) if now.kind == SourceKind::Ended => now.since(&gone(then, self, earlier)),
            Some(then) => now.since(then),
            None if now.kind == SourceKind::Ended => {
                now.since(&gone(&Source::default(), self, earlier))
            }
            None => now.clone(),
        };
        Snapshot {
            sources: self.sources.iter().map(source).collect(),
            ..self.clone()
        }
    }
}

/// Returns the counts in `earlier` of all sources that had ended by the time of `now`.
fn gone(ended: &Source, now: &Snapshot, earlier: &Snapshot) -> Source {
    let mut gone = ended.clone();
    for source in &earlier.sources {
        let ended_since = !now.sources.iter().any(|still| still.is(source));
        if source.kind != SourceKind::Ended && ended_since {
            gone.add(source);
        }
    }
    gone
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(kind: SourceKind, index: u32, submitted: u64, errors: &[(i32, u64)]) -> Source {
        let errors = errors.iter();
        Source {
            kind,
            owner: u64::from(kind != SourceKind::Ended),
            index,
            counters: Counts {
                submitted,
                in_flight: 3,
                ..Counts::default()
            },
            errors: errors
                .map(|&(errno, count)| ErrorCounts { errno, count })
                .collect(),
            ..Source::default()
        }
    }

    fn snapshot(sources: &[Source]) -> Snapshot {
        Snapshot {
            sources: sources.to_vec(),
            ..Snapshot::default()
        }
    }

    #[test]
    fn counts_of_an_ended_source_are_neither_lost_nor_counted_twice() {
        let earlier = snapshot(&[
            source(SourceKind::Driver, 0, 100, &[(5, 2)]),
            source(SourceKind::Driver, 1, 50, &[]),
        ]);
        let now = snapshot(&[
            source(SourceKind::Driver, 1, 60, &[(28, 1)]),
            source(SourceKind::Ended, 0, 130, &[(5, 3)]),
        ]);
        let between = now.since(&earlier);
        let done: Vec<u64> = (between.sources.iter())
            .map(|source| source.counters.submitted)
            .collect();
        assert_eq!(done, [10, 30]);
        assert_eq!(
            between.sources[1].errors,
            [ErrorCounts { errno: 5, count: 1 }]
        );
        let total = between.total();
        assert_eq!(
            (total.counters.submitted, total.counters.in_flight),
            (40, 6)
        );
        assert_eq!(total.errors.len(), 2);
    }
}
