//! The repository's own rules, as tests.
//!
//! Each test reads the working tree and fails with one line per finding: file, line, what is wrong, what to do
//! instead. The rules live in the modules, each with tests that plant a violation and see it found. When a remark
//! in review comes back for the third time, it becomes a rule here; where old code breaks a new rule, the rule gets
//! a closed list that may only shrink.

mod documents;
mod growth;
mod layers;
mod manifest;
mod modules;
mod paths;
mod repo;
mod runner;
mod safety;
mod size;
mod source;
mod words;

use std::path::Path;
use std::sync::OnceLock;

use repo::{Finding, Repo};

fn check(rule: impl Fn(&Repo) -> Vec<Finding>) {
    static REPO: OnceLock<Repo> = OnceLock::new();
    let repo =
        REPO.get_or_init(|| Repo::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")));
    let found = rule(repo);
    let lines: Vec<String> = found.iter().map(Finding::to_string).collect();
    assert!(
        found.is_empty(),
        "{} finding(s):\n\n{}\n",
        found.len(),
        lines.join("\n")
    );
}

#[test]
fn files_are_short_or_say_why_not() {
    check(size::files);
}

#[test]
fn functions_have_at_most_70_lines() {
    check(size::functions);
}

#[test]
fn lines_have_at_most_120_columns() {
    check(size::columns);
}

#[test]
fn documents_have_no_undecided_merges() {
    check(documents::conflicts);
}

#[test]
fn modules_import_from_below() {
    check(layers::imports);
}

#[test]
fn crates_depend_in_one_direction_and_the_library_on_no_runtime() {
    check(layers::crates);
}

#[test]
fn only_sys_names_the_kernels_crates() {
    check(layers::kernel_crates);
}

#[test]
fn unsafe_code_is_in_the_listed_files_only() {
    check(safety::places);
}

#[test]
fn the_tool_and_the_adapters_forbid_unsafe_code() {
    check(safety::forbidden);
}

#[test]
fn every_safety_note_names_an_invariant() {
    check(safety::notes);
}

#[test]
fn every_invariant_is_cited() {
    check(safety::invariants_in_use);
}

#[test]
fn every_file_has_a_header() {
    check(modules::headers);
}

#[test]
fn every_file_is_declared() {
    check(modules::orphans);
}

#[test]
fn every_path_named_exists() {
    check(paths::paths);
}

#[test]
fn nothing_that_ships_panics_for_convenience() {
    check(words::calls);
}

#[test]
fn every_open_end_has_its_issue() {
    check(words::marks);
}

#[test]
fn every_ignored_test_says_why() {
    check(words::ignored_tests);
}

#[test]
fn every_file_name_says_something() {
    check(words::names);
}

#[test]
fn every_dependency_has_its_reason() {
    check(manifest::reasons);
}

#[test]
fn the_compilers_version_is_stated_once() {
    check(manifest::compiler_version);
}

#[test]
fn what_users_match_on_or_build_may_grow() {
    check(growth::closed_types);
}

#[test]
fn every_kernel_trap_named_is_in_the_table() {
    check(documents::traps);
}

#[test]
fn every_kernel_trap_has_its_test_or_a_reason() {
    check(documents::trap_rows);
}

#[test]
fn every_test_named_in_a_document_exists() {
    check(documents::tests_named);
}

#[test]
fn every_command_shown_exists() {
    check(documents::commands);
}

#[test]
fn nothing_names_a_place_outside_the_repository() {
    check(documents::private_places);
}
