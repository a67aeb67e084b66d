//! Execution of a simulated operation when it is due: first the faults that change its result, then the file system's
//! call.

use super::super::errno::{ECANCELED, EINTR, EINVAL, EIO, EOPNOTSUPP, ERANGE};
use super::super::sqe::Sqe;
use super::SimState;
use super::config::{Errno, OpKind, SimConfig};
use super::files::SysResult;
use super::memory::Lent;
use super::request::Request;
use crate::sys::errno::count;

/// The effect of a cancel on an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// No cancel.
    Runs,
    /// Cancelled while it was running; it may end early.
    Interrupted,
    /// Cancelled before it ran.
    Cancelled,
}

/// The part of a transfer that is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extent {
    Whole,
    AtMost(u64),
}

impl SimState {
    /// Executes an operation. Returns a count, or minus an errno. Only this function touches the operation's memory.
    pub(super) fn execute(
        &mut self,
        config: &SimConfig,
        fate: Fate,
        sqe: &Sqe,
        request: Request,
        now_ns: u64,
    ) -> i32 {
        if self.dead {
            return -EIO;
        }
        let mut extent = Extent::Whole;
        match fate {
            Fate::Cancelled => return -ECANCELED,
            // A running close has already released its number.
            Fate::Interrupted if matches!(request, Request::Close) => {}
            Fate::Interrupted => match self.dice.below(3) {
                0 => return -EINTR,
                1 => return -ECANCELED,
                _ => extent = Extent::AtMost(self.dice.below(request.bytes().max(1))),
            },
            Fate::Runs => {}
        }
        let injected = self.inject(config, request.kind());
        if let (Some(errno), false) = (injected, has_effect_when_failed(&request)) {
            return -errno.number();
        }
        let result = self.call(config, extent, sqe, request, injected, now_ns);
        match (result, injected) {
            (Ok(_), Some(errno)) => -errno.number(),
            (Ok(count), None) => i32::try_from(count).unwrap_or(i32::MAX),
            (Err(errno), _) => -errno,
        }
    }

    fn inject(&mut self, config: &SimConfig, kind: OpKind) -> Option<Errno> {
        let chances = config.errors[kind as usize];
        let chosen = Errno::ALL
            .into_iter()
            .find(|&errno| self.dice.hits(chances[errno as usize]));
        self.counts.errors += u64::from(chosen.is_some());
        chosen
    }

    #[expect(clippy::too_many_lines, reason = "one row for each request")]
    fn call(
        &mut self,
        config: &SimConfig,
        extent: Extent,
        sqe: &Sqe,
        request: Request,
        injected: Option<Errno>,
        now_ns: u64,
    ) -> SysResult<usize> {
        let (fd, offset) = (sqe.fd, sqe.off);
        match request {
            Request::Nop | Request::Wake => Ok(0),
            Request::Read { into } => self.read(config, extent, fd, offset, into),
            Request::Write { from, durable } => {
                self.write(config, extent, sqe, &from, durable, now_ns)
            }
            Request::Sync => {
                let fails = matches!(injected, Some(Errno::Eio | Errno::Enospc));
                self.files.sync(fd, fails)
            }
            Request::SyncRange { bytes, flags } => {
                self.files.check_sync_range(fd, offset, bytes, flags)?;
                self.counts.written_back += self.files.write_back(fd, &mut self.dice);
                Ok(0)
            }
            Request::CopyFile => Err(EOPNOTSUPP),
            Request::CopyRange {
                into,
                into_offset,
                bytes,
            } => {
                let allowed = self.allowed(config, extent, bytes);
                let to = (into, into_offset);
                let done = self.files.copy_range((fd, offset), to, allowed, now_ns)?;
                self.counts.shortened += u64::from(allowed < bytes && done as u64 == allowed);
                Ok(done)
            }
            Request::Close => self.files.close(fd),
            Request::Allocate { mode, bytes } => {
                self.files.allocate(fd, mode, offset, bytes, now_ns)
            }
            Request::Truncate => self.files.truncate(fd, offset, now_ns),
            Request::Advise { advice } => self.files.advise(fd, advice),
            Request::List { mut into } => {
                let records = self.files.list(fd, into.bytes())?;
                into.fill(&records);
                Ok(records.len())
            }
            Request::Open {
                path,
                flags,
                mode,
                beneath,
            } => {
                let path = (fd, path.as_slice());
                let opened = self.files.open(path, flags, mode, beneath, now_ns);
                opened.map(count)
            }
            Request::Rename {
                from,
                to_dir,
                to,
                flags,
            } => self.files.rename((fd, &from), (to_dir, &to), flags),
            Request::Unlink { path, flags } => self.files.unlink((fd, &path), flags),
            Request::MakeDir { path, mode } => self.files.make_dir((fd, &path), mode, now_ns),
            Request::Link {
                file,
                name_dir,
                name,
                flags,
            } => self.files.link((fd, &file), (name_dir, &name), flags),
            Request::Symlink { target, name } => self.files.symlink(&target, (fd, &name), now_ns),
            Request::ReadLink { path, mut into } => {
                let target = self.files.read_link((fd, &path))?;
                into.fill(&target);
                Ok(target.len().min(into.bytes()))
            }
            Request::RealPath { path, mut into } => {
                let found = self.files.real_path((fd, &path))?;
                fill_whole(&mut into, &found)
            }
            Request::Stat {
                path,
                flags,
                mut out,
            } => {
                let statx = self.files.stat((fd, &path), flags)?;
                out.fill_statx(&statx);
                Ok(0)
            }
            Request::SetMode { path, mode } => self.files.set_mode((fd, &path), mode),
            Request::SetTimes { path, times } => {
                self.files.set_times((fd, &path), &times.read(), now_ns)
            }
            Request::GetXattr {
                path,
                name,
                mut into,
            } => {
                let value = self.files.xattr((fd, &path), &name)?;
                fill_whole(&mut into, &value)
            }
            Request::SetXattr { path, name, value } => {
                self.files.set_xattr((fd, &path), &name, value.read())
            }
            Request::ListXattrs { path, mut into } => {
                let names = self.files.list_xattrs((fd, &path))?;
                fill_whole(&mut into, &names)
            }
            Request::RemoveXattr { path, name } => self.files.remove_xattr((fd, &path), &name),
            Request::Unknown => Err(EINVAL),
        }
    }

