//! What a disk may hold after a loss of power: of the writes since the last sync each sector may be there or not.

use std::io;
use std::sync::Mutex;

use spur_sdk::store::file::Disk;

use super::{Dice, Image};

/// What happened to a disk.
#[derive(Debug, Clone)]
pub(crate) enum Event {
    Write(usize, Vec<u8>),
    Resize(usize),
    Sync,
    /// A sync has failed: what was written before is on the disk or is not, and the system has forgotten it.
    FailedSync,
    /// The store has confirmed this revision.
    Confirmed(u64),
}

/// A disk that remembers what happened to it.
#[derive(Debug, Default)]
pub(crate) struct Recorded {
    pub(crate) image: Image,
    pub(crate) events: Mutex<Vec<Event>>,
    /// How many operations work still, where the others fail.
    works: Mutex<Option<u64>>,
}

impl Recorded {
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        Self { image: Image::new(bytes), ..Self::default() }
    }

    /// Lets `Some` operations more work and all others fail; `None` ends that.
    pub(crate) fn fail_after(&self, works: Option<u64>) {
        *self.works.lock().unwrap() = works;
    }

    fn admit(&self) -> io::Result<()> {
        match &mut *self.works.lock().unwrap() {
            Some(0) => Err(io::Error::other("the disk is broken")),
            Some(works) => {
                *works -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    pub(crate) fn note(&self, event: Event) {
        self.events.lock().unwrap().push(event);
    }
}

impl Disk for Recorded {
    fn size(&self) -> io::Result<u64> {
        self.image.size()
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.image.read(offset, bytes)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.admit()?;
        self.note(Event::Write(usize::try_from(offset).unwrap(), bytes.to_vec()));
        self.image.write(offset, bytes)
    }

    fn resize(&self, size: u64) -> io::Result<()> {
        self.admit()?;
        self.note(Event::Resize(usize::try_from(size).unwrap()));
        self.image.resize(size)
    }

    fn sync(&self) -> io::Result<()> {
        if let Err(error) = self.admit() {
            self.note(Event::FailedSync);
            return Err(error);
        }
        self.note(Event::Sync);
        self.image.sync()
    }
}

const SECTOR: usize = 512;

/// How many of the sectors that were not synced are there, of ten.
pub(crate) const SURVIVORS: [u64; 5] = [0, 1, 5, 9, 10];

/// What a disk has for certain, and what it may have beside that.
#[derive(Debug)]
pub(crate) struct Platter {
    safe: Vec<u8>,
    since: Vec<Event>,
}

impl Platter {
    pub(crate) fn new(safe: Vec<u8>) -> Self {
        Self { safe, since: Vec::new() }
    }

    pub(crate) fn take(&mut self, event: &Event) {
        let survivors = match event {
            Event::Sync => 10,
            Event::FailedSync => 5,
            _ => return self.since.push(event.clone()),
        };
        self.safe = self.after_crash(survivors, &mut Dice::new(self.since.len() as u64));
        self.since.clear();
    }

    /// What it holds after a crash that `survivors` of ten sectors survive.
    ///
    /// Sizes of files are kept in a journal: the first few changes of them survive, in order. A sector behind the end
    /// of the file is lost.
    pub(crate) fn after_crash(&self, survivors: u64, dice: &mut Dice) -> Vec<u8> {
        let mut image = self.safe.clone();
        let resizes = self.since.iter().filter(|event| matches!(event, Event::Resize(_))).count() as u64;
        let mut resizes = match survivors {
            0 => 0,
            10 => resizes,
            _ => dice.roll(resizes + 1),
        };
        for event in &self.since {
            match event {
                Event::Resize(size) if resizes > 0 => {
                    resizes -= 1;
                    image.resize(*size, 0);
                }
                Event::Write(offset, bytes) => {
                    for (index, sector) in bytes.chunks(SECTOR).enumerate() {
                        let start = offset + index * SECTOR;
                        let survives = dice.roll(10) < survivors;
                        if let Some(part) = image.get_mut(start..start + sector.len()).filter(|_| survives) {
                            part.copy_from_slice(sector);
                        }
                    }
                }
                Event::Resize(_) | Event::Sync | Event::FailedSync | Event::Confirmed(_) => {}
            }
        }
        image
    }
}
