//! The signatures of the library's API, as rustdoc shows them: each says what its call returns.

use crate::repo::{Findings, Repo};
use crate::source::{line_of, split_top};

/// Checks that a public function that returns an `Operation` names its result. Otherwise the reader finds the type of a
/// hidden trait.
pub(crate) fn results(repo: &Repo, found: &mut Findings) {
    for (path, _, source) in repo.library() {
        for (at, _) in source.shipped.match_indices("pub fn ") {
            let signature = source.shipped[at..].split(" {\n").next().unwrap_or("");
            let Some((_, arguments)) = signature.split_once("-> Operation<") else {
                continue;
            };
            let arguments = split_top(&arguments.replace('<', "(").replace('>', ")")).len();
            if arguments < 3 {
                let says =
                    "the signature does not show the result; write `Operation<'_, Op, Result>`";
                found.add(path, line_of(&source.shipped, at), says.to_owned());
            }
        }
    }
}

#[test]
fn a_result_that_is_not_in_the_signature_is_reported() {
    let text = "impl File {\n    pub fn a(&self) -> Operation<'_, Sync> {\n        b()\n    }\n    pub fn c<B>(\n        \
                &self,\n    ) -> Operation<'_, Read<B>> {\n    }\n    pub fn d<B>(&self) -> Operation<'_, Read<B>, \
                Pair<usize, B>> {\n    }\n    pub(crate) fn e(&self) -> Operation<'_, Sync> {\n    }\n}\n";
    let findings = crate::repo::planted(results, &[("crates/annulus/src/fs.rs", text)]);
    assert_eq!(Vec::from_iter(findings.iter().map(|one| one.line)), [2, 5]);
}