    /// Returns the number of bytes out of `total` that a transfer may move.
    fn allowed(&mut self, config: &SimConfig, extent: Extent, total: u64) -> u64 {
        match extent {
            Extent::AtMost(most) => most.max(1).min(total),
            Extent::Whole if total > 1 && self.dice.hits(config.short_per_mille) => {
                1 + self.dice.below(total - 1)
            }
            Extent::Whole => total,
        }
    }

    fn read(
        &mut self,
        config: &SimConfig,
        extent: Extent,
        fd: i32,
        offset: u64,
        mut into: Vec<Lent>,
    ) -> SysResult<usize> {
        let total: u64 = into.iter().map(|part| part.bytes() as u64).sum();
        let allowed = self.allowed(config, extent, total);
        let mut bytes = vec![0; usize::try_from(allowed).unwrap_or(0)];
        let done = self.files.read(fd, offset, &mut bytes)?;
        self.counts.shortened += u64::from(allowed < total && done as u64 == allowed);
        let mut rest = bytes.get(..done).unwrap_or_default();
        self.trace.note_bytes(rest);
        for part in &mut into {
            let (bytes, further) = rest.split_at(rest.len().min(part.bytes()));
            part.fill(bytes);
            rest = further;
        }
        Ok(done)
    }

    fn write(
        &mut self,
        config: &SimConfig,
        extent: Extent,
        sqe: &Sqe,
        from: &[Lent],
        durable: bool,
        now_ns: u64,
    ) -> SysResult<usize> {
        let mut bytes: Vec<u8> = Vec::new();
        for part in from {
            bytes.extend(part.read());
        }
        let total = bytes.len() as u64;
        let allowed = self.allowed(config, extent, total);
        bytes.truncate(usize::try_from(allowed).unwrap_or(0));
        let done = self.files.write(sqe.fd, sqe.off, &bytes, durable, now_ns)?;
        self.counts.shortened += u64::from(allowed < total && done as u64 == allowed);
        self.trace.note_bytes(bytes.get(..done).unwrap_or_default());
        if self.dice.hits(config.write_back_per_mille) {
            self.counts.written_back += self.files.write_back(sqe.fd, &mut self.dice);
        }
        Ok(done)
    }
}

/// Returns bytes that must fit.
fn fill_whole(into: &mut Lent, bytes: &[u8]) -> SysResult<usize> {
    if bytes.len() > into.bytes() {
        return Err(ERANGE);
    }
    into.fill(bytes);
    Ok(bytes.len())
}

/// Returns whether the request has an effect even if it fails: a failed close has closed the descriptor, and a failed
/// sync has dropped the data that it should have written.
fn has_effect_when_failed(request: &Request) -> bool {
    matches!(request, Request::Close | Request::Sync)
}
