//! The plan of `bench all`: the command line of each part, and the number of its runs.

use std::fs;
use std::path::Path;

use super::parts::installed;
use crate::fault::Fault;

/// A part, as arguments of `annulus bench`.
pub(super) struct Step {
    pub(super) name: String,
    /// `file` or `net`.
    pub(super) kind: Kind,
    pub(super) arguments: Vec<String>,
    /// The number of runs, which decides about its share of the time.
    pub(super) runs: usize,
    /// The number of processors, for a part of the scaling.
    pub(super) processors: Option<usize>,
    /// A server that must be served under `annulus run`.
    pub(super) server: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Files,
    Network,
}

/// The variants of files, without the base, which is always measured.
const DIRECT: &str = "annulus,annulus-many,annulus-own,annulus-arena,annulus-tokio,annulus-iopoll,base-chunk2,libaio,\
                      pread,tokio-blocking";
const CACHED: &str = "annulus,annulus-own,annulus-tokio,pread,mmap,tokio-blocking";
const WRITES: &str = "annulus,annulus-own,libaio,pread";
const SCALED: &str = "annulus,annulus-own,pread";

/// Plans all parts. `scratch` is a folder for configurations, `processors` are those that this process may use.
pub(super) fn steps(
    dir: &Path,
    scratch: &Path,
    processors: &[usize],
    short: bool,
) -> Result<Vec<Step>, Fault> {
    let plan = Plan {
        dir: dir.display().to_string(),
        repeats: if short { 1 } else { 5 },
        short,
    };
    let mut steps = vec![
        plan.files(
            "direct reads",
            &["--size", plan.size("1G")],
            DIRECT,
            &["1", "8", "32"],
        ),
        plan.files(
            "cached reads",
            &["--hot", "--size", plan.size("256M")],
            CACHED,
            &["32"],
        ),
        plan.files(
            "direct writes",
            &["--rw", "randwrite", "--size", plan.size("256M")],
            WRITES,
            &["8"],
        ),
        plan.network("echo servers", &["echo"], &["50", "500"], 5),
        plan.network(
            "HTTP servers",
            &["http", "--what", "respond,16k"],
            &["200"],
            8,
        ),
    ];
    for (name, program) in installed() {
        let program = program.display().to_string();
        steps.extend(plan.preloaded(name, &program, scratch)?);
    }
    for count in counts(processors.len()) {
        let threads = count.to_string();
        let depth = (32 * count).to_string();
        let given = ["--hot", "--size", plan.size("64M"), "--threads", &threads];
        let mut step = plan.files(
            &format!("cached reads, {}", on(count)),
            &given,
            SCALED,
            &[&depth],
        );
        step.processors = Some(count);
        steps.push(step);
    }
    for count in counts(processors.len().saturating_sub(1)) {
        steps.push(plan.scaled_network(count, processors));
    }
    Ok(steps)
}

/// Returns the numbers of processors to measure: powers of two, and all.
fn counts(all: usize) -> Vec<usize> {
    let powers = std::iter::successors(Some(1), |count| Some(count * 2));
    let mut counts: Vec<usize> = powers.take_while(|&count| count < all).collect();
    counts.extend((all > 0).then_some(all));
    counts
}

fn on(processors: usize) -> String {
    match processors {
        1 => "1 processor".to_owned(),
        count => format!("{count} processors"),
    }
}

struct Plan {
    dir: String,
    repeats: usize,
    short: bool,
}

