//! Tests of the parsers, and of the help texts.

use std::time::Duration;

use super::Args;
use super::value::{parse_bytes, parse_limit, parse_seconds, parse_time};

#[test]
fn bytes_are_read_as_fio_reads_them() {
    assert_eq!(parse_bytes("512"), Ok(512));
    assert_eq!(parse_bytes("4k"), Ok(4096));
    assert_eq!(parse_bytes("16KiB"), Ok(16384));
    assert_eq!(parse_bytes("2G"), Ok(2 << 30));
    assert!(parse_bytes("4x").is_err());
    assert!(parse_bytes("").is_err());
    assert!(parse_bytes("-1").is_err());
    assert!(parse_bytes("99999999999T").is_err());
}

#[test]
fn times_are_read_with_and_without_a_unit() {
    assert_eq!(parse_seconds("0.05"), Ok(Duration::from_millis(50)));
    assert_eq!(parse_seconds("200ms"), Ok(Duration::from_millis(200)));
    assert_eq!(parse_seconds("2m"), Ok(Duration::from_secs(120)));
    for bad in ["0", "-1", "NaN", "inf", "x", ""] {
        assert!(parse_seconds(bad).is_err(), "{bad}");
        assert!(parse_limit(bad).is_err(), "{bad}");
        assert_eq!(parse_time(bad).is_ok(), bad == "0", "{bad}");
    }
}

#[test]
fn the_command_line_is_consistent() {
    use clap::CommandFactory;
    Args::command().debug_assert();
}

/// The number of lines that fit on a screen.
const SCREEN_LINES: usize = 50;

/// Calls `check` with the path of each command that is not hidden.
fn for_each_command(
    mut command: clap::Command,
    path: &str,
    check: &mut dyn FnMut(&str, clap::Command),
) {
    let path = format!("{path} {}", command.get_name());
    // A terminal of the usual width.
    command = command.term_width(80).max_term_width(80);
    command.build();
    for child in command
        .get_subcommands()
        .filter(|child| !child.is_hide_set())
    {
        if child.get_name() != "help" {
            for_each_command(child.clone(), &path, check);
        }
    }
    check(&path, command);
}

#[test]
fn the_short_help_of_every_command_fits_on_a_screen() {
    use clap::CommandFactory;
    let mut commands = 0;
    for_each_command(Args::command(), "", &mut |path, mut command| {
        let help = command.render_help().to_string();
        let lines = help.lines().count();
        assert!(
            lines <= SCREEN_LINES,
            "{path} -h has {lines} lines:\n{help}"
        );
        let is_summary = command
            .get_arguments()
            .any(|option| option.is_hide_short_help_set());
        assert!(
            !is_summary || help.contains("--help lists all options"),
            "{path} -h:\n{help}"
        );
        commands += 1;
    });
    assert!(commands >= 15, "{commands}");
}

#[test]
fn the_long_help_of_every_command_lists_all_options() {
    use clap::CommandFactory;
    for_each_command(Args::command(), "", &mut |path, mut command| {
        let help = command.render_long_help().to_string();
        for option in command
            .get_arguments()
            .filter_map(|option| option.get_long())
        {
            assert!(
                help.contains(&format!("--{option}")),
                "{path} --help lacks --{option}"
            );
        }
    });
}

#[test]
fn the_help_of_the_tool_starts_with_its_purpose_and_its_commands() {
    use clap::CommandFactory;
    let mut command = Args::command().term_width(80).max_term_width(80);
    let help = command.render_help().to_string();
    let first: Vec<&str> = help.lines().take(16).collect();
    assert!(first[0].contains("io_uring"), "{help}");
    for child in [
        "doctor", "bench", "serve", "run", "release", "resume", "top", "enable", "disable",
        "status",
    ] {
        assert!(
            first
                .iter()
                .any(|line| line.trim_start().starts_with(child)),
            "{child}: {help}"
        );
    }
}

/// ci/install runs this, and puts the files into the Debian package.
#[test]
#[ignore = "ci/install"]
fn the_man_pages_and_completions_are_written() {
    use std::fs;
    use std::path::Path;

    use clap::CommandFactory;
    use clap_complete::Shell;

    let root = std::env::var_os("ANNULUS_PAGES").expect("ANNULUS_PAGES names a folder");
    let folder = |path: &str| {
        let folder = Path::new(&root).join(path);
        fs::create_dir_all(&folder).unwrap();
        folder
    };
    clap_mangen::generate_to(Args::command(), folder("man")).unwrap();
    for (shell, path, name) in [
        (
            Shell::Bash,
            "usr/share/bash-completion/completions",
            "annulus",
        ),
        (
            Shell::Fish,
            "usr/share/fish/vendor_completions.d",
            "annulus.fish",
        ),
        (Shell::Zsh, "usr/share/zsh/vendor-completions", "_annulus"),
    ] {
        let mut file = fs::File::create(folder(path).join(name)).unwrap();
        clap_complete::generate(shell, &mut Args::command(), "annulus", &mut file);
    }
}
