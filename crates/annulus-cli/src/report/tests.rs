//! The page with hostile names, large reports and two runs.

use annulus_baselines::slices::Recorder;

use super::*;
use crate::bench::file::json::{Checks, Load, Outcome, Report, Run, Sample, VERSION, VariantFacts};
use crate::bench::file::stats;
use crate::bench::file::variant::side;
use crate::bench::machine::Machine;
use crate::bench::output::Header;
use crate::bench::timeline::Timeline;

const HOSTILE: &str = "</script><script>alert(1)</script>\"'><img src=x onerror=alert(2)>&amp;<!--";

const COMPLETIONS: u64 = 20_000;

/// A timeline with realistic latencies: a body, a second mode, and a long tail.
fn timeline(seconds: u64, seed: u64) -> Timeline {
    let length_ns = seconds * 1_000_000_000;
    let mut recorder = Recorder::default();
    recorder.begin(0, length_ns);
    let mut rng = fastrand::Rng::with_seed(seed);
    for nth in 0..COMPLETIONS {
        let body = 20_000.0 * (1.0 / (1.0 - rng.f64())).powf(0.6);
        let latency = if rng.u8(..) < 20 { body * 30.0 } else { body };
        recorder.record(length_ns / COMPLETIONS * nth, latency as u64);
    }
    Timeline::of(recorder, length_ns, Some(vec![1_000; 240])).unwrap()
}

fn sample(timeline: &Timeline, seconds: u64, seed: u64) -> Sample {
    let ops: u64 = timeline.completions.iter().sum();
    Sample {
        seconds: seconds as f64,
        ops,
        ops_per_second: ops as f64 / seconds as f64 + seed as f64,
        checks: Checks {
            completions: ops,
            correct: ops,
            ..Checks::default()
        },
        timeline: Some(timeline.clone()),
        ..Sample::default()
    }
}

fn report_of(names: &[String], repeats: usize, seconds: u64) -> Report {
    let mut runs = Vec::new();
    let timelines = [1, 2, 3].map(|seed| timeline(seconds, seed));
    for repeat in 1..=repeats {
        for name in names {
            let nth = runs.len();
            let sample = sample(&timelines[nth % 3], seconds, nth as u64 + 1);
            runs.push(Run {
                position: runs.len(),
                depth: 8,
                repeat,
                variant: name.clone(),
                outcome: Outcome::Measured(Box::new(sample)),
            });
        }
    }
    let facts = |name: &String| VariantFacts {
        name: name.clone(),
        side: side(name),
        about: format!("about {name}"),
    };
    Report {
        header: Header {
            version: VERSION,
            annulus: "0".into(),
            command: vec!["annulus".into(), "bench".into(), HOSTILE.into()],
            started_unix_s: 0,
        },
        seed: 1,
        machine: Machine::of(None),
        traced: Vec::new(),
        load: Load {
            rw: "randread".into(),
            write_percent: 0,
            block_bytes: 4096,
            offset_bytes: 0,
            size_bytes: 1 << 20,
            files: 1,
            cache: "direct".into(),
            file: HOSTILE.into(),
            contents_known: true,
            depths: vec![8],
            threads: None,
            drivers: None,
            name: None,
            durable: false,
            memory_limit_bytes: None,
            runtime_seconds: seconds as f64,
            repeats,
        },
        variants: names.iter().map(facts).collect(),
        rows: stats::rows(&runs, 8),
        runs,
        interrupted: false,
        notes: vec![HOSTILE.into()],
        warnings: vec![HOSTILE.into()],
        verdict: HOSTILE.into(),
    }
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|nth| format!("variant-{nth}")).collect()
}

fn page_of(report: &Report) -> String {
    let comparisons = [Comparison::of_files(report, JSON_BYTES_MAX).unwrap()];
    page::page(&comparisons, scale(&comparisons).as_ref())
}

#[test]
fn measured_text_is_escaped_in_the_page() {
    let page = page_of(&report_of(&["base".into(), HOSTILE.into()], 1, 1));
    assert!(page.contains("&lt;/script&gt;"), "it is shown");
    for bad in [
        "<script>alert",
        "<img",
        "onerror=alert(2)>&amp;<!--",
        "<!--",
    ] {
        assert!(!page.contains(bad), "{bad} is not escaped");
    }
    // Only the data block and the page's script.
    assert_eq!(page.matches("<script").count(), 2);
    assert_eq!(page.matches("</script>").count(), 2);
}

