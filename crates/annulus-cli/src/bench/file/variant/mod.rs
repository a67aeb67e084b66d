//! The list of variants, its named sets, and selection by name.

use std::sync::Arc;

use annulus_baselines::variants as baselines;
use serde::{Deserialize, Serialize};

use super::run::{AnyVariant, Harness};
use crate::fault::Fault;

pub(crate) use resident::PAGES_PER_OP;

pub(crate) mod annulus;
mod direct;
mod null;
mod pool;
mod resident;
mod scan;
mod submit;
mod tokio;

/// The variant that every repeat measures, so that a hand-written ring is always available for comparison.
pub(crate) const BASE: &str = "base";

/// The variants that are measured by default: the usual and fastest forms of Annulus, the hand-written ring in its
/// plain and fastest forms, and one of each kind of alternative.
const DEFAULT: [&str; 13] = [
    "annulus",
    "annulus-many",
    "annulus-own",
    "annulus-arena",
    "annulus-tokio",
    BASE,
    "base-chunk2",
    "pread",
    "mmap",
    "libaio",
    "tokio-fs",
    "tokio-blocking",
    "null",
];

/// The variants that have a form with `O_DIRECT` for comparisons through the page cache.
const DIRECT: [&str; 4] = ["annulus-arena", "annulus-tokio-arena", "pread", "pread-512"];

/// The variants that have forms beside a scan.
const BESIDE_SCAN: [&str; 2] = ["pread", "annulus-tokio"];

/// The side of a variant, which decides what it is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(crate) enum Side {
    /// A form of Annulus.
    Annulus,
    /// A form of the hand-written ring.
    Base,
    /// An alternative that a program might use instead.
    Baseline,
    /// The harness itself.
    Null,
}

/// Returns the side of the variant with this name.
pub(crate) fn side(name: &str) -> Side {
    match name {
        _ if name.starts_with("annulus") || name.starts_with("pool") => Side::Annulus,
        _ if name.starts_with(BASE) => Side::Base,
        // The engine that a job file names.
        "job" => Side::Base,
        "null" => Side::Null,
        _ => Side::Baseline,
    }
}

/// Returns all variants, in the order in which they are listed.
pub(crate) fn all() -> Vec<AnyVariant> {
    let mut list: Vec<AnyVariant> = Vec::new();
    for form in annulus::Annulus::variants() {
        list.push(Arc::new(form));
    }
    for form in tokio::OnTokio::variants() {
        list.push(Arc::new(form));
    }
    for form in pool::Pooled::variants() {
        list.push(Arc::new(form));
    }
    list.extend(baselines::<Harness>());
    let of = |name: &&str| list.iter().find(|variant| variant.name() == *name).cloned();
    let mut forms: Vec<AnyVariant> = Vec::new();
    for inner in DIRECT.iter().filter_map(of) {
        forms.push(Arc::new(direct::Direct::of(inner)));
    }
    for inner in BESIDE_SCAN.iter().filter_map(of) {
        for uncached in [false, true] {
            forms.push(Arc::new(scan::BesideScan::of(Arc::clone(&inner), uncached)));
        }
    }
    list.extend(forms);
    for form in resident::Resident::variants() {
        list.push(Arc::new(form));
    }
    list.push(Arc::new(null::Null));
    list
}

/// Returns the variants that `names` selects, without duplicates and always with the base.
pub(crate) fn choose(names: &[String]) -> Result<Vec<AnyVariant>, Fault> {
    let all = all();
    let mut selected: Vec<&str> = vec![BASE];
    for name in names
        .iter()
        .map(|name| name.trim())
        .filter(|name| !name.is_empty())
    {
        match name {
            "all" => selected.extend(all.iter().map(|variant| variant.name())),
            "default" => selected.extend(DEFAULT),
            _ if all.iter().any(|variant| variant.name() == name) => selected.push(name),
            _ => return Err(unknown(name, &all)),
        }
    }
    if names.iter().all(|name| name.trim().is_empty()) {
        return Err(Fault::usage("--variants: the list is empty; see --list"));
    }
    Ok(all
        .iter()
        .filter(|variant| selected.contains(&variant.name()))
        .map(Arc::clone)
        .collect())
}

fn unknown(name: &str, all: &[AnyVariant]) -> Fault {
    let names: Vec<&str> = all.iter().map(|variant| variant.name()).collect();
    let nearest = names
        .iter()
        .min_by_key(|known| strsim::damerau_levenshtein(known, name));
    let hint = nearest.map_or(String::new(), |nearest| {
        format!("did you mean `{nearest}`? ")
    });
    usage!(
        "unknown variant `{name}`; {hint}There are: default, all, {}",
        names.join(", ")
    )
}

/// Returns the text of `--list`.
pub(crate) fn list() -> String {
    let all = all();
    let width = all
        .iter()
        .map(|variant| variant.name().len())
        .max()
        .unwrap_or(0);
    let mut text = String::new();
    for variant in &all {
        let mark = if DEFAULT.contains(&variant.name()) {
            '*'
        } else {
            ' '
        };
        text += &format!("{mark} {:width$}  {}\n", variant.name(), variant.about());
    }
    text + "* in `default`; `base` is always measured\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_the_default_ones_exist() {
        let all = all();
        let mut names: Vec<&str> = all.iter().map(|variant| variant.name()).collect();
        for name in DEFAULT {
            assert!(names.contains(&name), "{name}");
        }
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all.len());
    }

    #[test]
    fn the_base_is_always_chosen_and_no_variant_twice() {
        let chosen = choose(&["pread".into(), "pread".into()]).unwrap();
        let names: Vec<&str> = chosen.iter().map(|variant| variant.name()).collect();
        assert_eq!(names, ["base", "pread"]);
    }

    #[test]
    fn a_mistyped_name_is_reported_with_the_nearest() {
        let text = choose(&["libiao".into()]).err().unwrap().to_string();
        assert!(
            text.contains("did you mean `libaio`?") && text.contains("tokio-blocking"),
            "{text}"
        );
    }
}
