//! Counts system calls with `strace -c`, which stops the program at each call. Used if perf is missing or not
//! permitted.

use super::calls::Counted;
use super::is_installed;
use super::tracer::Tracer;

const HINT: &str = "run as root, or set sysctl kernel.yama.ptrace_scope=0";

/// A running `strace -c`.
pub(crate) struct Counter {
    tracer: Tracer,
}

impl Counter {
    pub(super) fn start(pids: &[u32]) -> Result<Counter, String> {
        if !is_installed("strace") {
            return Err("strace is not installed (Debian: apt install strace)".into());
        }
        let mut arguments: Vec<String> = ["-f", "-c", "-U", "name,calls,errors"]
            .map(String::from)
            .into();
        for pid in pids {
            arguments.extend(["-p".to_string(), pid.to_string()]);
        }
        let mut tracer = Tracer::start("strace", &arguments, None)?;
        for pid in pids {
            let attached = format!("strace: Process {pid} attached");
            tracer
                .wait_for(|line| line.starts_with(&attached))
                .map_err(|why| format!("strace: {why}; {HINT}"))?;
        }
        Ok(Counter { tracer })
    }

    pub(super) fn stop(self) -> Result<Counted, String> {
        read(&self.tracer.end().map_err(|why| format!("strace: {why}"))?)
    }
}

/// Parses the output of strace: between two rules, a line for each name with its calls and, if any, its errors.
pub(super) fn read(text: &str) -> Result<Counted, String> {
    let is_rule = |line: &&str| line.starts_with("---");
    let table = text.lines().skip_while(|line| !is_rule(line)).skip(1);
    let mut names = Vec::new();
    for line in table.take_while(|line| !is_rule(line)) {
        let mut fields = line.split_whitespace();
        let name = fields.next();
        let (count, errors) = (fields.next().map(str::parse), fields.next().map(str::parse));
        let (Some(name), Some(Ok(count)), Ok(errors)) = (name, count, errors.unwrap_or(Ok(0)))
        else {
            return Err(format!("strace: no count of calls: `{line}`"));
        };
        names.push((name.to_string(), count, errors));
    }
    // strace prints no table if there were no calls.
    let all = names.iter().map(|(_, count, _)| count).sum();
    Ok(Counted::new("strace", all, names))
}
