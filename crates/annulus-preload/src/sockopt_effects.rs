//! The effect of each socket option: whether a TCP stream with the option can be served. Every option in the kernel's
//! headers is listed here, and a test compares the lists with the headers. An option that is missing is newer than this
//! build, and a connection with it is handed back.

use std::ffi::c_int;

/// The effect of an option on a served connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// No effect that the program could see, or not an option of TCP streams.
    None,
    /// Reads, events or writes would differ from what a ring returns. Accepted connections inherit the option from
    /// their listener, and `getsockopt` reports it. The value `unless` means that it is not set.
    Differs { unless: c_int },
    /// An effect as that of `Differs`, but `getsockopt` cannot report the option.
    DiffersUnqueryable,
}

/// The levels, with the kernel's numbers.
const SOCKET: c_int = 1;
const TCP: c_int = 6;
const IP: c_int = 0;
const IPV6: c_int = 41;

macro_rules! options {
    ($($level:ident, $prefix:literal, $effect:expr => { $($name:ident = $number:literal,)* })*) => {
        /// Returns the effect of an option. `None`: the option is newer than this build, or does not exist.
        pub(crate) fn effect(level: c_int, name: c_int) -> Option<Effect> {
            match (level, name) {
                $($(($level, $number) => Some($effect),)*)*
                _ => None,
            }
        }

        /// The level, number, name and effect of each option.
        pub(crate) static OPTIONS: &[(c_int, c_int, &str, Effect)] = &[
            $($(($level, $number, concat!($prefix, stringify!($name)), $effect),)*)*
        ];
    };
}