#[test]
fn the_page_loads_nothing() {
    let page = page_of(&report_of(&names(2), 1, 1));
    assert!(page.contains("default-src &#39;none&#39;") || page.contains("default-src 'none'"));
    for scheme in ["http://", "https://", "//", "url(", "@import", "style=\""] {
        let body = page.replace("data:image/png;base64,", "");
        let matched = body
            .match_indices(scheme)
            .find(|(at, _)| !in_picture(&body, *at));
        assert_eq!(matched, None, "{scheme}");
    }
}

/// Returns whether `at` is inside base64 data, which contains slashes, or at a comment of the script.
fn in_picture(page: &str, at: usize) -> bool {
    let line = page[..at].rfind("href=\"").map(|from| &page[from + 6..at]);
    let picture = line.is_some_and(|text| !text.contains('"'));
    picture || page[at..].starts_with("// ")
}

#[test]
fn a_page_on_an_hour_of_twenty_variants_and_three_repeats_is_below_a_megabyte() {
    let report = report_of(&names(20), 3, 3_600);
    let page = page_of(&report);
    assert!(page.len() < 1_000_000, "{} bytes", page.len());
    assert_eq!(page.matches("data:image/png").count(), 60);
    let from = page.find("id=\"json-0\">").unwrap() + "id=\"json-0\">".len();
    let json = &page[from..from + page[from..].find("</script>").unwrap()];
    let back: Report = serde_json::from_str(json).unwrap();
    assert_eq!(back.runs.len(), 60, "every run is in the page");
    assert_eq!(back.load.file, HOSTILE);
}

#[test]
fn two_runs_have_one_scale_and_their_differences_are_listed() {
    let (first, mut second) = (report_of(&names(2), 3, 1), report_of(&names(2), 3, 2));
    second.load.cache = "buffered, hot".into();
    let comparisons =
        [&first, &second].map(|report| Comparison::of_files(report, JSON_BYTES_MAX).unwrap());
    let whole = scale(&comparisons).unwrap();
    assert_eq!(whole.length_ns, 2_000_000_000);
    let page = page::page(&comparisons, Some(&whole));
    assert!(page.contains("Page cache: direct in A, buffered, hot in B"));
    assert!(
        page.contains("variant-0 at depth 8 (-50.0 %)"),
        "half as fast"
    );
    assert_eq!(page.matches("id=\"json-").count(), 2);
}

#[test]
fn a_report_without_timelines_has_no_charts() {
    let mut report = report_of(&names(1), 1, 1);
    for run in &mut report.runs {
        if let Outcome::Measured(sample) = &mut run.outcome {
            sample.timeline = None;
        }
    }
    let page = page_of(&report);
    assert!(page.contains("These files have no timelines"));
    assert!(!page.contains("data:image/png"));
}

#[test]
fn heat_maps_are_drawn_in_a_file_and_in_a_terminal() {
    let report = report_of(&["base".into(), HOSTILE.into(), "null".into()], 2, 1);
    let comparison = Comparison::of_files(&report, JSON_BYTES_MAX).unwrap();
    let scale = scale(std::slice::from_ref(&comparison)).unwrap();
    let file = svg::document(&comparison, &scale);
    assert!(file.starts_with("<?xml") && file.trim_end().ends_with("</svg>"));
    assert_eq!(
        file.matches("data:image/png").count(),
        4,
        "two repeats of two, none of null"
    );
    assert!(!file.contains("<script"));
    let text = terminal::maps(&comparison, &scale, terminal::Colours::None);
    assert!(
        text.is_ascii() || text.chars().all(|c| c.is_ascii() || c == 'µ'),
        "{text}"
    );
    assert!(
        text.lines().all(|line| line.chars().count() <= 120),
        "{text}"
    );
    let colours = terminal::maps(&comparison, &scale, terminal::Colours::Some256);
    assert!(colours.contains("\x1b[38;5;") && colours.contains('▀'));
}

#[test]
fn two_options_with_the_same_file_are_refused() {
    let args = PictureArgs {
        html: Some("same".into()),
        heatmap: Some(Heatmap::File("same".into())),
    };
    let error = Pictures::new(&args, None, false).err().unwrap().to_string();
    assert!(
        error.contains("--html and --heatmap both name same"),
        "{error}"
    );
}
