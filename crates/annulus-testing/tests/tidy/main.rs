//! The repository's own rules, as tests: layers, cycles, the closed list of unsafe files, invariants, kernel traps,
//! reasons of dependencies, retired terms, results in signatures, and commits named in runs. Clippy, rustfmt,
//! `typos` and `mdlinkcheck` check the rest (`ci/check`).
//!
//! Each test reads the working tree and fails with a line per finding: file, line, problem, remedy. The rules are in
//! the modules. The tests of each module plant violations and check that they are reported.

mod columns;
mod commits;
mod cycles;
mod layers;
mod manifest;
mod repo;
mod retired;
mod safety;
mod signatures;
mod source;
mod traps;
mod workflows;

use std::path::Path;
use std::sync::OnceLock;

use repo::{Finding, Findings, Repo, Rule};

fn check(rule: Rule) {
    static REPO: OnceLock<Repo> = OnceLock::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut found = Findings::default();
    rule(REPO.get_or_init(|| Repo::read(&root)), &mut found);
    let line = |one: &Finding| format!("{}:{}: {}\n", one.file, one.line, one.says);
    let lines: String = found.0.iter().map(line).collect();
    assert!(lines.is_empty(), "{} finding(s):\n\n{lines}", found.0.len());
}

macro_rules! rules {
    ($($name:ident: $rule:path;)*) => { $(#[test] fn $name() { check($rule); })* };
}

rules! {
    modules_import_from_below: layers::imports;
    crates_depend_in_one_direction_and_the_library_on_no_runtime: layers::crates;
    only_sys_names_the_kernels_crates: layers::kernel_crates;
    unsafe_code_is_in_the_listed_files_only: safety::files;
    every_safety_note_names_an_invariant: safety::notes;
    every_dependency_has_its_reason: manifest::reasons;
    every_published_crate_contains_the_licences: manifest::licences;
    every_kernel_trap_named_is_in_the_table: traps::named;
    every_kernel_trap_has_its_test_or_a_reason: traps::rows;
    every_test_named_in_a_document_exists: traps::tests_named;
    no_retired_term_is_used: retired::terms;
    the_public_ci_runs_every_part: workflows::parts;
    every_file_of_a_fuzz_target_exists: workflows::fuzzed_files;
    every_commit_named_in_a_run_exists: commits::named;
    no_cycle_of_imports_grows: cycles::largest;
    every_signature_shows_its_result: signatures::results;
    comments_and_documents_fit_in_120_columns: columns::wide_lines;
}
