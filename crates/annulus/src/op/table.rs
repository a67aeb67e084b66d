//! The table of all operations, one row each. Names, numbers, lists and counters are derived from it. Each operation
//! takes its `INFO` from the table, so an operation without a row does not compile.

use crate::sys::sqe::opcode;

/// A row of the table: an operation's name, opcode and number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpInfo {
    /// The name, as listed in docs/reference/kernels.md.
    pub name: &'static str,
    /// The io_uring opcode, or one of the library's for operations that io_uring lacks.
    pub opcode: u8,
    /// The first kernel whose io_uring has it; (0, 0) for none.
    pub since: (u16, u16),
    /// Private, so that only the table makes one.
    number: OperationNumber,
}

/// The index of a row, which also selects its counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OperationNumber(u8);

impl OpInfo {
    /// Returns the index of the row.
    #[inline]
    pub(crate) const fn number(&self) -> OperationNumber {
        self.number
    }

    /// Returns the row of an operation that only a test has; it counts as a `nop`.
    #[cfg(test)]
    pub(crate) const fn of_test(opcode: u8) -> OpInfo {
        OpInfo { opcode, ..NOP }
    }
}

impl OperationNumber {
    pub(crate) const READ_AT: OperationNumber = READ_AT.number;

    /// Returns the index, from 0, in the order of the table.
    #[inline]
    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }

    /// Returns all numbers, in the order of the table.
    pub(crate) fn all() -> impl Iterator<Item = OperationNumber> {
        ALL.iter().map(OpInfo::number)
    }
}

#[cfg(feature = "net")]
impl OperationNumber {
    pub(crate) const ACCEPT: OperationNumber = ACCEPT.number;
    pub(crate) const RECV: OperationNumber = RECV.number;
    pub(crate) const RECV_MESSAGE: OperationNumber = RECV_MESSAGE.number;
}

macro_rules! ops {
    ($($group:ident { $($row:ident: $name:literal, $opcode:ident, $since:expr;)* })*) => {
        /// Numbers the rows.
        #[expect(non_camel_case_types, clippy::upper_case_acronyms, reason = "named as the rows are")]
        enum Row {
            $($($row,)*)*
        }

        $($(pub(super) const $row: OpInfo = OpInfo {
            name: $name,
            opcode: opcode::$opcode,
            since: $since,
            number: OperationNumber(Row::$row as u8),
        };)*)*

        $(#[allow(dead_code, reason = "of some groups only tests need the list")]
        pub(crate) const $group: &[OpInfo] = &[$($row),*];)*

        /// All operations, each at the index of its number.
        pub(crate) const ALL: &[OpInfo] = &[$($($row),*),*];

        /// The names of all operations, in the order of `ALL`.
        pub(crate) const NAMES: &[&str] = &[$($($name),*),*];

        /// The opcodes as docs/reference/kernels.md writes them, in the order of `ALL`.
        #[cfg(test)]
        const OPCODES: &[&str] = &[$($(stringify!($opcode)),*),*];
    };
}

