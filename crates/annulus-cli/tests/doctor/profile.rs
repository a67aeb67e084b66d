//! The files of `--profile`: they equal those in contrib, and processes run under exactly their rules.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::{fs, thread};

use annulus::support::Support;
use annulus_testing::skip::skip;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};
use serde_json::Value;
use syscalls::Sysno;

use crate::command::{command, output, report, rules};

const DEFAULT: &str = include_str!("../../profiles/moby-default.json");
const CONTRIB: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../contrib");
const CALLS: [&str; 3] = ["io_uring_setup", "io_uring_enter", "io_uring_register"];
/// No call of the kernel fails with this error, so it shows that the filter refused the call.
const MARK: u32 = 999;
/// Beyond the last system call.
const NUMBERS: u32 = 600;

/// Returns the file, and what standard error says.
fn profile(kind: &str, server: Option<&str>) -> (String, String) {
    let mut args = vec!["--profile", kind];
    args.extend(server.into_iter().flat_map(|server| ["--for", server]));
    let output = output(command(&args));
    assert_eq!(output.code, Some(0), "{}", output.err);
    (output.out, output.err)
}

#[test]
fn the_files_in_contrib_are_those_of_the_tool() {
    let (docker, said) = profile("docker", None);
    let (kubernetes, pod) = profile("kubernetes", None);
    let (systemd, _) = profile("systemd", None);
    assert_eq!(profile("podman", None).0, docker);
    for (path, content) in [
        ("seccomp/docker.json", &docker),
        ("seccomp/kubernetes.json", &kubernetes),
        ("systemd/annulus.conf", &systemd),
    ] {
        let kept = fs::read_to_string(Path::new(CONTRIB).join(path)).unwrap_or_default();
        assert!(
            kept == *content,
            "contrib/{path} differs from the tool's output"
        );
    }
    let lines = fs::read_to_string(Path::new(CONTRIB).join("kubernetes/pod.yaml")).unwrap();
    assert!(
        pod.contains(&lines),
        "contrib/kubernetes/pod.yaml is not in: {pod}"
    );
    for part in ["What it opens:", "What that means for security:"] {
        assert!(said.contains(part) && pod.contains(part), "{said}{pod}");
    }
}

#[test]
fn dockers_default_gets_one_rule_and_keeps_the_others() {
    let mut with: Value = serde_json::from_str(&profile("docker", None).0).unwrap();
    let default: Value = serde_json::from_str(DEFAULT).unwrap();
    let added = with["syscalls"].as_array_mut().unwrap().remove(0);
    assert_eq!(added["action"], "SCMP_ACT_ALLOW");
    let names: BTreeSet<&str> = strings(&added["names"]).collect();
    assert_eq!(names, CALLS.into());
    assert_eq!(with, default);
}

fn strings(list: &Value) -> impl Iterator<Item = &str> {
    list.as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
}

/// Returns whether a rule of Docker's format applies here, to a container with the default capabilities.
fn applies(rule: &Value) -> bool {
    let own = match std::env::consts::ARCH {
        "aarch64" => ["arm64", "arm"],
        _ => ["amd64", "x86"],
    };
    let is_own = |name: &str| own.contains(&name);
    let is_held = |name: &str| name == "CAP_SYS_CHROOT";
    let (needed, excluded) = (&rule["includes"], &rule["excludes"]);
    strings(&needed["caps"]).all(is_held)
        && (needed["arches"].is_null() || strings(&needed["arches"]).any(is_own))
        && !strings(&excluded["caps"]).any(is_held)
        && !strings(&excluded["arches"]).any(is_own)
}

/// Returns the condition of a rule, if it has one.
fn condition(rule: &Value) -> Option<SeccompRule> {
    let arg = rule["args"].get(0)?;
    let number = |key: &str| arg[key].as_u64().unwrap();
    let (op, value) = match arg["op"].as_str().unwrap() {
        "SCMP_CMP_LT" => (SeccompCmpOp::Lt, number("value")),
        "SCMP_CMP_EQ" => (SeccompCmpOp::Eq, number("value")),
        "SCMP_CMP_GT" => (SeccompCmpOp::Gt, number("value")),
        // Without a second value, the masked bits have to be zero.
        "SCMP_CMP_MASKED_EQ" => (SeccompCmpOp::MaskedEq(number("value")), 0),
        other => panic!("{other}"),
    };
    let index = number("index").try_into().unwrap();
    let condition = SeccompCondition::new(index, SeccompCmpArgLen::Qword, op, value).unwrap();
    Some(SeccompRule::new(vec![condition]).unwrap())
}