impl Plan {
    fn size<'a>(&self, full: &'a str) -> &'a str {
        if self.short { "1M" } else { full }
    }

    fn step(&self, name: &str, kind: Kind, arguments: Vec<String>, runs_per_repeat: usize) -> Step {
        let mut step = Step {
            name: name.to_owned(),
            kind,
            arguments,
            runs: runs_per_repeat * self.repeats,
            processors: None,
            server: None,
        };
        step.arguments
            .extend(["--repeat".into(), self.repeats.to_string()]);
        step
    }

    fn files(&self, name: &str, given: &[&str], variants: &str, depths: &[&str]) -> Step {
        let (variants, depths) = match self.short {
            true => ("annulus,annulus-iopoll,pread", &depths[..1]),
            false => (variants, depths),
        };
        let depth = depths.join(",");
        let fixed = [
            "file",
            "--dir",
            &self.dir,
            "--variants",
            variants,
            "--depth",
            &depth,
        ];
        let arguments = fixed
            .iter()
            .chain(given)
            .map(|&argument| argument.to_owned());
        let runs = (variants.split(',').count() + 1) * depths.len();
        self.step(name, Kind::Files, arguments.collect(), runs)
    }

    /// `runs`: the number of servers and responses per number of connections.
    fn network(&self, name: &str, given: &[&str], connections: &[&str], runs: usize) -> Step {
        let connections = match self.short {
            true => &["4"],
            false => connections,
        };
        let list = connections.join(",");
        let fixed = ["--connections", &list];
        let arguments = ["net"].iter().chain(given).chain(&fixed);
        let arguments = arguments.map(|&argument| argument.to_owned());
        let mut step = self.step(
            name,
            Kind::Network,
            arguments.collect(),
            runs * connections.len(),
        );
        if self.short {
            step.arguments.extend(["--warmup".into(), "0.01".into()]);
        }
        step
    }

    /// Plans a server with and without the preload library. The variant `epoll` is the unmodified server.
    fn preloaded(&self, name: &str, program: &str, scratch: &Path) -> Result<Option<Step>, Fault> {
        // `--server-cmd` splits its command at spaces.
        if format!("{program}{}", scratch.display()).contains(' ') {
            return Ok(None);
        }
        let command = match name {
            "redis-server" => {
                let conf = scratch.join("redis.conf");
                fs::write(&conf, "bind 127.0.0.1\nsave \"\"\nappendonly no\n")
                    .map_err(|error| failed!("writing {}: {error}", conf.display()))?;
                format!("{program} {} --port {{port}}", conf.display())
            }
            "memcached" => format!("{program} -u root -l 127.0.0.1 -p {{port}} -U 0 -t 1 -c 4096"),
            _ => {
                let given = [
                    "http",
                    "--what",
                    "respond,16k",
                    "--variants",
                    "nginx,nginx-preload",
                ];
                let mut step = self.network("nginx under annulus run", &given, &["200"], 4);
                step.server = Some(program.to_owned());
                return Ok(Some(step));
            }
        };
        let protocol = if name == "memcached" {
            "memcached"
        } else {
            "redis"
        };
        let plain = format!("epoll={command}");
        // The program that executes this command is the tool itself.
        let preloaded = format!("annulus=/proc/self/exe run -- {command}");
        let given = [
            protocol,
            "--keys",
            "10000",
            "--size",
            "64",
            "--fill",
            "--server-cmd",
            &plain,
            "--server-cmd",
            &preloaded,
        ];
        let mut step = self.network(&format!("{protocol} under annulus run"), &given, &["50"], 2);
        step.server = Some(program.to_owned());
        Ok(Some(step))
    }

    /// Plans echo servers with `count` cores. All other processors, but at most as many, generate the load.
    fn scaled_network(&self, count: usize, processors: &[usize]) -> Step {
        let list = |part: &[usize]| {
            let part: Vec<String> = part.iter().map(usize::to_string).collect();
            part.join(",")
        };
        let (servers, clients) = processors.split_at(count);
        let clients = &clients[..clients.len().min(count)];
        let command = format!("server=/proc/self/exe serve echo --addr {{addr}} --threads {count}");
        let threads = clients.len().to_string();
        let connections = (64 * count).to_string();
        let (servers, clients) = (list(servers), list(clients));
        let given = [
            "echo",
            "--variants",
            "none",
            "--server-cmd",
            &command,
            "--server-cpu",
            &servers,
            "--cpu",
            &clients,
            "--threads",
            &threads,
        ];
        let connections = [connections.as_str()];
        let full = Plan {
            short: false,
            repeats: self.repeats,
            dir: self.dir.clone(),
        };
        let name = format!("echo server, {}", on(count));
        let mut step = full.network(&name, &given, &connections, 1);
        if self.short {
            step.arguments.extend(["--warmup".into(), "0.01".into()]);
        }
        step.processors = Some(count);
        step
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scaling_covers_powers_of_two_and_all_processors() {
        assert_eq!(counts(1), [1]);
        assert_eq!(counts(2), [1, 2]);
        assert_eq!(counts(6), [1, 2, 4, 6]);
        assert_eq!(counts(8), [1, 2, 4, 8]);
        assert_eq!(counts(0), [0; 0]);
    }
}
