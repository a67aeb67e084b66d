//! Rules for the measured figures: the best backend, depth and buffers, and the benefit of SQPOLL.

use crate::bench::disturbance::is_disturbed;
use crate::bench::numbers::short;
use crate::doctor::advice::{Findings, Rule, RuleReport, Severity};
use crate::doctor::figures::{Figures, Measurement};

/// The limit of the library. With fewer processors, the driver, the caller and the poller occupy all of them.
const SQPOLL_PROCESSORS: f64 = 4.0;
/// SQPOLL saves the enters. With 8 entries per enter, a saving of less than this share of a cached read is not worth a
/// processor.
const SQPOLL_SHARE: f64 = 0.05;
/// A depth suffices if the next one is not faster by this factor.
const DEPTH_GAIN: f64 = 1.15;

pub(super) const RULES: &[Rule] = &[
    Rule::new("disturbed", disturbed),
    Rule::new("backend-cached", backend_cached),
    Rule::new("backend-direct", backend_direct),
    Rule::new("backend-network", backend_network),
    Rule::new("depth", depth),
    Rule::new("buffers", buffers),
    Rule::new("batches", batches),
    Rule::new("sqpoll", sqpoll),
];

pub(crate) fn us(ns: f64) -> String {
    match ns {
        _ if ns >= 10_000.0 => format!("{:.0} µs", ns / 1000.0),
        _ if ns >= 1000.0 => format!("{:.1} µs", ns / 1000.0),
        _ => format!("{ns:.0} ns"),
    }
}

/// Returns the figures whose samples vary widely.
fn unsteady(figures: &Figures) -> Vec<Measurement> {
    Measurement::all()
        .filter(|&what| figures.ns(what).is_some() && !figures.is_steady(what))
        .collect()
}

/// Returns whether the machine was idle enough for a comparison of the figures.
fn is_reliable(figures: &Figures) -> bool {
    !is_disturbed(figures.others_busy, figures.stolen)
        && unsteady(figures).len() <= Measurement::all().len() / 3
}

fn reliable<'a>(findings: &'a Findings<'_>) -> Option<&'a Figures> {
    findings.figures.filter(|figures| is_reliable(figures))
}

fn disturbed(findings: &Findings<'_>) -> Option<RuleReport> {
    let figures = findings.figures?;
    let unsteady: Vec<&str> = unsteady(figures).iter().map(|what| what.name()).collect();
    let what = "the machine was busy with other work during the measurement, so the figures give no advice";
    let mut why = format!(
        "other processes used {:.2} and the hypervisor {:.2} of a processor",
        figures.others_busy, figures.stolen
    );
    if !unsteady.is_empty() {
        why += &format!("; samples vary widely: {}", unsteady.join("; "));
    }
    (!is_reliable(figures)).then(|| {
        RuleReport::new(Severity::Note, what, why)
            .next("run annulus doctor again when the machine is idle")
    })
}

fn backend_cached(findings: &Findings<'_>) -> Option<RuleReport> {
    let figures = reliable(findings)?;
    let call = figures.ns(Measurement::CachedPread)?;
    let hop = figures.ns(Measurement::CachedHop)?;
    let by_ring = (figures.ns(Measurement::CachedRing)).map_or(String::new(), |ring| {
        format!(" a read through a ring {}", us(ring))
    });
    let why = format!(
        "a pread takes {},{by_ring} and a read on a blocking thread {}",
        us(call),
        us(hop)
    );
    let ring_is_quicker = figures.is_slower(Measurement::CachedPread, Measurement::CachedRing);
    let best = figures.is_slower(Measurement::CachedHop, Measurement::CachedPread)?
        && !ring_is_quicker.unwrap_or(false);
    let what = "read cached data on the caller's thread";
    best.then(|| {
        RuleReport::new(Severity::Note, what, why)
            .next("keep the default, CachedReads::Learn, which does so")
    })
}

fn backend_direct(findings: &Findings<'_>) -> Option<RuleReport> {
    let figures = reliable(findings)?;
    let call = figures.ns(Measurement::DirectPread)?;
    let (ring, hop) = (
        figures.ns(Measurement::DirectRing)?,
        figures.ns(Measurement::DirectHop)?,
    );
    let times = format!(
        "one at a time, a direct read takes {} through a ring, {} with pread and {} on a blocking thread",
        us(ring),
        us(call),
        us(hop)
    );
    let is_slower = |what| figures.is_slower(Measurement::DirectRing, what) == Some(true);
    if is_slower(Measurement::DirectPread) {
        let what = "for single direct reads, pread is faster than a ring here";
        return Some(
            RuleReport::new(Severity::Note, what, times)
                .next("keep several in flight, or use Backend::Fallback"),
        );
    }
    let what = match figures.is_slower(Measurement::DirectHop, Measurement::DirectRing)? {
        true => "use the ring for direct reads, at any depth",
        false => {
            "single direct reads are equally fast with and without a ring; a ring can keep many in flight"
        }
    };
    Some(RuleReport::new(Severity::Note, what, times))
}