/// The filters of a profile: the allowed calls, then the calls with their own error.
struct Rules {
    allowed: BTreeMap<i64, Vec<SeccompRule>>,
    own_error: BTreeMap<i64, Vec<SeccompRule>>,
}

impl Rules {
    fn of(profile: &str) -> Rules {
        let profile: Value = serde_json::from_str(profile).unwrap();
        let mut rules = Rules {
            allowed: BTreeMap::new(),
            own_error: BTreeMap::new(),
        };
        let mut without_condition = BTreeSet::new();
        let all = profile["syscalls"].as_array().unwrap();
        for rule in all.iter().filter(|rule| applies(rule)) {
            let list = match rule["action"].as_str().unwrap() {
                "SCMP_ACT_ALLOW" => &mut rules.allowed,
                _ => {
                    assert_eq!(rule["errnoRet"], 38);
                    &mut rules.own_error
                }
            };
            // Names of other architectures have no number here.
            for call in strings(&rule["names"]).filter_map(|name| name.parse::<Sysno>().ok()) {
                let number = i64::from(call.id());
                let conditions = list.entry(number).or_default();
                match condition(rule) {
                    Some(condition) => conditions.push(condition),
                    None => drop(without_condition.insert(number)),
                }
            }
        }
        for number in without_condition {
            rules.allowed.entry(number).and_modify(Vec::clear);
        }
        rules
    }

    /// Runs `body` under these rules. The calls that they refuse fail with `errno`.
    fn run<T: Send>(&self, errno: u32, body: impl FnOnce() -> T + Send) -> T {
        let filter = |rules: &BTreeMap<_, _>, mismatch, matching| {
            let arch = std::env::consts::ARCH.try_into().unwrap();
            let filter = SeccompFilter::new(rules.clone(), mismatch, matching, arch).unwrap();
            BpfProgram::try_from(filter).unwrap()
        };
        let (allow, error) = (SeccompAction::Allow, SeccompAction::Errno);
        // The error of the filter that was loaded last counts.
        let filters = [
            filter(&self.allowed, error(errno), allow.clone()),
            filter(&self.own_error, allow, error(38)),
        ];
        thread::scope(|scope| {
            let thread = scope.spawn(|| {
                for filter in &filters {
                    seccompiler::apply_filter(filter).unwrap();
                }
                body()
            });
            thread.join().unwrap()
        })
    }

    /// Makes each call under these rules, and returns the errors.
    fn errors(&self, calls: &[String]) -> Vec<String> {
        // A call is its number and arguments.
        let script = "for (@ARGV) { my @c = map { $_ + 0 } split /,/; push @c, (0) x (7 - @c); $! = 0; \
                      my $r = syscall(shift @c, @c); print $r == -1 ? $! + 0 : 0, \"\\n\" }";
        let output = self.run(MARK, || {
            let mut perl = Command::new("perl");
            perl.args(["-e", script]).args(calls).output().unwrap()
        });
        let why = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {why}", output.status);
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().map(str::to_owned).collect()
    }
}

