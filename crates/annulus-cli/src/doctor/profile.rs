//! `annulus doctor --profile`: the rules under which a container or a service may use io_uring.
//!
//! Standard output is the file alone, so that it can be redirected. Standard error says how to use it, what it opens,
//! and what that means for security. The files in `contrib/` are the same; a test compares them.

use std::process::ExitCode;

use serde_json::{Value, json};

use crate::args::ProfileName;
use crate::bench::output::print_text;
use crate::fault::Fault;

/// The default of Docker 29.5 to 29.7: `seccomp/default.json` of github.com/moby/profiles, `seccomp/v0.2.3`, unchanged.
/// Its licence is Apache-2.0 (NOTICE).
const DEFAULT: &str = include_str!("../../profiles/moby-default.json");
/// The rules of the default begin behind this line.
const RULES: &str = "\t\"syscalls\": [\n";
/// The first rule of the generated file, in the style of the default.
const RULE: &str = "\t\t{
\t\t\t\"names\": [
\t\t\t\t\"io_uring_enter\",
\t\t\t\t\"io_uring_register\",
\t\t\t\t\"io_uring_setup\"
\t\t\t],
\t\t\t\"action\": \"SCMP_ACT_ALLOW\",
\t\t\t\"comment\": \"For annulus, from annulus doctor --profile. The other rules are those of moby/profiles seccomp v0.2.3 (Apache-2.0).\"
\t\t},
";
/// The capability with conditional calls that a container has by default.
const CAPABILITY: &str = "CAP_SYS_CHROOT";
/// Docker's names of the architectures that the resolved file is for.
const ARCHITECTURES: [&str; 5] = ["amd64", "x86", "x32", "arm64", "arm"];

const RISK: &str = "\
What that means for security:
  The programs inside can reach the kernel's io_uring, in which many vulnerabilities were found. This is why Docker,
  containerd and Kubernetes refuse it. A seccomp filter sees the three calls, and not the operations in a ring. So a
  ring can also create sockets that the filter refuses to socket(2), such as AF_VSOCK and AF_ALG.
  Use it for containers and services whose programs you trust, on a kernel that gets updates. To limit io_uring on the
  whole machine to one group of users: sysctl kernel.io_uring_disabled=1 kernel.io_uring_group=GID (Linux 6.6).";

/// Prints the file of a profile, and what it means.
pub(super) fn profile(name: ProfileName, command: Option<&str>) -> Result<ExitCode, Fault> {
    let command = command.unwrap_or("COMMAND");
    if command.contains(char::is_control) || command.trim().is_empty() {
        return Err(Fault::usage(
            "--for needs the command of the server in one line, such as 'redis-server --port 6379'",
        ));
    }
    let started = started(command);
    let (file, usage) = match name {
        ProfileName::Docker => (docker(), with_docker("docker", &started)),
        ProfileName::Podman => (docker(), with_docker("podman", &started)),
        ProfileName::Kubernetes => (resolved()?, with_kubernetes(&started)),
        ProfileName::Systemd => (drop_in(&started), with_systemd(command)),
    };
    print_text(&file)?;
    note!("{usage}\n\n{RISK}");
    Ok(ExitCode::SUCCESS)
}

/// Returns the command that starts the server. PostgreSQL has its own rings.
fn started(command: &str) -> String {
    match command.split_whitespace().next() {
        Some("postgres" | "postgresql") => command.to_owned(),
        _ => format!("annulus run -- {command}"),
    }
}

/// Returns Docker's default with one more rule.
fn docker() -> String {
    DEFAULT.replacen(RULES, &[RULES, RULE].concat(), 1) + "\n"
}

