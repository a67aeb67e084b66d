//! The parts of `bench all`, and what each needs. `annulus doctor` reports which of them a machine can show.

use std::path::PathBuf;

use serde::Serialize;

use crate::bench::net::find_program;

/// The servers that are measured with and without the preload library.
pub(crate) const SERVERS: [&str; 3] = ["redis-server", "memcached", "nginx"];

/// The facts about a machine that decide which parts it can show.
pub(crate) struct Needs<'a> {
    /// The reason why there is no ring.
    pub(crate) no_ring: Option<&'a str>,
    /// The reason why there is no direct I/O at the place of the test files, or why it is unknown.
    pub(crate) no_direct: Option<&'a str>,
    /// The reason why reads there cannot be polled.
    pub(crate) no_polling: Option<&'a str>,
    pub(crate) processors: usize,
    /// The installed ones of [`SERVERS`].
    pub(crate) servers: &'a [String],
}

/// A part of the benchmark.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Part {
    pub(crate) name: String,
    /// The reason why this machine cannot show it; absent if it can.
    pub(crate) lacks: Option<String>,
}

/// Returns all parts, with the reason for each that the machine cannot show.
pub(crate) fn parts(needs: &Needs<'_>) -> Vec<Part> {
    let one = |name: &str, lacks: Option<&str>| Part {
        name: name.to_owned(),
        lacks: lacks.map(str::to_owned),
    };
    let one_processor = (needs.processors < 2).then_some("this process may use one processor");
    let no_server = needs
        .servers
        .is_empty()
        .then_some("neither Redis, memcached nor nginx is installed");
    vec![
        one("cached files", None),
        one("direct files", needs.no_direct),
        one("polled files", needs.no_direct.or(needs.no_polling)),
        one("network", needs.no_ring),
        one("HTTP", needs.no_ring),
        one("servers under annulus run", needs.no_ring.or(no_server)),
        one("scaling over processors", needs.no_ring.or(one_processor)),
    ]
}

/// Returns the servers that are installed.
pub(crate) fn installed() -> Vec<(&'static str, PathBuf)> {
    SERVERS
        .into_iter()
        .filter_map(|name| Some((name, find_program(name)?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missing(needs: &Needs<'_>) -> Vec<String> {
        let lacking = parts(needs).into_iter().filter(|part| part.lacks.is_some());
        lacking.map(|part| part.name).collect()
    }

    #[test]
    fn each_need_decides_about_its_parts() {
        let nginx = ["nginx".to_owned()];
        let all = || Needs {
            no_ring: None,
            no_direct: None,
            no_polling: None,
            processors: 2,
            servers: &nginx,
        };
        assert_eq!(missing(&all()), [""; 0]);
        let polled = Needs {
            no_polling: Some("no poll queues"),
            ..all()
        };
        assert_eq!(missing(&polled), ["polled files"]);
        let memory = Needs {
            no_direct: Some("tmpfs"),
            ..all()
        };
        assert_eq!(missing(&memory), ["direct files", "polled files"]);
        let small = Needs {
            processors: 1,
            servers: &[],
            ..all()
        };
        assert_eq!(
            missing(&small),
            ["servers under annulus run", "scaling over processors"]
        );
        let refused = Needs {
            no_ring: Some("seccomp"),
            ..all()
        };
        assert_eq!(missing(&refused).len(), 4);
    }
}
