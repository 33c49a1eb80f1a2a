//! The minimal layout in the crash explorer, beside `each.rs`: the explorer is not blind to its flaws.

use std::collections::BTreeMap;

use nacre_lab::crash::{Flaw, MEMORY, Rig, Settings, Subject, explore, sites};
use nacre_media::sim::Defect;

use crate::each::{by_name, quick};
use crate::layouts::minimal::Minimal;

/// The layout without each of its flushes and fences, and with each mistake on purpose.
#[test]
fn flaws_are_found() {
    let mut rig = Rig::new(&Minimal, MEMORY);
    let workloads = ["create", "overwrite", "remount"].map(by_name);
    let mut flaws = BTreeMap::new();
    for workload in &workloads {
        let (flushes, fences) = sites(&mut rig, workload).expect("it can be run");
        let flushes = flushes.into_iter().map(|site| ("flush", site, Defect::SkipFlushAt(site)));
        let fences = fences.into_iter().map(|site| ("fence", site, Defect::SkipFenceAt(site)));
        for (kind, site, defect) in flushes.chain(fences) {
            flaws.insert(format!("no {kind} at {}", Minimal.site_name(site)), Flaw::Memory(defect));
        }
    }
    let mistakes = Minimal.mistakes();
    flaws.extend(mistakes.iter().map(|mistake| (mistake.words.to_owned(), Flaw::Layout(mistake.number))));
    for (name, &flaw) in &flaws {
        let settings = Settings { recovery_every: 16, empty_every: 4, ..quick(flaw) };
        let found = workloads.iter().find_map(|workload| {
            let report = explore(&mut rig, workload, &settings).expect("it can be run");
            report.violations.into_iter().next()
        });
        let violation = found.unwrap_or_else(|| panic!("{name} is not found"));
        println!("{name}: {}", violation.situation);
    }
}