// Name, opcode, and first kernel whose io_uring has it, in the order of docs/reference/kernels.md. Processes share
// counters by this order, and compare it (`metrics/record.rs`).
ops! {
    ON_FILES {
        READ_AT: "read_at", READ, (5, 6);
        READ_VECTORED_AT: "read_vectored_at", READV, (5, 1);
        WRITE_AT: "write_at", WRITE, (5, 6);
        WRITE_VECTORED_AT: "write_vectored_at", WRITEV, (5, 1);
        OPEN: "open", OPENAT, (5, 6);
        CLOSE: "close", CLOSE, (5, 6);
        READ_FILE: "read_file", OPENAT2, (5, 6);
        FSYNC: "fsync", FSYNC, (5, 1);
        SYNC_RANGE: "sync_range", SYNC_FILE_RANGE, (5, 2);
        ALLOCATE: "allocate", FALLOCATE, (5, 6);
        ADVISE: "advise", FADVISE, (5, 6);
        METADATA: "metadata", STATX, (5, 6);
        RENAME: "rename", RENAMEAT, (5, 11);
        UNLINK: "unlink", UNLINKAT, (5, 11);
        CREATE_DIR: "create_dir", MKDIRAT, (5, 15);
        LINK: "link", LINKAT, (5, 15);
        SYMLINK: "symlink", SYMLINKAT, (5, 15);
        GET_XATTR: "get_xattr", GETXATTR, (5, 19);
        SET_XATTR: "set_xattr", SETXATTR, (5, 19);
        TRUNCATE: "truncate", FTRUNCATE, (6, 9);
        SET_PERMISSIONS: "set_permissions", FCHMODAT, (0, 0);
        SET_TIMES: "set_times", UTIMENSAT, (0, 0);
        LIST_XATTRS: "list_xattrs", LISTXATTR, (0, 0);
        REMOVE_XATTR: "remove_xattr", REMOVEXATTR, (0, 0);
        READ_LINK: "read_link", READLINKAT, (0, 0);
        CANONICALIZE: "canonicalize", REALPATH, (0, 0);
        COPY: "copy", COPY_FILE, (0, 0);
        COPY_RANGE: "copy_range", COPY_FILE_RANGE, (0, 0);
        READ_DIR: "read_dir", GETDENTS, (0, 0);
        SPAWN_BLOCKING: "spawn_blocking", RUN, (0, 0);
        SLEEP: "sleep", SLEEP, (0, 0);
        NOP: "nop", NOP, (5, 1);
    }
    ON_SOCKETS {
        ACCEPT: "accept", ACCEPT, (5, 5);
        CONNECT: "connect", CONNECT, (5, 5);
        RECV: "recv", RECV, (5, 6);
        RECV_MESSAGE: "recv_message", RECVMSG, (5, 3);
        SEND: "send", SEND, (5, 6);
        SEND_MESSAGE: "send_message", SENDMSG, (5, 3);
        SEND_VECTORED: "send_vectored", SENDMSG, (5, 3);
        SEND_ZERO_COPY: "send_zero_copy", SEND_ZC, (6, 0);
        POLL: "poll", POLL_ADD, (5, 1);
        SPLICE: "splice", SPLICE, (5, 7);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Returns the cells of each row of a table whose first cell is a name between backticks.
    fn rows(document: &str) -> impl Iterator<Item = Vec<&str>> {
        let rows = document.lines().filter(|line| line.starts_with("| `"));
        rows.map(|row| row.split('|').map(str::trim).collect())
    }

    /// Returns the errors in `document`, the list of kernels.
    fn wrong(document: &str) -> Vec<String> {
        let mut wrong = Vec::new();
        for (info, opcode) in ALL.iter().zip(OPCODES) {
            let name = format!("`{}`", info.name);
            let Some(row) = rows(document).find(|row| row[1] == name) else {
                wrong.push(format!("no row for {name}"));
                continue;
            };
            let (major, minor) = info.since;
            let (opcode, since) = match info.since {
                (0, 0) => ("none", "none".to_owned()),
                _ => (*opcode, format!("{major}.{minor}")),
            };
            if row[2] != opcode || row[3] != since {
                wrong.push(format!("{name} has opcode {opcode}, since {since}"));
            }
        }
        wrong
    }

    #[test]
    fn every_operation_has_its_row_in_the_table_of_kernels() {
        let document = include_str!("../../../../docs/reference/kernels.md");
        assert_eq!(wrong(document), [""; 0], "see docs/reference/kernels.md");
    }

    #[test]
    fn an_operation_without_its_row_is_found() {
        let document = "| `nop` | NOP | 5.1 | |\n| `read_at` | READ | 5.7 | |";
        let wrong = wrong(document);
        assert_eq!(wrong.len(), ALL.len() - 1);
        assert!(wrong.contains(&"`read_at` has opcode READ, since 5.6".to_owned()));
    }

    #[test]
    fn each_operation_has_a_name_and_a_number_of_its_own() {
        let names: BTreeSet<&str> = NAMES.iter().copied().collect();
        assert_eq!(names.len(), ALL.len());
        for (nth, info) in ALL.iter().enumerate() {
            assert_eq!((info.number().index(), info.name), (nth, NAMES[nth]));
        }
        assert_eq!(ON_FILES.len() + ON_SOCKETS.len(), ALL.len());
    }

    #[cfg(feature = "test-util")]
    #[test]
    fn the_simulated_kernel_knows_every_operation_on_files() {
        let without = [SPAWN_BLOCKING, SLEEP];
        for info in ON_FILES.iter().filter(|info| !without.contains(info)) {
            assert!(crate::sys::sim::knows(info.opcode), "{}", info.name);
        }
    }
}
