//! The daemons' configuration files.

use std::path::Path;

use anyhow::{Result, ensure};

use crate::lab::CLUSTER;

/// Longest path of a Unix socket, from Linux's `sockaddr_un` with its final NUL.
const SOCKET_PATH: usize = 107;

/// `slurmdbd` takes every interface, or with `NoInAddrAny` what the machine's name resolves to, and it believes
/// whoever connects to be whom they say. So it is told that the machine's name is `localhost`.
pub(crate) const LOOPBACK: &str = r#"
#include <stddef.h>
#include <string.h>
int gethostname(char *name, size_t size) { strncpy(name, "localhost", size); return 0; }
"#;

/// The TRES that Slurm's controller would register on its first start. `sacctmgr` asks for them each time.
pub(crate) const TRES: &str = "insert into slurm.tres_table (creation_time, type, name) \
                               values (1, 'gres', 'gpu'), (1, 'gres', 'gpu:mi300x'), (1, 'license', 'matlab')";

/// The database's socket.
pub(crate) fn socket(folder: &Path) -> std::path::PathBuf {
    folder.join("run/db.sock")
}

/// Refuses a folder whose path can't stand in these files or in `LD_PRELOAD`.
pub(crate) fn check_folder(folder: &Path) -> Result<()> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+@".contains(c);
    let shown = folder.display();
    ensure!(
        folder.is_absolute() && folder.to_str().is_some_and(|path| path.chars().all(plain)),
        "a lab's path must be absolute and of letters, digits and /._-+@ alone: {shown}; set TMPDIR"
    );
    ensure!(
        socket(folder).as_os_str().len() <= SOCKET_PATH,
        "too long a path for a socket: {}; set TMPDIR",
        socket(folder).display()
    );
    Ok(())
}

/// MariaDB: through its socket alone, no passwords, nothing kept safe from a power cut.
pub(crate) fn database(folder: &Path) -> String {
    let (dir, socket) = (folder.display(), socket(folder));
    format!(
        "[mariadbd]
user=root
datadir={dir}/db
tmpdir={dir}/files
socket={}
pid-file={dir}/run/db.pid
skip-networking
performance-schema=OFF
innodb-buffer-pool-size=32M
innodb-log-file-size=8M
innodb-buffer-pool-dump-at-shutdown=OFF
innodb-flush-log-at-trx-commit=0
innodb-doublewrite=OFF
innodb-lock-wait-timeout=900
sync-frm=OFF
",
        socket.display()
    )
}

/// `slurmdbd.conf`.
pub(crate) fn slurmdbd(folder: &Path, port: u16) -> String {
    let dir = folder.display();
    format!(
        "AuthType=auth/none
CommunicationParameters=NoInAddrAny
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser=root
LogFile={dir}/log/slurmdbd.log
PidFile={dir}/run/slurmdbd-own.pid
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm
"
    )
}

/// `slurm.conf`, for `sacctmgr`.
pub(crate) fn slurm(folder: &Path, port: u16) -> String {
    let dir = folder.display();
    format!(
        "ClusterName={CLUSTER}
SlurmctldHost=localhost
AuthType=auth/none
SlurmUser=root
StateSaveLocation={dir}/files
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={port}
"
    )
}