/// Returns the same rules in the format of OCI runtimes. containerd reads the files of pods in this format. In Docker's
/// format it would ignore the conditions, and so allow `mount` and `bpf` to all containers.
fn resolved() -> Result<String, Fault> {
    let wrong = |error| failed!("cannot convert the profile: {error}");
    let profile: Value = serde_json::from_str(&docker()).map_err(wrong)?;
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let rules: Vec<Value> = list(&profile["syscalls"])
        .iter()
        .filter(|rule| holds(rule))
        .map(|rule| {
            let kept = ["names", "action", "errnoRet", "args"].map(|key| (key, &rule[key]));
            let kept = kept.into_iter().filter(|(_, value)| !value.is_null());
            kept.map(|(key, value)| (key.to_owned(), value.clone()))
                .collect()
        })
        .collect();
    let resolved = json!({
        "architectures": [
            "SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32", "SCMP_ARCH_AARCH64", "SCMP_ARCH_ARM"
        ],
        "defaultAction": profile["defaultAction"],
        "defaultErrnoRet": profile["defaultErrnoRet"],
        "syscalls": rules,
    });
    Ok(serde_json::to_string_pretty(&resolved).map_err(wrong)? + "\n")
}

/// Returns whether a rule applies to a container with the default capabilities. `minKernel` does on every kernel with
/// io_uring.
fn holds(rule: &Value) -> bool {
    let names = |condition: &str, key: &str| {
        let names = rule[condition][key].as_array().cloned();
        names.unwrap_or_default()
    };
    let is_ours = |name: &Value| ARCHITECTURES.iter().any(|one| name == one);
    let architectures = names("includes", "arches");
    names("includes", "caps")
        .iter()
        .all(|cap| cap == CAPABILITY)
        && (architectures.is_empty() || architectures.iter().any(is_ours))
        && !names("excludes", "caps")
            .iter()
            .any(|cap| cap == CAPABILITY)
        && !names("excludes", "arches").iter().any(is_ours)
}

fn with_docker(runtime: &str, started: &str) -> String {
    format!(
        "\
Save the file, and name it when the container starts (the image contains annulus):
  annulus doctor --profile {runtime} >annulus.json
  {runtime} run --security-opt seccomp=annulus.json IMAGE {started}

What it opens:
  io_uring_setup, io_uring_enter and io_uring_register. The other rules are those of Docker's default profile
  (moby/profiles seccomp v0.2.3, in Docker 29.5 to 29.7)."
    )
}

fn with_kubernetes(started: &str) -> String {
    let pod = pod(started);
    format!(
        "\
Save the file on each node as /var/lib/kubelet/seccomp/annulus.json. The lines of the pod:

{pod}
What it opens:
  io_uring_setup, io_uring_enter and io_uring_register. The other rules are those of Docker's default profile
  (moby/profiles seccomp v0.2.3) for x86-64 and arm64, and a container with the default capabilities. This format has no
  conditions, so added capabilities allow no further calls."
    )
}

/// Returns a pod that uses the profile.
fn pod(started: &str) -> String {
    let command = json!(started.split_whitespace().collect::<Vec<_>>());
    format!(
        "\
apiVersion: v1
kind: Pod
metadata:
  name: server
spec:
  containers:
    - name: server
      image: IMAGE
      command: {command}
      securityContext:
        seccompProfile:
          type: Localhost
          localhostProfile: annulus.json
"
    )
}

/// Returns the lines of a unit. `%` has a meaning there.
fn drop_in(started: &str) -> String {
    let started = started.replace('%', "%%");
    format!(
        "\
# Lets a service use io_uring. Check each line against the unit (systemctl cat UNIT).
[Service]
# The first line removes the unit's own command. The second is that command with its arguments.
ExecStart=
ExecStart={started}
# Only if the unit has NoExecPaths=, as Debian's redis-server.service has:
#ExecPaths=-/usr/bin/annulus -/usr/lib/annulus
# Only if the unit has SystemCallFilter=. Without a list to add to, this line would refuse all other calls:
#SystemCallFilter=io_uring_setup io_uring_enter io_uring_register
"
    )
}

fn with_systemd(command: &str) -> String {
    let unit = command.split_whitespace().next().unwrap_or_default();
    let unit = unit.rsplit('/').next().unwrap_or_default();
    format!(
        "\
Save the lines in the unit's folder, here for the unit {unit}, and restart it:
  mkdir -p /etc/systemd/system/{unit}.service.d
  annulus doctor --profile systemd --for '{command}' >/etc/systemd/system/{unit}.service.d/annulus.conf
  systemctl daemon-reload && systemctl restart {unit}

What it opens:
  the tool and its library may be executed, and io_uring_setup, io_uring_enter and io_uring_register are allowed, each
  only if the unit refuses them."
    )
}
