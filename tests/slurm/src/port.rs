//! Ports for daemons that can't take an already bound socket.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, TcpListener};

use anyhow::{Result, bail};

/// Where the kernel takes ports for outgoing connections from when it doesn't say.
const EPHEMERAL: u16 = 32_768;
const LOWEST: u16 = 10_000;
/// A listening socket's state in `/proc/net/tcp`.
const LISTENING: &str = "0A";

/// A port of loopback below the ephemeral range that nobody listens on.
///
/// Somebody may take it before it is used, so [`listens`] has to be asked who got it.
pub(crate) fn free_port() -> Result<u16> {
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let end = range.split_whitespace().next().and_then(|first| first.parse().ok()).unwrap_or(EPHEMERAL);
    let width = u64::from(end.saturating_sub(LOWEST).max(1));
    for _ in 0..1_000 {
        // Keyed at random: different in each test process, unlike a counter or the time.
        let offset = u16::try_from(RandomState::new().hash_one(()) % width)?;
        let port = LOWEST + offset;
        if TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no free port from {LOWEST} to {end}")
}

/// Whether the process `pid` itself listens on `port`, and on loopback alone.
///
/// # Errors
/// Where it listens on more than loopback.
pub(crate) fn listens(pid: u32, port: u16) -> Result<bool> {
    let sockets: HashSet<String> = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .into_iter()
        .flatten()
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok()?.to_str().map(str::to_owned))
        .collect();
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap_or_default();
    for line in table.lines() {
        let mut fields = line.split_whitespace();
        let (Some(local), Some(state), Some(inode)) = (fields.nth(1), fields.nth(1), fields.nth(5)) else {
            continue;
        };
        let Some((address, own_port)) = local.split_once(':') else { continue };
        let ours = state == LISTENING
            && u16::from_str_radix(own_port, 16) == Ok(port)
            && sockets.contains(&format!("socket:[{inode}]"));
        if ours {
            // The address is printed as a number in this machine's byte order.
            let address = u32::from_str_radix(address, 16).map(|number| Ipv4Addr::from(number.to_ne_bytes()));
            match address {
                Ok(address) if address.is_loopback() => return Ok(true),
                other => bail!("process {pid} listens on {other:?}, not on loopback"),
            }
        }
    }
    Ok(false)
}
