//! `annulus bench multiget`: starts a program that is built separately, because it depends on SlateDB and RocksDB.

use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::args::MultigetArgs;
use crate::fault::Fault;

const PROGRAM: &str = "annulus-multiget";
const BUILT: &str = "bench/target/release";

/// Runs the command. Returns only if the program cannot be executed.
pub(crate) fn multiget(args: &MultigetArgs) -> Result<ExitCode, Fault> {
    let program = args.program.clone().or_else(built);
    let program = program.unwrap_or_else(|| PROGRAM.into());
    let error = Command::new(&program).args(&args.options).exec();
    let program = program.display();
    Err(match error.kind() {
        ErrorKind::NotFound if args.program.is_none() => failed!(
            "the program {PROGRAM} is not built: it is not beside this tool, not in {BUILT} and not in PATH. In the \
             clone of Annulus run `cargo build --release --locked --manifest-path bench/Cargo.toml -p {PROGRAM} \
             --features rocksdb`. Without that feature, which takes about 15 minutes, the table has no rows of RocksDB"
        ),
        _ => failed!("cannot execute {program}: {error}; see --program"),
    })
}

/// Returns the program if it is beside this tool, or built in a clone that contains the current directory.
fn built() -> Option<PathBuf> {
    let tool = std::env::current_exe().ok();
    let beside = tool.as_deref().and_then(Path::parent).map(Path::to_owned);
    let current = std::env::current_dir().ok();
    let clones = current.iter().flat_map(|current| current.ancestors());
    let mut folders = beside
        .into_iter()
        .chain(clones.map(|folder| folder.join(BUILT)));
    folders.find_map(|folder| Some(folder.join(PROGRAM)).filter(|program| program.is_file()))
}
