//! The parser of job files. It returns sections of keys with line numbers; `keys` interprets them.
//!
//! The parser does no I/O and never panics. The fuzz target `job_file` tests it with arbitrary input.

use std::fmt;

/// The limit for a line in fio's manual.
const LINE_BYTES_MAX: usize = 8192;
/// The largest number of sections. A file with more is not a job file.
const SECTIONS_MAX: usize = 4096;

/// An error or warning about a line of the job file. Lines count from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Complaint {
    /// The line, or 0 for the file as a whole.
    pub(super) line: usize,
    /// The problem and its remedy.
    pub(super) text: String,
}

impl Complaint {
    /// Creates a complaint about a line.
    pub(super) fn new(line: usize, text: impl Into<String>) -> Complaint {
        let text = text.into();
        Complaint { line, text }
    }
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => f.write_str(&self.text),
            line => write!(f, "line {line}: {}", self.text),
        }
    }
}

/// A key of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// The key in lower case.
    pub(super) key: String,
    /// The value after the `=`. `None` if there is no `=`.
    pub(super) value: Option<String>,
    /// The line of the key, from 1.
    pub(super) line: usize,
    /// Set for a key of a preceding `[global]` section.
    pub(super) global: bool,
}

/// A job of the file. Its keys follow those of the preceding `[global]` sections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Section {
    /// The name between the brackets.
    pub(super) name: String,
    /// The line of the name.
    pub(super) line: usize,
    /// The keys in the order of the file. A later key overrides an earlier one.
    pub(super) entries: Vec<Entry>,
}

/// Parses the bytes of a job file.
///
/// # Errors
///
/// Returns all syntax errors with their lines.
pub(super) fn parse(bytes: &[u8]) -> Result<Vec<Section>, Vec<Complaint>> {
    let bytes = bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(bytes);
    let mut file = File::default();
    for (index, line) in bytes.split(|&byte| byte == b'\n').enumerate() {
        file.line(index + 1, line.strip_suffix(b"\r").unwrap_or(line));
    }
    if file.complaints.is_empty() && file.sections.is_empty() {
        let text = "it has no job: a job begins with its name in brackets, such as [read]";
        file.complaints.push(Complaint::new(0, text));
    }
    match file.complaints.is_empty() {
        true => Ok(file.sections),
        false => Err(file.complaints),
    }
}

/// The state of the parser.
#[derive(Default)]
struct File {
    globals: Vec<Entry>,
    sections: Vec<Section>,
    scope: Scope,
    complaints: Vec<Complaint>,
}

/// The section that the next key belongs to.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Scope {
    #[default]
    Nowhere,
    Global,
    Job,
}

impl File {
    fn line(&mut self, number: usize, bytes: &[u8]) {
        if let Err(text) = self.try_line(number, bytes) {
            self.complaints.push(Complaint::new(number, text));
        }
    }

    fn try_line(&mut self, number: usize, bytes: &[u8]) -> Result<(), String> {
        if bytes.len() > LINE_BYTES_MAX {
            return Err(format!(
                "{} bytes long; a line has at most {LINE_BYTES_MAX}",
                bytes.len()
            ));
        }
        let text = std::str::from_utf8(bytes).map_err(|error| {
            let at = error.valid_up_to() + 1;
            format!("not UTF-8 from byte {at} on; save the file as UTF-8")
        })?;
        if text.contains('\0') {
            return Err("contains a zero byte; this is no text".into());
        }
        let text = text.trim();
        match text.chars().next() {
            None | Some('#' | ';') => Ok(()),
            Some('[') => self.header(number, text),
            // As in fio, a comment begins at the first of these characters, even within a value or quotes.
            Some(_) => self.entry(
                number,
                text.split(['#', ';']).next().unwrap_or(text).trim_end(),
            ),
        }
    }

    fn header(&mut self, number: usize, text: &str) -> Result<(), String> {
        let (name, rest) = text[1..]
            .split_once(']')
            .ok_or_else(|| format!("`{text}` has no closing bracket"))?;
        if !(rest.trim().is_empty() || rest.trim_start().starts_with(['#', ';'])) {
            return Err(format!("`{}` behind the bracket", rest.trim()));
        }
        let name = name.trim();
        if name.is_empty() {
            return Err("a job without a name; write it between the brackets".into());
        }
        if name.eq_ignore_ascii_case("global") {
            self.scope = Scope::Global;
            return Ok(());
        }
        if self.sections.len() == SECTIONS_MAX {
            return Err(format!("more than {SECTIONS_MAX} jobs"));
        }
        self.scope = Scope::Job;
        self.sections.push(Section {
            name: name.to_string(),
            line: number,
            entries: self.globals.clone(),
        });
        Ok(())
    }

    fn entry(&mut self, number: usize, text: &str) -> Result<(), String> {
        if text == "include" || text.starts_with("include ") || text.starts_with("include\t") {
            return Err("`include` is not supported; put the text of that file here".into());
        }
        let (key, value) = match text.split_once('=') {
            Some((key, value)) => (key.trim_end(), Some(value.trim().to_string())),
            None => (text, None),
        };
        let wrong = |c: char| c.is_whitespace() || c.is_control();
        if key.is_empty() || key.contains(wrong) {
            return Err(format!(
                "`{}` is neither a [job], a key=value nor a comment",
                shown(text)
            ));
        }
        let mut entry = Entry {
            key: key.to_ascii_lowercase(),
            value,
            line: number,
            global: false,
        };
        match (self.scope, self.sections.last_mut()) {
            (Scope::Job, Some(section)) => section.entries.push(entry),
            (Scope::Global, _) => {
                entry.global = true;
                self.globals.push(entry);
            }
            _ => {
                return Err(format!(
                    "`{}` is before the first [global] or [job] and belongs to no section",
                    shown(key)
                ));
            }
        }
        Ok(())
    }
}

/// Returns the text, shortened to 60 characters.
pub(super) fn shown(text: &str) -> String {
    const MOST: usize = 60;
    match text.char_indices().nth(MOST) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_string(),
    }
}
