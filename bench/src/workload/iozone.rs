//! The six phases of IOzone on one file: write, rewrite, read, reread, random read, random write.
//!
//! A round is one phase over the whole file, as there. The file of `write` is new each time. The times of opening,
//! closing and flushing are left out, as without its options -e and -c.

use std::path::Path;

use nacre_engine::size;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;

use super::recorder::whole;
use super::set::{buffer, fill};
use super::{Length, Measured, Op, Round, Value, Workload};
use crate::Error;
use crate::spec::Spec;
use crate::target::{Open, Target, read_all};

const FILE: &str = "iozone.tmp";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Write,
    Rewrite,
    Read,
    Reread,
    RandomRead,
    RandomWrite,
}

struct Iozone {
    phase: Phase,
    record: u64,
    file: u64,
}

pub(super) fn make(spec: &Spec, scale: f64) -> Result<Box<dyn Workload>, String> {
    let phases = [
        ("write", Phase::Write),
        ("rewrite", Phase::Rewrite),
        ("read", Phase::Read),
        ("reread", Phase::Reread),
        ("randread", Phase::RandomRead),
        ("randwrite", Phase::RandomWrite),
    ];
    let phase = spec.word("phase", "write", &phases)?;
    let record = spec.size("record", "4k")?;
    if record == 0 {
        return Err("iozone: record: at least one byte".into());
    }
    let file = ((spec.size("file", "16m")? as f64 * scale) as u64 / record).max(1) * record;
    Ok(Box::new(Iozone { phase, record, file }))
}

impl Workload for Iozone {
    fn describe(&self) -> String {
        let phase = match self.phase {
            Phase::Write => "a new file written",
            Phase::Rewrite => "a file written again",
            Phase::Read => "a file read",
            Phase::Reread => "a file read again",
            Phase::RandomRead => "a file read in random order",
            Phase::RandomWrite => "a file written in random order",
        };
        format!("IOzone: {phase}, {} in records of {}", size::print(self.file), size::print(self.record))
    }

    fn bytes(&self) -> u64 {
        self.file
    }

    fn files(&self) -> u64 {
        1
    }

    fn value(&self) -> Value {
        Value::Bytes
    }

    fn length(&self) -> Length {
        Length::Whole
    }

    fn prepare(&self, target: &dyn Target) -> Result<(), Error> {
        fill(target, Path::new(FILE), self.file)?;
        Ok(target.sync()?)
    }

    fn round(&self, target: &dyn Target, round: Round) -> Result<Measured, Error> {
        let path = Path::new(FILE);
        let reads = matches!(self.phase, Phase::Read | Phase::Reread | Phase::RandomRead);
        let how = match self.phase {
            Phase::Write => {
                target.remove_file(path)?;
                Open::CREATE
            }
            _ if reads => Open::READ,
            _ => Open::WRITE,
        };
        let file = target.open(path, how)?;
        let mut order: Vec<u64> = (0..self.file / self.record).map(|number| number * self.record).collect();
        if matches!(self.phase, Phase::RandomRead | Phase::RandomWrite) {
            order.shuffle(&mut SmallRng::seed_from_u64(round.seed_of(0)));
        }
        let mut data = buffer(self.record as usize);
        if self.phase == Phase::Reread {
            for &at in &order {
                read_all(&*file, &mut data, at)?;
            }
        }
        whole(|recorder| {
            for &at in &order {
                if reads {
                    read_all(&*file, &mut data, at)?;
                    recorder.lap_read(Op::Read, self.record as usize);
                } else {
                    file.write_at(&data, at)?;
                    recorder.lap_write(Op::Write, self.record as usize);
                }
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::target::Open;
    use crate::workload::noted::{Call, Noted};
    use crate::workload::{Round, make};

    const RECORDS: u64 = 24;

    /// What a phase does to a file of [`RECORDS`] records of 5000 bytes that is there.
    fn calls(phase: &str) -> Vec<Call> {
        let dir = tempfile::tempdir().unwrap();
        let target = Noted::new(dir.path());
        let spec = format!("iozone,phase={phase},record=5000,file={}", RECORDS * 5000 + 17);
        let work = make(&spec.parse().unwrap(), 1.0).unwrap();
        work.prepare(&target).unwrap();
        target.take();
        let measured = work.round(&target, Round { number: 3, seed: 1, slice: Duration::ZERO }).unwrap();
        let (all, reads) = (RECORDS * 5000, phase.contains("read"));
        assert_eq!(measured.operations, RECORDS, "{phase}");
        assert_eq!((measured.read, measured.written), if reads { (all, 0) } else { (0, all) }, "{phase}");
        target.take().into_iter().map(|(_, call)| call).collect()
    }

    fn in_order(call: fn(u64) -> Call) -> Vec<Call> {
        (0..RECORDS).map(|record| call(record * 5000)).collect()
    }

    fn reads() -> Vec<Call> {
        in_order(|at| Call::Read(at, 5000))
    }

    fn writes() -> Vec<Call> {
        in_order(|at| Call::Write(at, 5000))
    }

    fn opened(how: Open, calls: Vec<Call>) -> Vec<Call> {
        [vec![Call::Open(how)], calls, vec![Call::Close]].concat()
    }

    #[test]
    fn phases_pass_the_file_in_order() {
        assert_eq!(calls("write"), [vec![Call::Remove], opened(Open::CREATE, writes())].concat());
        assert_eq!(calls("rewrite"), opened(Open::WRITE, writes()));
        assert_eq!(calls("read"), opened(Open::READ, reads()));
        assert_eq!(calls("reread"), opened(Open::READ, [reads(), reads()].concat()));
    }

    #[test]
    fn random_phases_pass_each_record_once_out_of_order() {
        for (phase, expected) in [("randread", reads()), ("randwrite", writes())] {
            let mut calls = calls(phase);
            let inner = &mut calls[1..=RECORDS as usize];
            assert_ne!(inner, expected, "{phase}");
            inner.sort_by_key(|call| match call {
                Call::Read(at, _) | Call::Write(at, _) => *at,
                other => panic!("{other:?}"),
            });
            assert_eq!(inner, expected, "{phase}");
        }
    }
}