#[test]
fn every_call_that_dockers_default_refuses_is_refused_but_for_the_three() {
    if Command::new("perl").arg("-e1").output().is_err() {
        return skip("system calls by number need perl");
    }
    let default = Rules::of(DEFAULT);
    let opened = CALLS.map(|name| name.parse::<Sysno>().unwrap().id().to_string());
    let refused = (0..NUMBERS).filter(|&number| !default.allowed.contains_key(&number.into()));
    let mut calls: Vec<String> = refused.map(|number| number.to_string()).collect();
    // Only some arguments of these are allowed: AF_ALG, AF_VSOCK, a user namespace, another personality.
    let (socket, clone) = (Sysno::socket.id(), Sysno::clone.id());
    let personality = Sysno::personality.id();
    calls.extend(["38,1", "40,1"].map(|args| format!("{socket},{args}")));
    calls.push(format!("{clone},{}", 0x1000_0000 | 17));
    calls.push(format!("{personality},1"));
    let mark = MARK.to_string();
    let before = default.errors(&calls);
    assert!(calls.len() > 150, "{calls:?}");
    for (call, error) in calls.iter().zip(&before) {
        let own = *call == Sysno::clone3.id().to_string();
        // The kernel lets its own call of uprobes pass every filter (x86-64).
        let refuses = *error == mark || own && error == "38" || call == "336";
        assert!(refuses, "{call}: {error}");
    }
    for kind in ["docker", "kubernetes"] {
        let after = Rules::of(&profile(kind, None).0).errors(&calls);
        for ((call, before), after) in calls.iter().zip(&before).zip(&after) {
            let is_opened = opened.contains(call);
            assert_eq!(
                after != before,
                is_opened,
                "{kind}: {call}: {before} {after}"
            );
        }
    }
}

#[test]
fn under_dockers_default_doctor_names_the_profile_and_under_it_the_ring_works() {
    if Support::detect().ring().is_err() {
        return skip("a ring under the profile needs io_uring");
    }
    let quick = || report(command(&["--quick", "--json"]));
    let before = Rules::of(DEFAULT).run(1, quick);
    assert_eq!(rules(&before)[0], "seccomp-refuses");
    let next = before["advice"][0]["next"].as_str().unwrap();
    assert!(next.contains("--profile docker"), "{next}");
    for kind in ["docker", "kubernetes"] {
        let rules = Rules::of(&profile(kind, None).0);
        let report = rules.run(1, || report(command(&["--json"])));
        assert_ne!(report["verdict"], "no-io-uring", "{}", report["advice"]);
        let figures = report["figures"]["figures"].as_array().unwrap();
        for what in ["nop32", "echo-ring"] {
            assert!(
                figures.iter().any(|figure| figure["what"] == what),
                "{figures:?}"
            );
        }
    }
}

#[test]
fn systemd_accepts_the_lines_of_a_unit() {
    if Command::new("systemd-analyze")
        .arg("--version")
        .output()
        .is_err()
    {
        return skip("lines of a unit need systemd-analyze");
    }
    let dir = tempfile::tempdir().unwrap();
    let (unit, lines) = (
        dir.path().join("one.service"),
        dir.path().join("one.service.d"),
    );
    fs::create_dir(&lines).unwrap();
    fs::write(
        &unit,
        "[Service]\nExecStart=/bin/true\nSystemCallFilter=@system-service\n",
    )
    .unwrap();
    let file = profile("systemd", Some("/bin/true --share 50%")).0;
    assert!(
        file.contains("annulus run -- /bin/true --share 50%%\n"),
        "{file}"
    );
    // All lines, and a tool that exists.
    let all = file.replace("\n#E", "\nE").replace("\n#S", "\nS").replace(
        "annulus run",
        concat!(env!("CARGO_BIN_EXE_annulus"), " run"),
    );
    fs::write(lines.join("annulus.conf"), all).unwrap();
    let mut verify = Command::new("systemd-analyze");
    verify
        .arg("verify")
        .arg(&unit)
        .env("SYSTEMD_UNIT_PATH", format!("{}:", dir.path().display()));
    let output = verify.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && !said.contains("one.service"),
        "{said}"
    );
}

#[test]
fn a_server_with_its_own_rings_starts_without_the_library() {
    let (_, said) = profile("docker", Some("postgres -D /data"));
    assert!(said.contains("IMAGE postgres -D /data\n"), "{said}");
    let (_, said) = profile("kubernetes", Some("redis-server --port 7001"));
    let command = r#"command: ["annulus","run","--","redis-server","--port","7001"]"#;
    assert!(said.contains(command), "{said}");
    for wrong in ["", "two\nlines"] {
        let output = output(self::command(&["--profile", "docker", "--for", wrong]));
        assert_eq!(output.code, Some(2), "{}", output.err);
    }
}
