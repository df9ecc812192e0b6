//! Starts control planes one after the other and prints how long each took: `start [COUNT]`, five by default.

use std::io::Write as _;

use spur_test_control_plane::ControlPlane;

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let count = std::env::args().nth(1).map_or(Ok(5), |count| count.parse::<u32>())?;
    for _ in 0..count {
        let control_plane = ControlPlane::start().await?;
        writeln!(std::io::stdout(), "{:.2} s", control_plane.start_time().as_secs_f64())?;
        control_plane.stop().await?;
    }
    Ok(())
}