fn backend_network(findings: &Findings<'_>) -> Option<RuleReport> {
    let figures = reliable(findings)?;
    let (epoll, ring) = (
        figures.ns(Measurement::EchoEpoll)?,
        figures.ns(Measurement::EchoRing)?,
    );
    let slower = |a, b| figures.is_slower(a, b) == Some(true);
    let what = match (
        slower(Measurement::EchoEpoll, Measurement::EchoRing),
        slower(Measurement::EchoRing, Measurement::EchoEpoll),
    ) {
        (true, _) => "for small messages, a ring is faster than epoll here",
        (_, true) => "for few connections, epoll is faster than a ring here",
        _ => "for few connections, a ring and epoll are equally fast",
    };
    let why = format!(
        "an echoed message takes {} with a ring and {} with epoll, 16 at a time and including the client",
        us(ring),
        us(epoll)
    );
    Some(
        RuleReport::new(Severity::Note, what, why)
            .next("annulus bench net echo compares them with hundreds of connections"),
    )
}

fn depth(findings: &Findings<'_>) -> Option<RuleReport> {
    let figures = reliable(findings)?;
    let steps = [
        (1, Measurement::DirectRing),
        (8, Measurement::DirectRing8),
        (32, Measurement::DirectRing32),
    ];
    let mut best: Option<(usize, f64)> = None;
    let mut rates = Vec::new();
    for (depth, what) in steps {
        let rate = 1e9 / figures.ns(what)?;
        rates.push(format!("{} with {depth} in flight", short(rate)));
        if best.is_none_or(|(_, before)| rate > before * DEPTH_GAIN) {
            best = Some((depth, rate));
        }
    }
    let (deep, _) = best?;
    let what = format!(
        "for direct reads, keep {deep} in flight{}",
        if deep == 32 { ", or more" } else { "" }
    );
    let why = format!("reads per second: {}", rates.join(", "));
    Some(
        RuleReport::new(Severity::Note, what, why)
            .next("annulus bench file --depth 1,8,32,128 measures longer"),
    )
}

fn buffers(findings: &Findings<'_>) -> Option<RuleReport> {
    let figures = reliable(findings)?;
    let (registered, plain) = (
        figures.ns(Measurement::DirectRing32)?,
        figures.ns(Measurement::DirectPlain32)?,
    );
    let why = format!(
        "with 32 in flight, a read takes {} with registered file and buffers, and {} without",
        us(registered),
        us(plain)
    );
    let (what, next) =
        match figures.is_slower(Measurement::DirectPlain32, Measurement::DirectRing32)? {
            true => (
                "registered buffers make direct reads faster",
                "use Engine::register_buffers",
            ),
            false => (
                "registered buffers make no difference for 4 KiB here",
                "any aligned memory is as fast",
            ),
        };
    Some(RuleReport::new(Severity::Note, what, why).next(next))
}

/// Compares the cost of a single operation with that of one in a batch of 32.
fn batches(findings: &Findings<'_>) -> Option<RuleReport> {
    let figures = reliable(findings)?;
    let (one, many) = (
        figures.ns(Measurement::Nop1)?,
        figures.ns(Measurement::Nop32)?,
    );
    let enter = figures.ns(Measurement::Enter)?;
    let what = format!(
        "an operation costs {} alone and {} in a batch of 32",
        us(one),
        us(many)
    );
    let why = format!("the system call that submits them costs {}", us(enter));
    figures
        .is_slower(Measurement::Nop1, Measurement::Nop32)?
        .then(|| {
            RuleReport::new(Severity::Note, what, why)
                .next("submit many operations at once: File::read_many_at, or many tasks")
        })
}

fn sqpoll(findings: &Findings<'_>) -> Option<RuleReport> {
    let figures = reliable(findings)?;
    let enter = figures.ns(Measurement::Enter)?;
    let processors = findings.env.processors_to_use();
    let saved = enter / 8.0;
    if processors < SQPOLL_PROCESSORS {
        let what = "SQPOLL would not pay off here";
        let why = format!(
            "it occupies one of {processors:.0} processors; an enter costs {}, or {} per entry with 8 entries",
            us(enter),
            us(saved)
        );
        return Some(RuleReport::new(Severity::Note, what, why));
    }
    let read = cheapest_read(figures)?;
    let share = saved / read;
    let why = format!(
        "with 8 entries per enter, the enter costs {} of the {} of a cached read; SQPOLL occupies a processor",
        us(saved),
        us(read)
    );
    Some(match share >= SQPOLL_SHARE {
        true => RuleReport::new(
            Severity::Note,
            "SQPOLL may pay off for many small operations",
            why,
        )
        .next("annulus bench file --variants annulus,annulus-sqpoll"),
        false => RuleReport::new(Severity::Note, "SQPOLL would not pay off here", why),
    })
}

fn cheapest_read(figures: &Figures) -> Option<f64> {
    figures
        .ns(Measurement::CachedRing)
        .or(figures.ns(Measurement::CachedPread))
}
