//! Disks that fail in the ways disks do.

#[allow(dead_code)] // Each test takes what it needs.
pub(crate) mod crash;
#[allow(dead_code)]
pub(crate) mod faulty;

use std::io;
use std::sync::{Mutex, MutexGuard};

use spur_sdk::store::file::Disk;

/// A file in memory.
#[derive(Debug, Default)]
pub(crate) struct Image(Mutex<Vec<u8>>);

impl Image {
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        Self(Mutex::new(bytes))
    }

    pub(crate) fn bytes(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().unwrap()
    }
}

impl Disk for Image {
    fn size(&self) -> io::Result<u64> {
        Ok(self.bytes().len() as u64)
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let start = usize::try_from(offset).unwrap();
        let held = self.bytes();
        let part = held.get(start..start + bytes.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        bytes.copy_from_slice(part);
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let start = usize::try_from(offset).unwrap();
        let mut held = self.bytes();
        if held.len() < start + bytes.len() {
            held.resize(start + bytes.len(), 0);
        }
        held[start..start + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn resize(&self, size: u64) -> io::Result<()> {
        self.bytes().resize(usize::try_from(size).unwrap(), 0);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

/// A small generator of pseudo-random numbers.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        // Far from zero, where the generator would stay.
        let mut dice = Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        for _ in 0..8 {
            dice.roll(2);
        }
        dice
    }

    /// A number below `sides`.
    pub(crate) fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % sides
    }
}
