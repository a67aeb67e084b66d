//! What was measured: one number per thing, each the median of several short samples.

use schemars::JsonSchema;
use serde::Serialize;

use crate::bench::Spread;

/// What can be measured; in the order in which it is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum What {
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

impl What {
    pub(crate) const ALL: [What; 15] = [
        What::Enter,
        What::Nop1,
        What::Nop8,
        What::Nop32,
        What::CachedPread,
        What::CachedRing,
        What::CachedHop,
        What::DirectPread,
        What::DirectRing,
        What::DirectHop,
        What::DirectRing8,
        What::DirectRing32,
        What::DirectPlain32,
        What::EchoEpoll,
        What::EchoRing,
    ];

    /// For people.
    pub(crate) fn name(self) -> &'static str {
        match self {
            What::Enter => "an enter that finds nothing to do",
            What::Nop1 => "a NOP, one per enter",
            What::Nop8 => "a NOP, 8 per enter",
            What::Nop32 => "a NOP, 32 per enter",
            What::CachedPread => "a cached 4 KiB read, pread",
            What::CachedRing => "a cached 4 KiB read, ring",
            What::CachedHop => "a cached 4 KiB read, blocking thread",
            What::DirectPread => "a direct 4 KiB read, pread",
            What::DirectRing => "a direct 4 KiB read, ring",
            What::DirectHop => "a direct 4 KiB read, blocking thread",
            What::DirectRing8 => "a direct 4 KiB read, ring, 8 in flight",
            What::DirectRing32 => "a direct 4 KiB read, ring, 32 in flight",
            What::DirectPlain32 => "the same, nothing registered",
            What::EchoEpoll => "64 bytes echoed on loopback, epoll",
            What::EchoRing => "64 bytes echoed on loopback, ring",
        }
    }
}

/// All that was measured.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
pub(crate) struct Figures {
    /// How long it took.
    pub(crate) seconds: f64,
    /// How many samples each figure has.
    pub(crate) samples: usize,
    pub(crate) figures: Vec<Figure>,
    pub(crate) missing: Vec<Missing>,
    /// What reads were measured on.
    pub(crate) reads_on: Option<String>,
    /// Of a processor, taken by others or withheld by the hypervisor meanwhile.
    pub(crate) others_busy: f64,
    pub(crate) stolen: f64,
}

/// Nanoseconds per operation.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct Figure {
    pub(crate) what: What,
    /// What that is, in words.
    pub(crate) about: String,
    pub(crate) ns: Spread,
}

/// What could not be measured, and why.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct Missing {
    pub(crate) what: What,
    pub(crate) why: String,
}

impl Figures {
    /// The median, in nanoseconds per operation.
    pub(crate) fn ns(&self, what: What) -> Option<f64> {
        let figure = self.figures.iter().find(|figure| figure.what == what);
        figure.map(|figure| figure.ns.median)
    }

    /// Whether `a` takes longer than `b`: by a tenth and more, and even the best of its samples longer than a
    /// usual one of the other's. `None`: one of them was not measured.
    pub(crate) fn is_slower(&self, a: What, b: What) -> Option<bool> {
        let of = |what| self.figures.iter().find(|figure| figure.what == what);
        let (a, b) = (of(a)?.ns, of(b)?.ns);
        Some(a.median > b.median * (1.0 + DIFFERENCE) && a.min > b.median)
    }

    /// Whether the samples of a figure lie so close together that it can be compared.
    pub(crate) fn is_steady(&self, what: What) -> bool {
        let figure = self.figures.iter().find(|figure| figure.what == what);
        figure.is_some_and(|figure| figure.ns.relative() <= STEADY)
    }
}

/// A smaller difference is none: a run differs from the next by as much.
const DIFFERENCE: f64 = 0.10;
/// Extremes further apart than this share of the median say that the machine was doing something else.
pub(crate) const STEADY: f64 = 1.0;
