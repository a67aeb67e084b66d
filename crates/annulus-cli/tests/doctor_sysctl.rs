//! `annulus doctor` on a machine whose `kernel.io_uring_disabled` is 1 and 2 (Linux 6.6 or later, as root). The sysctl
//! affects the whole machine, so `ci/kernel` runs this test in a guest.

// `CARGO_BIN_EXE_annulus` is only defined for the tests of this package.
#[path = "doctor/command.rs"]
mod command;

use std::os::unix::process::CommandExt;

use annulus_testing::sysctl::{ChangedSysctl, DISABLED};
use command::{command, output, report, rules};

const GROUP: &str = "/proc/sys/kernel/io_uring_group";
const USER: u32 = 54_321;

/// Returns the command as an ordinary user in `group`.
fn as_user(group: u32) -> std::process::Command {
    let mut command = command(&["--quick", "--json"]);
    command.uid(USER).gid(group).current_dir("/");
    command
}

#[test]
#[ignore = "changes kernel.io_uring_disabled of the whole machine; ci/kernel runs it in a guest"]
fn the_sysctl_is_named_with_its_value_and_its_group() {
    {
        let _changed = ChangedSysctl::to(DISABLED, "2");
        let output = output(command(&["--quick"]));
        assert_eq!(output.code, Some(77), "{}", output.out);
        assert!(
            output.out.contains("kernel.io_uring_disabled = 2"),
            "{}",
            output.out
        );
        let report = report(command(&["--quick", "--json"]));
        assert_eq!(rules(&report)[0], "sysctl-forbids", "{}", report["advice"]);
    }
    let _changed = ChangedSysctl::to(DISABLED, "1");
    assert_ne!(
        report(command(&["--quick", "--json"]))["exit_code"],
        77,
        "root is exempt"
    );
    let outside = report(as_user(USER));
    assert_eq!(
        rules(&outside)[0],
        "sysctl-forbids-this-user",
        "{}",
        outside["advice"]
    );
    assert_eq!(outside["exit_code"], 77);
    let _group = ChangedSysctl::to(GROUP, "54322");
    let outside = report(as_user(USER));
    let next = outside["advice"][0]["next"].as_str().unwrap();
    assert!(next.contains("add the user to group 54322"), "{next}");
    let member = report(as_user(54_322));
    assert_ne!(
        member["causes"],
        serde_json::json!(["sysctl-forbids-this-user"])
    );
    assert_eq!(member["environment"]["policy"]["is_in_group"], true);
}
