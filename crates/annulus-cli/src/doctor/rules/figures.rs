//! What the measurement says: which backend, depth and buffers, and whether SQPOLL would pay.

use crate::bench::short;
use crate::doctor::advice::{Findings, Rule, RuleReport, Severity};
use crate::doctor::figures::{Figures, What};

/// The library's own limit: with fewer, driver, caller and poller leave none for anybody else.
const SQPOLL_PROCESSORS: f64 = 4.0;
/// SQPOLL saves the enters; at 8 entries for each, less than this share of what a cached read costs is not worth
/// a processor.
const SQPOLL_SHARE: f64 = 0.05;
/// A depth is deep enough when the next one does not do this much more.
const DEPTH_GAIN: f64 = 1.15;
/// Of a processor: more than this, taken by others while we measured, and the figures are no judgement.
const DISTURBED: f64 = 0.25;

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "disturbed",
        check: disturbed,
    },
    Rule {
        name: "backend-cached",
        check: backend_cached,
    },
    Rule {
        name: "backend-direct",
        check: backend_direct,
    },
    Rule {
        name: "backend-network",
        check: backend_network,
    },
    Rule {
        name: "depth",
        check: depth,
    },
    Rule {
        name: "buffers",
        check: buffers,
    },
    Rule {
        name: "batches",
        check: batches,
    },
    Rule {
        name: "sqpoll",
        check: sqpoll,
    },
];

fn us(ns: f64) -> String {
    match ns {
        _ if ns >= 10_000.0 => format!("{:.0} µs", ns / 1000.0),
        _ if ns >= 1000.0 => format!("{:.1} µs", ns / 1000.0),
        _ => format!("{ns:.0} ns"),
    }
}

fn disturbed(findings: &Findings<'_>) -> Option<RuleReport> {
    let figures = findings.figures?;
    let unsteady: Vec<&str> = (What::ALL.iter())
        .filter(|what| figures.ns(**what).is_some() && !figures.is_steady(**what))
        .map(|what| what.name())
        .collect();
    let busy = figures.others_busy > DISTURBED || figures.stolen > DISTURBED;
    let what = "the machine was busy with other things while it was measured";
    let mut why = format!(
        "others took {:.2} and the hypervisor {:.2} of a processor",
        figures.others_busy, figures.stolen
    );
    if !unsteady.is_empty() {
        why += &format!("; far apart: {}", unsteady.join(", "));
    }
    (busy || unsteady.len() > What::ALL.len() / 3).then(|| {
        RuleReport::new(Severity::Note, what, why)
            .next("annulus doctor once more, when it is quiet")
    })
}

fn backend_cached(findings: &Findings<'_>) -> Option<RuleReport> {
    let figures = findings.figures?;
    let call = figures.ns(What::CachedPread)?;
    let hop = figures.ns(What::CachedHop)?;
    let by_ring = (figures.ns(What::CachedRing)).map_or(String::new(), |ring| {
        format!(" through a ring {},", us(ring))
    });
    let why = format!(
        "a pread of it takes {},{by_ring} on a blocking thread {}",
        us(call),
        us(hop)
    );
    let ring_is_quicker = figures.is_slower(What::CachedPread, What::CachedRing);
    let best =
        figures.is_slower(What::CachedHop, What::CachedPread)? && !ring_is_quicker.unwrap_or(false);
    let what = "cached data: read it at once, on the caller's thread";
    best.then(|| {
        RuleReport::new(Severity::Note, what, why)
            .next("the default, CachedReads::Learn, does that; keep it")
    })
}

fn backend_direct(findings: &Findings<'_>) -> Option<RuleReport> {
    let figures = findings.figures?;
    let call = figures.ns(What::DirectPread)?;
    let (ring, hop) = (figures.ns(What::DirectRing)?, figures.ns(What::DirectHop)?);
    let times = format!(
        "one at a time, a direct read takes {} by ring, {} by pread and {} on a blocking thread",
        us(ring),
        us(call),
        us(hop)
    );
    let is_slower = |what| figures.is_slower(What::DirectRing, what) == Some(true);
    if is_slower(What::DirectPread) {
        let what = "for single direct reads a plain call is faster than a ring here";
        return Some(
            RuleReport::new(Severity::Note, what, times)
                .next("keep several in flight, or use Backend::Fallback"),
        );
    }
    let what = match figures.is_slower(What::DirectHop, What::DirectRing)? {
        true => "for direct reads: the ring, at any depth",
        false => {
            "for single direct reads it does not matter who asks; a ring can keep many in flight"
        }
    };
    Some(RuleReport::new(Severity::Note, what, times))
}

