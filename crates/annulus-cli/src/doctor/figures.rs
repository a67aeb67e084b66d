//! The measured figures: each is the median of several short samples.

use serde::Serialize;

use self::Measurement::*;
use crate::bench::spread::Spread;

/// The measurements, in the order of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Measurement {
    Enter,
    Nop1,
    Nop8,
    Nop32,
    CachedPread,
    CachedRing,
    CachedHop,
    DirectPread,
    DirectRing,
    DirectHop,
    DirectRing8,
    DirectRing32,
    DirectPlain32,
    EchoEpoll,
    EchoRing,
}

impl Measurement {
    /// All measurements, with their descriptions in the report.
    const NAMES: [(Measurement, &str); 15] = [
        (Enter, "io_uring_enter without work"),
        (Nop1, "a NOP, one per enter"),
        (Nop8, "a NOP, 8 per enter"),
        (Nop32, "a NOP, 32 per enter"),
        (CachedPread, "a cached 4 KiB read, pread"),
        (CachedRing, "a cached 4 KiB read, ring"),
        (CachedHop, "a cached 4 KiB read, blocking thread"),
        (DirectPread, "a direct 4 KiB read, pread"),
        (DirectRing, "a direct 4 KiB read, ring"),
        (DirectHop, "a direct 4 KiB read, blocking thread"),
        (DirectRing8, "a direct 4 KiB read, ring, 8 in flight"),
        (DirectRing32, "a direct 4 KiB read, ring, 32 in flight"),
        (DirectPlain32, "a direct 4 KiB read, ring, 32, unregistered"),
        (EchoEpoll, "64 bytes echoed on loopback, epoll"),
        (EchoRing, "64 bytes echoed on loopback, ring"),
    ];

    /// Returns all measurements, in the order of the report.
    pub(crate) fn all() -> impl ExactSizeIterator<Item = Measurement> {
        Measurement::NAMES.into_iter().map(|(what, _)| what)
    }

    /// Returns the description in the report.
    pub(crate) fn name(self) -> &'static str {
        Measurement::NAMES[self as usize].1
    }
}

/// The results of the measurement.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Figures {
    /// The duration of the measurement.
    pub(crate) seconds: f64,
    /// The number of samples of each figure.
    pub(crate) samples: usize,
    pub(crate) figures: Vec<Figure>,
    pub(crate) missing: Vec<Missing>,
    /// The file or device that reads were measured on.
    pub(crate) reads_on: Option<String>,
    /// The share of a processor that other processes used.
    pub(crate) others_busy: f64,
    /// The share of a processor that the hypervisor withheld.
    pub(crate) stolen: f64,
}

/// Nanoseconds per operation.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Figure {
    pub(crate) what: Measurement,
    /// The description of the measurement.
    pub(crate) about: String,
    pub(crate) ns: Spread,
}

/// A measurement that failed, with the reason.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Missing {
    pub(crate) what: Measurement,
    pub(crate) why: String,
}

impl Figures {
    /// Returns the median, in nanoseconds per operation.
    pub(crate) fn ns(&self, what: Measurement) -> Option<f64> {
        let figure = self.figures.iter().find(|figure| figure.what == what);
        figure.map(|figure| figure.ns.median)
    }

    /// Returns whether `a` is slower than `b`: its median is at least a tenth higher, and its best sample is slower
    /// than the median of `b`. Returns `None` if one of them was not measured.
    pub(crate) fn is_slower(&self, a: Measurement, b: Measurement) -> Option<bool> {
        let of = |what| self.figures.iter().find(|figure| figure.what == what);
        let (a, b) = (of(a)?.ns, of(b)?.ns);
        Some(a.median > b.median * (1.0 + DIFFERENCE) && a.min > b.median)
    }

    /// Returns whether the samples of a figure are close enough for a comparison.
    pub(crate) fn is_steady(&self, what: Measurement) -> bool {
        let figure = self.figures.iter().find(|figure| figure.what == what);
        figure.is_some_and(|figure| figure.ns.relative() <= STEADY)
    }
}

/// The least significant difference. Two runs of the same code differ by as much.
const DIFFERENCE: f64 = 0.10;
/// The largest range of the samples, as a share of the median. A larger one means that the machine was busy.
pub(crate) const STEADY: f64 = 1.0;
