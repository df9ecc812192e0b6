//! The programs that a lab runs, and what a machine lacks of them.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The programs of one lab, by path.
#[derive(Debug, Clone)]
pub(crate) struct Programs {
    pub(crate) mariadbd: PathBuf,
    pub(crate) install_db: PathBuf,
    pub(crate) mariadb: PathBuf,
    pub(crate) slurmdbd: PathBuf,
    pub(crate) sacctmgr: PathBuf,
    pub(crate) cc: PathBuf,
    pub(crate) timeout: PathBuf,
    pub(crate) setsid: PathBuf,
    pub(crate) sh: PathBuf,
}

impl Programs {
    /// Finds them all, or says in one sentence what is missing and where it comes from.
    pub(crate) fn find() -> Result<Self, String> {
        // `/proc/self` belongs to the effective user of this process.
        match std::fs::metadata("/proc/self") {
            Err(error) => return Err(format!("a lab needs Linux's /proc: {error}")),
            Ok(process) if process.uid() != 0 => {
                return Err("a lab needs root, as whom slurmdbd and its database run".to_owned());
            }
            Ok(_) => {}
        }
        let mut missing = Vec::new();
        let mut find = |names: &[&str], package: &str| {
            find_program(names).unwrap_or_else(|| {
                missing.push(format!("{} (package {package})", names.first().unwrap_or(&package)));
                PathBuf::new()
            })
        };
        let programs = Self {
            mariadbd: find(&["mariadbd", "mysqld"], "mariadb-server"),
            install_db: find(&["mariadb-install-db", "mysql_install_db"], "mariadb-server"),
            mariadb: find(&["mariadb", "mysql"], "mariadb-client"),
            slurmdbd: find(&["slurmdbd"], "slurmdbd"),
            sacctmgr: find(&["sacctmgr"], "slurm-client"),
            cc: find(&["cc", "gcc", "clang"], "gcc"),
            timeout: find(&["timeout"], "coreutils"),
            setsid: find(&["setsid"], "util-linux"),
            sh: find(&["sh"], "dash"),
        };
        if missing.is_empty() { Ok(programs) } else { Err(format!("not installed: {}", missing.join(", "))) }
    }
}

/// Looks along `PATH`, then where daemons live, which an ordinary user's `PATH` leaves out.
fn find_program(names: &[&str]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from))
        .collect();
    names
        .iter()
        .flat_map(|name| folders.iter().map(move |folder| folder.join(name)))
        .find(|file| is_program(file))
}

fn is_program(file: &Path) -> bool {
    file.is_absolute()
        && std::fs::metadata(file).is_ok_and(|found| found.is_file() && found.mode() & 0o111 != 0)
}
