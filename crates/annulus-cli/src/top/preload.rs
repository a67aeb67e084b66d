//! The counters of the preload library in a program under `annulus run`: served connections, and calls that were left
//! to the kernel.

use super::grid::{Piece, Tone};
use super::report::Report;
use super::rows::{plain, total};
use super::units::{count, whole};

/// Returns lines with the served connections, the passed calls and the descriptors that were handed back. Empty lines
/// are left out.
pub(super) fn lines(report: &Report) -> Vec<Vec<Piece>> {
    let Some(preload) = &report.total.preload else {
        return Vec::new();
    };
    let served = format!(
        "{} connections on {} {}, {} of {} buffers free",
        whole(preload.connections),
        whole(preload.rings),
        if preload.rings == 1 { "ring" } else { "rings" },
        whole(preload.buffers_free),
        whole(preload.buffers),
    );
    let mut lines = vec![vec![heading("SERVED"), plain(served)]];
    for (title, reasons) in [
        ("PASSED", &preload.passed),
        ("HANDED BACK", &preload.handed_back),
    ] {
        if reasons.is_empty() {
            continue;
        }
        let mut line = vec![heading(title)];
        for reason in reasons {
            if line.len() > 1 {
                line.push(plain("  "));
            }
            let (text, tone) = total(reason.since_start, reason.per_second);
            line.push((format!("{} {text}", reason.reason), tone));
        }
        lines.push(line);
    }
    lines
}

fn heading(title: &str) -> Piece {
    (format!("{title}  "), Tone::Heading)
}

/// Returns hints about problems.
pub(super) fn notes(report: &Report) -> Vec<String> {
    let mut notes = Vec::new();
    let Some(preload) = &report.total.preload else {
        return notes;
    };
    if preload.rings == 0 {
        let reasons = preload.passed.iter().map(|passed| passed.reason.as_str());
        notes.push(format!(
            "no ring serves the program any more; reasons: {}",
            reasons.collect::<Vec<&str>>().join(", ")
        ));
    }
    notes.extend(preload.passed.iter().filter_map(|passed| {
        let meaning = meaning(&passed.reason)?;
        let connections = (preload.handed_back.iter())
            .find(|back| back.reason == passed.reason)
            .map_or(0, |back| back.since_start);
        Some(format!(
            "{} {} left to the kernel: {meaning} ({}); {} connections were handed back for it",
            whole(passed.since_start),
            if passed.since_start == 1 {
                "epoll set is"
            } else {
                "epoll sets are"
            },
            passed.reason,
            whole(connections)
        ))
    }));
    notes.extend(preload.listeners_left.iter().map(|left| {
        let (listeners, connections) = match left.since_start {
            1 => ("1 listener is".to_owned(), "its connections pass"),
            count => (
                format!("{} listeners are", whole(count)),
                "their connections pass",
            ),
        };
        format!(
            "{listeners} left to the kernel: {} ({}); {connections} through",
            listener_meaning(&left.reason),
            left.reason
        )
    }));
    let back = preload.handed_back.iter();
    let grown = back.filter(|back| back.per_second > 0.0);
    notes.extend(grown.map(|back| {
        format!(
            "{} connections/s are handed back to the kernel: {}",
            count(back.per_second),
            back.reason
        )
    }));
    notes
}

/// Returns the meaning of a reason for which a whole epoll set is left to the kernel.
fn meaning(reason: &str) -> Option<&'static str> {
    Some(match reason {
        "refused" => "io_uring is missing or refused",
        "kernel" => "the ring returned an unusable result",
        "several_threads" => "several threads wait on it",
        "polled_otherwise" => "the program also polls its descriptor",
        "filtered" => "the program sets a seccomp filter",
        "changed_rights" => "the program changes its user while SQPOLL is on",
        "descriptors" => "the limit on descriptors is nearly reached",
        _ => return None,
    })
}

/// Returns the meaning of a reason for which the connections of a listener are left to the kernel.
fn listener_meaning(reason: &str) -> &'static str {
    match reason {
        "port" => "the operator excluded its port",
        "unknown_option" => "it has a socket option that a ring does not reproduce",
        "duplicated" => "the program duplicated its descriptor",
        _ => "the program uses it in a way that a ring does not reproduce",
    }
}
