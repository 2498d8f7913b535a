//! The suite on each fabric.

use crate::suite::suite;

suite! {
    shm_mapped: Setup::ShmMapped;
    shm_process: Setup::ShmProcess;
    shm_bounce: Setup::ShmBounce;
    shm_dir: Setup::ShmDir;
    tcp_v4: Setup::Tcp4;
    tcp_v6: Setup::Tcp6;
    tcp_narrow: Setup::TcpNarrow;
}
