//! Tests of the table of keys: its consistency, its copy in docs/reference/job-files.md, and messages about wrong keys.

use super::super::parse;
use super::super::unused_keys::{MISTAKEN, NO_EFFECT, REFUSED};
use super::super::value::Size;
use super::*;
use crate::bench::file::work::Lengths;

fn read_one(text: &str) -> Result<(Options, Vec<Complaint>), Vec<Complaint>> {
    let sections = parse::parse(format!("[a]\n{text}").as_bytes())?;
    read(&sections[0], &|name| {
        (name == "HERE").then(|| "64m".to_string())
    })
}

fn options(text: &str) -> Options {
    let (options, warnings) = read_one(text).unwrap();
    assert_eq!(warnings, [], "{text}");
    options
}

fn error(text: &str) -> String {
    let errors = read_one(text).unwrap_err();
    errors
        .iter()
        .map(Complaint::to_string)
        .collect::<Vec<_>>()
        .join("\n")
}

fn warning(text: &str) -> String {
    read_one(text).unwrap().1[0].to_string()
}

#[test]
fn every_example_is_read_and_no_key_has_two_meanings() {
    let mut names = Vec::new();
    for key in USED {
        for name in key.names {
            let line = format!("{name}={}", key.example);
            assert!(read_one(&line).is_ok(), "{line}: {}", error(&line));
            names.push(*name);
        }
    }
    let groups = NO_EFFECT.iter().chain(REFUSED);
    names.extend(groups.flat_map(|group| group.names()));
    names.extend(MISTAKEN.iter().map(|(name, _)| *name));
    names.sort_unstable();
    let twice: Vec<_> = names.windows(2).filter(|pair| pair[0] == pair[1]).collect();
    assert!(twice.is_empty(), "{twice:?}");
}

#[test]
fn a_key_unknown_to_fio_is_reported_with_its_probable_meaning() {
    let text = warning("threads=8");
    assert!(text.starts_with("line 2: `threads`"), "{text}");
    assert!(
        text.contains("`thread`") && text.contains("`numjobs`"),
        "{text}"
    );
    let text = error("iodept=8");
    assert_eq!(
        text,
        "line 2: unknown key `iodept`; did you mean `iodepth`?"
    );
    assert!(error("swordfish=1").contains("docs/reference/job-files.md lists the keys"));
}

#[test]
fn keys_that_change_the_measurement_are_refused_and_others_cause_a_warning() {
    assert!(error("random_distribution=zipf").contains("is not supported: other blocks"));
    assert!(error("fsync=32").contains("`sync=dsync`"));
    assert_eq!(
        read_one("fsync=0\nrandom_distribution=random").unwrap().1,
        []
    );
    assert!(warning("write_bw_log=x").contains("no log files are written"));
}

#[test]
fn every_key_of_fio_is_known() {
    let keys: Vec<&str> = include_str!("fio-3.33.txt").split_whitespace().collect();
    assert!(keys.len() > 250, "{}", keys.len());
    let unknown: Vec<&str> = (keys.into_iter())
        .filter(|key| {
            let read = read_one(&format!("{key}=1"));
            read.is_err_and(|errors| errors[0].text.contains("unknown key"))
        })
        .collect();
    assert_eq!(unknown, [""; 0]);
    assert!(error("cpuload=50").contains("an engine of fio that is not supported"));
    assert!(warning("log_alternate_epoch_clock_id=1").contains("no log files are written"));
}

#[test]
fn a_name_is_that_of_the_results_and_nothing_is_suggested_for_another_word() {
    assert_eq!(options("name=nightly").name.as_deref(), Some("nightly"));
    assert!(error("name=").contains("is empty"));
    let text = error("nave=1");
    assert!(text.contains("did you mean `name`?"), "{text}");
    let text = error("zate=1");
    assert!(text.contains("did you mean `rate`?"), "{text}");
    assert!(!error("mate7=1").contains("did you mean `name`"));
    assert!(!error("game7=1").contains("did you mean"));
}

