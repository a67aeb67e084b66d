//! The programs: compiled once, and run to completion.

use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};

use annulus_testing::once::once_per_run;
use annulus_testing::skip::skip;

use super::{Counts, Duration, Instant};
use crate::library;

/// Returns the time after which a program hangs, and its process group is killed. No case takes more than two seconds
/// on a machine that is idle; SLOWNESS says how many times as long an emulated processor takes.
fn longest() -> Duration {
    let slowness = std::env::var("SLOWNESS").map_or(1, |times| times.parse().unwrap());
    Duration::from_secs(80) * slowness
}

/// The language of a program.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Language {
    C,
    /// Linked statically, so that no library can be preloaded.
    StaticC,
    Python,
    Go,
}

/// A program of `tests/apps`; each is one of the statics below.
pub(crate) struct Program {
    pub(crate) name: &'static str,
    language: Language,
    built: OnceLock<Option<Built>>,
    cases: OnceLock<Vec<Case>>,
}

/// The command of a program that was built.
pub(crate) struct Built {
    pub(crate) command: Vec<PathBuf>,
}

/// A case as its program describes it.
pub(crate) struct Case {
    pub(crate) name: String,
    /// The case needs root.
    pub(crate) as_root: bool,
    /// The case is about connections that pass through.
    pub(crate) passes: bool,
    /// Counters that the library must have increased, such as `served:read`, or upper limits: `enters<=40`.
    pub(crate) counted: Vec<String>,
}

/// The exit and the output of a program.
pub(crate) struct Run {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) exit: String,
    pub(crate) counts: Counts,
    /// The text of the library's log.
    pub(crate) log: String,
}

/// The library that is preloaded, if any, and the variables of a run.
pub(crate) struct With {
    library: bool,
    counted: bool,
    variables: Vec<(&'static str, String)>,
}

impl With {
    pub(crate) fn nothing() -> With {
        With {
            library: false,
            counted: false,
            variables: Vec::new(),
        }
    }

    /// The library with counters in a log, which the run reads, and with batching from the first round on.
    pub(crate) fn library() -> With {
        With::as_it_is().set("ANNULUS_HOLD", "1")
    }

    /// The library with counters in a log.
    pub(crate) fn as_it_is() -> With {
        With {
            counted: true,
            ..With::preloaded_only()
        }
    }

    /// The library without any of its variables.
    pub(crate) fn preloaded_only() -> With {
        With {
            library: true,
            ..With::nothing()
        }
    }

    /// The library, and before it one that changes the operator's switch at every second wait.
    pub(crate) fn switched() -> Option<With> {
        static SWITCHER: OnceLock<Option<Built>> = OnceLock::new();
        let switcher = SWITCHER.get_or_init(|| {
            Built::compiled("switcher", |output| {
                let mut compiler = Command::new("cc");
                compiler.args(["-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o"]);
                let source = apps().with_file_name("differential/switcher.c");
                compiler.arg(output).arg(source);
                compiler
            })
        });
        let switcher = switcher.as_ref()?.command[0].display();
        let both = format!("{switcher} {}", library().display());
        let address = annulus::metrics::layout::switch::REQUEST_OFFSET.to_string();
        let with = With::library().set("LD_PRELOAD", &both);
        Some(with.set("SWITCHER_WORD", &address))
    }

    pub(crate) fn set(mut self, name: &'static str, value: &str) -> With {
        self.variables.push((name, value.to_owned()));
        self
    }
}

impl Program {
    pub(crate) const fn c(name: &'static str) -> Program {
        Program::new(name, Language::C)
    }

    pub(crate) const fn static_c(name: &'static str) -> Program {
        Program::new(name, Language::StaticC)
    }

    pub(crate) const fn python(name: &'static str) -> Program {
        Program::new(name, Language::Python)
    }

    pub(crate) const fn go(name: &'static str) -> Program {
        Program::new(name, Language::Go)
    }

    const fn new(name: &'static str, language: Language) -> Program {
        Program {
            name,
            language,
            built: OnceLock::new(),
            cases: OnceLock::new(),
        }
    }

    /// Builds the program on first use. `None`, reported once, if its compiler or interpreter is missing.
    pub(crate) fn built(&self) -> Option<&Built> {
        let build = || match self.language {
            Language::C => compile(self.name, &["-pthread"]),
            Language::StaticC => compile(self.name, &["-pthread", "-static"]),
            Language::Python => python(self.name),
            Language::Go => go(self.name),
        };
        self.built.get_or_init(build).as_ref()
    }

    /// Returns its cases; empty if it cannot be built.
    pub(crate) fn cases(&self) -> &[Case] {
        let list = || {
            let Some(built) = self.built() else {
                return Vec::new();
            };
            let output = built.run(&["--cases"], &With::nothing()).stdout;
            output.lines().map(Case::of_line).collect()
        };
        self.cases.get_or_init(list)
    }
}

impl Case {
    fn of_line(line: &str) -> Case {
        let (name, counted) = line.split_once('\t').unwrap();
        let words = || counted.split_whitespace();
        let counted = words().filter(|word| word.contains([':', '<']));
        Case {
            name: name.to_owned(),
            as_root: words().any(|word| word == "root"),
            passes: words().any(|word| word == "passes" || word.starts_with("passed:")),
            counted: counted.map(str::to_owned).collect(),
        }
    }
}

impl Built {
    /// Builds a program with `compiler`, which gets the name of the output file. The next run of the tests reuses the
    /// name. `None` if the compiler is missing.
    fn compiled(name: &str, compiler: impl FnOnce(&Path) -> Command) -> Option<Built> {
        let path = once_per_run(target_tmp(), &format!("app-{name}"), || {
            let output = scratch("app");
            let mut compiler = compiler(&output);
            let result = match compiler.output() {
                Ok(result) => result,
                Err(error) => {
                    skip(format_args!("no compiler for {name}: {error}"));
                    return None;
                }
            };
            let complaints = String::from_utf8_lossy(&result.stderr);
            assert!(result.status.success(), "{compiler:?}: {complaints}");
            let path = output.with_file_name(format!("preload-app-{name}"));
            std::fs::rename(output, &path).unwrap();
            Some(path)
        })?;
        Some(Built {
            command: vec![path],
        })
    }