fn backend_network(findings: &Findings<'_>) -> Option<RuleReport> {
    let figures = findings.figures?;
    let (epoll, ring) = (figures.ns(What::EchoEpoll)?, figures.ns(What::EchoRing)?);
    let slower = |a, b| figures.is_slower(a, b) == Some(true);
    let what = match (
        slower(What::EchoEpoll, What::EchoRing),
        slower(What::EchoRing, What::EchoEpoll),
    ) {
        (true, _) => "for small messages: the ring",
        (_, true) => "for few connections epoll is faster than a ring here",
        _ => "for a few connections, ring and epoll are alike",
    };
    let why = format!(
        "a message there and back takes {} with a ring and {} with epoll, 16 at a time, the client's part included",
        us(ring),
        us(epoll)
    );
    Some(
        RuleReport::new(Severity::Note, what, why)
            .next("annulus bench net echo compares at hundreds of connections"),
    )
}

fn depth(findings: &Findings<'_>) -> Option<RuleReport> {
    let figures = findings.figures?;
    let steps = [
        (1, What::DirectRing),
        (8, What::DirectRing8),
        (32, What::DirectRing32),
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
        "direct reads: keep {deep} in flight{}",
        if deep == 32 { ", or more" } else { "" }
    );
    let why = format!("reads a second: {}", rates.join(", "));
    Some(
        RuleReport::new(Severity::Note, what, why)
            .next("annulus bench file --depth 1,8,32,128 measures it for longer"),
    )
}

fn buffers(findings: &Findings<'_>) -> Option<RuleReport> {
    let figures = findings.figures?;
    let (registered, plain) = (
        figures.ns(What::DirectRing32)?,
        figures.ns(What::DirectPlain32)?,
    );
    let why = format!(
        "with 32 in flight a read takes {} where file and buffers are registered, {} where not",
        us(registered),
        us(plain)
    );
    let (what, next) = match figures.is_slower(What::DirectPlain32, What::DirectRing32)? {
        true => (
            "registered buffers pay for direct reads",
            "Engine::register_buffers",
        ),
        false => (
            "registered buffers make no difference for 4 KiB here",
            "any aligned memory will do",
        ),
    };
    Some(RuleReport::new(Severity::Note, what, why).next(next))
}

/// What an enter costs, and what the 32nd operation in it saves.
fn batches(findings: &Findings<'_>) -> Option<RuleReport> {
    let figures = findings.figures?;
    let (one, many) = (figures.ns(What::Nop1)?, figures.ns(What::Nop32)?);
    let enter = figures.ns(What::Enter)?;
    let what = format!(
        "an operation costs {} alone and {} among 32",
        us(one),
        us(many)
    );
    let why = format!("the call that carries them costs {}", us(enter));
    figures.is_slower(What::Nop1, What::Nop32)?.then(|| {
        RuleReport::new(Severity::Note, what, why)
            .next("ask for many at once: File::read_many_at, or many tasks")
    })
}

fn sqpoll(findings: &Findings<'_>) -> Option<RuleReport> {
    let figures = findings.figures?;
    let enter = figures.ns(What::Enter)?;
    let processors = findings.env.processors_to_use();
    let saved = enter / 8.0;
    if processors < SQPOLL_PROCESSORS {
        let what = "SQPOLL would not pay here";
        let why = format!(
            "it takes a processor, and there are {processors:.0}; an enter costs {}, at 8 entries {} each",
            us(enter),
            us(saved)
        );
        return Some(RuleReport::new(Severity::Note, what, why));
    }
    let read = cheapest_read(figures)?;
    let share = saved / read;
    let why = format!(
        "at 8 entries an enter costs {} of the {} that a cached read takes; a processor is what it takes",
        us(saved),
        us(read)
    );
    Some(match share >= SQPOLL_SHARE {
        true => RuleReport::new(
            Severity::Note,
            "SQPOLL may pay for many small operations",
            why,
        )
        .next("annulus bench file --variants annulus,annulus-sqpoll"),
        false => RuleReport::new(Severity::Note, "SQPOLL would not pay here", why),
    })
}

fn cheapest_read(figures: &Figures) -> Option<f64> {
    figures
        .ns(What::CachedRing)
        .or(figures.ns(What::CachedPread))
}