#[test]
fn an_escaped_colon_belongs_to_a_name() {
    for (text, names) in [
        ("a:b", &["a", "b"][..]),
        (r"a\:b", &["a:b"]),
        (r"dev/foo@3,0\:c:other:", &["dev/foo@3,0:c", "other"]),
        (r"F\:\filename", &[r"F:\filename"]),
        (r"\:", &[":"]),
        (r"a\", &[r"a\"]),
    ] {
        assert_eq!(options(&format!("filename={text}")).filenames, names);
    }
    assert_eq!(
        options(r"directory=/mnt/a\:b").directory.as_deref(),
        Some("/mnt/a:b")
    );
    assert!(error("directory=a:b").contains("several directories"));
    assert!(error("directory=:").contains("names no directory"));
    assert!(error("filename=::").contains("names no file"));
    assert!(error("filename=data:-").contains("`./-`"));
}

#[test]
fn values_are_those_of_the_manual() {
    let read = options(
        "rw=randrw\nrwmixwrite=30\nbs=4k,8k\nsize=50%\nruntime=2m\ntime_based\nrate=1m,\niodepth=0x10",
    );
    assert_eq!(
        (read.kind, read.random, read.read_percent),
        (Kind::Mixed, true, 70)
    );
    assert_eq!(read.lengths, [Lengths::Fixed(4096), Lengths::Fixed(8192)]);
    assert_eq!(read.size, Some(Size::Percent(50)));
    assert_eq!(read.runtime, Some(std::time::Duration::from_secs(120)));
    assert_eq!((read.rate, read.iodepth), ([1 << 20, 0], 16));
    assert!(read.time_based);
    assert_eq!(options("size=1ki").size, Some(Size::Bytes(1000)));
    assert_eq!(
        options("size=1ki\nkb_base=1000").size,
        Some(Size::Bytes(1024))
    );
    assert_eq!(
        options("kb_base=1000\nsize=1k").size,
        Some(Size::Bytes(1000))
    );
    assert_eq!(options("size=${HERE}").size, Some(Size::Bytes(64 << 20)));
    assert!(error("size=${NOWHERE}").contains("no variable `NOWHERE`"));
    assert!(error("size=$mb_memory").contains("keyword"));
    assert!(error("bs=(4*1024)").contains("arithmetic"));
    assert!(error("bs=0").contains("from 1 byte"));
    assert!(error("rw=trim").contains("trims are not supported"));
    assert!(error("time_based=maybe").contains("neither 0 nor 1"));
}

#[test]
fn shares_of_lengths_make_a_hundred() {
    let split = |text: &str| options(&format!("bssplit={text}")).lengths[0].clone();
    assert_eq!(
        split("4k/60:64k/40"),
        Lengths::Split(vec![(4096, 60), (65536, 40)])
    );
    assert_eq!(
        split("1k/50:2k:4k/"),
        Lengths::Split(vec![(1024, 50), (2048, 25), (4096, 25)])
    );
    assert!(error("bssplit=4k/60:64k/50").contains("make 110, not 100"));
    assert!(error("bssplit=4k/60:64k/20").contains("make 80, not 100"));
}

#[test]
fn patterns_are_hex_numbers_and_text() {
    let pattern = |text: &str| options(&format!("verify_pattern={text}")).pattern;
    assert_eq!(pattern("0xdeadbeef"), [0xde, 0xad, 0xbe, 0xef]);
    assert_eq!(pattern("0xfff\"ab\"255"), [0x0f, 0xff, b'a', b'b', 255]);
    assert!(error("verify_pattern=xyz").contains("is no pattern"));
}

/// Generates the tables of the document from those in the code.
fn tables() -> String {
    let code = |names: &[&str]| {
        let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
        names.join(", ")
    };
    let mut text = "| key | for example | what it means |\n|---|---|---|\n".to_string();
    for key in USED {
        let example = key.example.replace('|', "\\|");
        text += &format!("| {} | `{example}` | {} |\n", code(key.names), key.meaning);
    }
    text
}

#[test]
fn the_document_has_the_tables_of_the_code() {
    const BEGIN: &str =
        "<!-- The keys, made by UPDATE_DOCS=1 cargo test -p annulus-cli document -->\n";
    const END: &str = "<!-- The end of the keys -->";
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/reference/job-files.md"
    );
    let document = std::fs::read_to_string(path).unwrap();
    let (before, rest) = document.split_once(BEGIN).unwrap();
    let (kept, after) = rest.split_once(END).unwrap();
    let current = format!("\n{}\n", tables());
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, format!("{before}{BEGIN}{current}{END}{after}")).unwrap();
        return;
    }
    assert!(
        kept == current,
        "docs/reference/job-files.md is not current; run: UPDATE_DOCS=1 cargo test -p annulus-cli document"
    );
}

#[test]
fn a_comment_after_a_value_begins_where_it_begins_in_fio() {
    for line in [
        "sqthread_poll=1 #a kernel thread",
        "sqthread_poll=1;a kernel thread",
        "sqthread_poll # =0",
        "sqthread_poll=1\t;# both",
    ] {
        assert!(
            options(&format!("ioengine=io_uring\n{line}")).sqthread_poll,
            "{line}"
        );
    }
    // fio 3.33 also uses the file `first` for this line.
    assert_eq!(options("filename=first#second").filenames, ["first"]);
    assert!(error("bs=#4k").contains("bs"));
}