    /// Runs the program until all its processes have ended: the transcript ends when the last one closes the pipes.
    pub(crate) fn run(&self, arguments: &[&str], with: &With) -> Run {
        let mut command = Command::new(&self.command[0]);
        command.args(&self.command[1..]).args(arguments);
        for (name, _) in std::env::vars_os() {
            if name == "LD_PRELOAD" || name.to_string_lossy().starts_with("ANNULUS_") {
                command.env_remove(name);
            }
        }
        let log = scratch("log");
        if with.library {
            // A set gets its ring with the first connection, unless the test says otherwise.
            (command.env("LD_PRELOAD", library())).env("ANNULUS_MIN_CONNECTIONS", "1");
        }
        if with.counted {
            command.env("ANNULUS_STATS", "1").env("ANNULUS_LOG", &log);
        }
        command.envs(with.variables.iter().map(|(name, value)| (name, value)));
        let (stdout, stderr, exit) = to_the_end(command);
        let log_text = std::fs::read_to_string(&log).unwrap_or_default();
        let _ = std::fs::remove_file(&log);
        Run {
            stdout,
            stderr,
            exit,
            counts: Counts::of_log(&log_text),
            log: log_text,
        }
    }
}

impl Run {
    /// Returns the output on stderr, without lines of the library.
    pub(crate) fn stderr_without_library(&self) -> String {
        let lines = self.stderr.lines();
        let others = lines.filter(|line| !line.starts_with("annulus: "));
        others.map(|line| format!("{line}\n")).collect()
    }
}

fn to_the_end(mut command: Command) -> (String, String, String) {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    let mut child = command
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let stdout = collect(child.stdout.take().unwrap());
    let stderr = collect(child.stderr.take().unwrap());
    let end = Instant::now() + longest();
    let mut late = false;
    let mut remaining = |output: Receiver<Vec<u8>>, child: &Child| {
        let mut text = output.recv_timeout(end.saturating_duration_since(Instant::now()));
        if text.is_err() {
            late = true;
            kill_group(child);
            text = output.recv_timeout(Duration::from_secs(5));
        }
        String::from_utf8_lossy(&text.unwrap_or_default()).into_owned()
    };
    let (stdout, stderr) = (remaining(stdout, &child), remaining(stderr, &child));
    let status = wait(&mut child, end);
    let exit = if late {
        format!("killed after {} s", longest().as_secs())
    } else {
        ended(status)
    };
    (stdout, stderr, exit)
}

/// Waits for a program, which may close its pipes before it ends.
fn wait(child: &mut Child, end: Instant) -> ExitStatus {
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if Instant::now() > end {
            kill_group(child);
            return child.wait().unwrap();
        }
        std::thread::sleep(Duration::from_micros(500));
    }
}

fn ended(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit {code}"),
        (None, signal) => format!("signal {}", signal.unwrap_or(-1)),
    }
}

fn collect(mut pipe: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = pipe.read_to_end(&mut bytes);
        let _ = sender.send(bytes);
    });
    receiver
}

fn kill_group(child: &Child) {
    let group = format!("-{}", child.id());
    let _ = Command::new("kill").args(["-KILL", "--", &group]).status();
}

/// Returns the path of a new temporary file of this run.
pub(crate) fn scratch(kind: &str) -> PathBuf {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("preload-{}-{number}.{kind}", std::process::id());
    target_tmp().join(name)
}

/// Returns the folder for test files in cargo's target directory.
fn target_tmp() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

/// Returns the folder of the programs.
pub(crate) fn apps() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/apps")
}

fn compile(name: &str, flags: &[&str]) -> Option<Built> {
    let source = apps().join(format!("{name}.c"));
    let suffix = if flags.contains(&"-static") {
        "-static"
    } else {
        ""
    };
    Built::compiled(&format!("{name}{suffix}"), |output| {
        let mut compiler = Command::new("cc");
        compiler.args(["-O1", "-g", "-w", "-o"]).arg(output);
        compiler.arg(source).args(flags);
        compiler
    })
}

/// Builds a library that is loaded together with the preload library.
pub(crate) fn shared(name: &str) -> Option<PathBuf> {
    let built = compile(name, &["-shared", "-fPIC"])?;
    built.command.into_iter().next()
}

fn python(name: &str) -> Option<Built> {
    let probe = Command::new("python3")
        .args([
            "-c",
            "import asyncio, http.server, sys; print(sys.executable)",
        ])
        .output();
    let available = probe.ok().filter(|output| output.status.success());
    let Some(available) = available else {
        skip(format_args!("no python3 with its library for {name}"));
        return None;
    };
    // The interpreter itself: the program in PATH may be a script that starts it.
    let interpreter = String::from_utf8(available.stdout).unwrap().trim().into();
    Some(Built {
        command: vec![interpreter, apps().join(format!("{name}.py"))],
    })
}

fn go(name: &str) -> Option<Built> {
    Built::compiled(name, |output| {
        let mut compiler = Command::new("go");
        compiler
            .args(["build", "-o"])
            .arg(output)
            .arg(apps().join(format!("{name}.go")))
            .env("GOFLAGS", "-trimpath")
            .env("GO111MODULE", "off");
        compiler
    })
}
