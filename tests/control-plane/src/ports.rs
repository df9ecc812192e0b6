//! Free ports that no outgoing connection will take.

use std::hash::{BuildHasher as _, RandomState};
use std::net::{Ipv4Addr, TcpListener};

use anyhow::{Result, anyhow};

const LOWEST: u16 = 10_000;

/// The first port of the range from which the kernel takes ports of outgoing connections.
fn ephemeral_start() -> u16 {
    std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")
        .ok()
        .and_then(|range| range.split_whitespace().next()?.parse().ok())
        .unwrap_or(32_768)
}

/// Picks different ports of 127.0.0.1 that are free now; whoever uses them must be ready to lose one.
///
/// They are random, so that control planes that start at the same time seldom meet.
pub(crate) fn pick<const N: usize>() -> Result<[u16; N]> {
    // A machine whose outgoing connections start even lower has no better place.
    let end = ephemeral_start().max(LOWEST + 10_000);
    let random = RandomState::new();
    let mut held = Vec::new();
    for attempt in 0..10_000_u32 {
        if held.len() == N {
            break;
        }
        let offset = random.hash_one(attempt) % u64::from(end - LOWEST);
        // Held until all are found, so that none is picked twice.
        held.extend(TcpListener::bind((Ipv4Addr::LOCALHOST, LOWEST + u16::try_from(offset)?)));
    }
    let ports: Vec<u16> =
        held.iter().map(|listener| Ok(listener.local_addr()?.port())).collect::<Result<_>>()?;
    ports.try_into().map_err(|_| anyhow!("no {N} free ports between {LOWEST} and {end} on 127.0.0.1"))
}