options! {
    // Read-only options, and options of other kinds of sockets.
    SOCKET, "SO_", Effect::None => {
        DEBUG = 1, REUSEADDR = 2, TYPE = 3, ERROR = 4, DONTROUTE = 5, BROADCAST = 6, SNDBUF = 7, RCVBUF = 8,
        KEEPALIVE = 9, NO_CHECK = 11, PRIORITY = 12, LINGER = 13, BSDCOMPAT = 14, REUSEPORT = 15, PASSCRED = 16,
        PEERCRED = 17, SNDLOWAT = 19, SECURITY_AUTHENTICATION = 22, SECURITY_ENCRYPTION_TRANSPORT = 23,
        SECURITY_ENCRYPTION_NETWORK = 24, BINDTODEVICE = 25, PEERNAME = 28, ACCEPTCONN = 30, PEERSEC = 31,
        SNDBUFFORCE = 32, RCVBUFFORCE = 33, PASSSEC = 34, MARK = 36, PROTOCOL = 38, DOMAIN = 39, WIFI_STATUS = 41,
        NOFCS = 43, LOCK_FILTER = 44, MAX_PACING_RATE = 47, BPF_EXTENSIONS = 48, INCOMING_CPU = 49,
        CNX_ADVICE = 53, MEMINFO = 55, INCOMING_NAPI_ID = 56, COOKIE = 57, PEERGROUPS = 59, BINDTOIFINDEX = 62,
        NETNS_COOKIE = 71, BUF_LOCK = 72, RESERVE_MEM = 73, TXREHASH = 74, PASSPIDFD = 76, PEERPIDFD = 77,
        DEVMEM_LINEAR = 78, DEVMEM_DMABUF = 79, DEVMEM_DONTNEED = 80, PASSRIGHTS = 83, INQ = 84,
    }
    // Filters process segments before TCP does.
    SOCKET, "SO_", Effect::None => {
        ATTACH_FILTER = 26, DETACH_FILTER = 27, ATTACH_BPF = 50, ATTACH_REUSEPORT_CBPF = 51,
        ATTACH_REUSEPORT_EBPF = 52, DETACH_REUSEPORT_BPF = 68,
    }
    // Control data of datagrams, which TCP does not have. Entries in the error queue are an error to both polls.
    SOCKET, "SO_", Effect::None => { RXQ_OVFL = 40, SELECT_ERR_QUEUE = 45, RCVMARK = 75, RCVPRIORITY = 82, }
    // Timeouts of blocking calls; a socket that blocks is not served.
    SOCKET, "SO_", Effect::None => { RCVTIMEO_OLD = 20, SNDTIMEO_OLD = 21, RCVTIMEO_NEW = 66, SNDTIMEO_NEW = 67, }
    // They change where a read ends, when a socket is readable, where a peek begins, or add data to a read.
    SOCKET, "SO_", Effect::Differs { unless: 0 } => {
        OOBINLINE = 10, TIMESTAMP_OLD = 29, TIMESTAMPNS_OLD = 35, TIMESTAMPING_OLD = 37, TIMESTAMP_NEW = 63,
        TIMESTAMPNS_NEW = 64, TIMESTAMPING_NEW = 65,
    }
    SOCKET, "SO_", Effect::Differs { unless: 1 } => { RCVLOWAT = 18, }
    SOCKET, "SO_", Effect::Differs { unless: -1 } => { PEEK_OFF = 42, }
    // A wait in a ring does not busy-poll a device; sends with completion notifications belong to the program.
    SOCKET, "SO_", Effect::Differs { unless: 0 } => {
        BUSY_POLL = 46, PREFER_BUSY_POLL = 69, ZEROCOPY = 60, TXTIME = 61,
    }
    SOCKET, "SO_", Effect::DiffersUnqueryable => { BUSY_POLL_BUDGET = 70, }

    // ULP itself: its effect is set by options of another level.
    TCP, "TCP_", Effect::None => {
        NODELAY = 1, MAXSEG = 2, CORK = 3, KEEPIDLE = 4, KEEPINTVL = 5, KEEPCNT = 6, SYNCNT = 7, LINGER2 = 8,
        DEFER_ACCEPT = 9, WINDOW_CLAMP = 10, INFO = 11, QUICKACK = 12, CONGESTION = 13, MD5SIG = 14,
        THIN_LINEAR_TIMEOUTS = 16, THIN_DUPACK = 17, USER_TIMEOUT = 18, FASTOPEN = 23, TIMESTAMP = 24, CC_INFO = 26,
        SAVE_SYN = 27, SAVED_SYN = 28, ULP = 31, MD5SIG_EXT = 32, FASTOPEN_KEY = 33, FASTOPEN_NO_COOKIE = 34,
        TX_DELAY = 37, AO_ADD_KEY = 38, AO_DEL_KEY = 39, AO_INFO = 40, AO_GET_KEYS = 41, AO_REPAIR = 42,
        IS_MPTCP = 43, RTO_MAX_MS = 44, RTO_MIN_US = 45, DELACK_MAX_US = 46,
    }
    // The threshold of writability; data that accompanies bytes; a stream under repair.
    TCP, "TCP_", Effect::Differs { unless: 0 } => { REPAIR = 19, NOTSENT_LOWAT = 25, INQ = 36, }
    TCP, "TCP_", Effect::DiffersUnqueryable => {
        REPAIR_QUEUE = 20, QUEUE_SEQ = 21, REPAIR_OPTIONS = 22, REPAIR_WINDOW = 29, FASTOPEN_CONNECT = 30,
        ZEROCOPY_RECEIVE = 35,
    }

    // Options of packets and of datagrams.
    IP, "IP_", Effect::None => {
        TOS = 1, TTL = 2, HDRINCL = 3, OPTIONS = 4, ROUTER_ALERT = 5, RECVOPTS = 6, RETOPTS = 7, PKTINFO = 8,
        PKTOPTIONS = 9, MTU_DISCOVER = 10, RECVTTL = 12, RECVTOS = 13, MTU = 14, FREEBIND = 15, IPSEC_POLICY = 16,
        XFRM_POLICY = 17, PASSSEC = 18, TRANSPARENT = 19, ORIGDSTADDR = 20, MINTTL = 21, NODEFRAG = 22, CHECKSUM = 23,
        BIND_ADDRESS_NO_PORT = 24, RECVFRAGSIZE = 25, RECVERR_RFC4884 = 26, MULTICAST_IF = 32, MULTICAST_TTL = 33,
        MULTICAST_LOOP = 34, ADD_MEMBERSHIP = 35, DROP_MEMBERSHIP = 36, UNBLOCK_SOURCE = 37, BLOCK_SOURCE = 38,
        ADD_SOURCE_MEMBERSHIP = 39, DROP_SOURCE_MEMBERSHIP = 40, MSFILTER = 41, MULTICAST_ALL = 49, UNICAST_IF = 50,
        LOCAL_PORT_RANGE = 51, PROTOCOL = 52,
    }
    // Errors on the network path end a call that would otherwise continue.
    IP, "IP_", Effect::Differs { unless: 0 } => { RECVERR = 11, }

    IPV6, "IPV6_", Effect::None => {
        CHECKSUM = 7, NEXTHOP = 9, AUTHHDR = 10, FLOWINFO = 11, UNICAST_HOPS = 16, MULTICAST_IF = 17,
        MULTICAST_HOPS = 18, MULTICAST_LOOP = 19, ADD_MEMBERSHIP = 20, DROP_MEMBERSHIP = 21, ROUTER_ALERT = 22,
        MTU_DISCOVER = 23, MTU = 24, V6ONLY = 26, JOIN_ANYCAST = 27, LEAVE_ANYCAST = 28, MULTICAST_ALL = 29,
        ROUTER_ALERT_ISOLATE = 30, RECVERR_RFC4884 = 31, FLOWLABEL_MGR = 32, FLOWINFO_SEND = 33, IPSEC_POLICY = 34,
        XFRM_POLICY = 35, HDRINCL = 36, RECVPKTINFO = 49, PKTINFO = 50, RECVHOPLIMIT = 51, HOPLIMIT = 52,
        RECVHOPOPTS = 53, HOPOPTS = 54, RTHDRDSTOPTS = 55, RECVRTHDR = 56, RTHDR = 57, RECVDSTOPTS = 58, DSTOPTS = 59,
        RECVPATHMTU = 60, PATHMTU = 61, DONTFRAG = 62, USE_MIN_MTU = 63, RECVTCLASS = 66, TCLASS = 67,
        AUTOFLOWLABEL = 70, ADDR_PREFERENCES = 72, MINHOPCOUNT = 73, ORIGDSTADDR = 74, TRANSPARENT = 75,
        UNICAST_IF = 76, RECVFRAGSIZE = 77, FREEBIND = 78,
    }

    IPV6, "IPV6_2292", Effect::None => {
        PKTINFO = 2, HOPOPTS = 3, DSTOPTS = 4, RTHDR = 5, PKTOPTIONS = 6, HOPLIMIT = 8,
    }
    IPV6, "IPV6_", Effect::Differs { unless: 0 } => { RECVERR = 25, }
    // The socket becomes an IPv4 socket.
    IPV6, "IPV6_", Effect::DiffersUnqueryable => { ADDRFORM = 1, }
}
