//! Breaks each protocol that the models check, in every way that `Mutation` names, and expects the model to fail. Each
//! run is a separate process, with the mutation selected by its environment.

use std::collections::BTreeSet;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::sync::{MUTATIONS, Mutation};

/// The path of this test, which is not a model.
const SELF: &str = "driver::tests::loom_mutations::";

fn this_binary(args: &[&str], mutation: Option<Mutation>) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(args).env_remove("ANNULUS_BROKEN");
    if let Some(mutation) = mutation {
        command.env("ANNULUS_BROKEN", format!("{mutation:?}"));
    }
    command.output().unwrap()
}

/// Returns all models, by their paths in the test harness.
fn models() -> Vec<String> {
    let output = this_binary(&["loom", "--list", "--format=terse"], None);
    let listed = String::from_utf8(output.stdout).unwrap();
    let tests = listed
        .lines()
        .filter_map(|line| line.strip_suffix(": test"));
    let models = tests.filter(|path| !path.starts_with(SELF));
    models.map(str::to_owned).collect()
}

/// Returns the last part of a path.
fn name(path: &str) -> &str {
    path.rsplit("::").next().unwrap_or(path)
}

/// Runs a model with a mutation. Returns a description if the model did not fail as expected.
fn overlooked(mutation: Mutation, model: &str, models: &[String]) -> Option<String> {
    let Some(path) = models.iter().find(|path| name(path) == model) else {
        return Some(format!("{mutation:?}: there is no model {model}"));
    };
    let output = this_binary(&[path, "--exact", "--test-threads=1"], Some(mutation));
    let printed = String::from_utf8_lossy(&output.stdout);
    // A model that fails during a drop aborts, and the harness cannot count it.
    let detected = printed.contains("running 1 test") && !output.status.success();
    (!detected).then(|| format!("{mutation:?} is not detected by {model}:\n{printed}"))
}

#[test]
fn every_mutation_is_found_by_its_model() {
    let models = models();
    let next = AtomicUsize::new(0);
    let overlooked: Vec<String> = thread::scope(|scope| {
        let look = || {
            std::iter::from_fn(|| MUTATIONS.get(next.fetch_add(1, Ordering::Relaxed)))
                .filter_map(|&(mutation, model)| overlooked(mutation, model, &models))
                .collect::<Vec<_>>()
        };
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let lookers: Vec<_> = (0..threads).map(|_| scope.spawn(look)).collect();
        lookers
            .into_iter()
            .flat_map(|looker| looker.join().unwrap())
            .collect()
    });
    assert!(overlooked.is_empty(), "{}", overlooked.join("\n"));
}

#[test]
fn every_model_has_a_mutation() {
    let models = models();
    let models: BTreeSet<&str> = models.iter().map(|path| name(path)).collect();
    let broken: BTreeSet<&str> = MUTATIONS.iter().map(|&(_, model)| model).collect();
    assert!(!models.is_empty());
    assert_eq!(models, broken);
}
