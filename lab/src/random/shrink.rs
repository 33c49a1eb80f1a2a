//! The shortest sequence that still fails.

use std::time::{Duration, Instant};

use super::op::Op;
use super::run::Broken;

/// Time limit of a search; the shortest sequence so far is kept.
const LIMIT: Duration = Duration::from_secs(60);

/// Drops operations, then makes numbers rounder, as long as it still fails.
pub(super) fn shrink(
    mut ops: Vec<Op>,
    mut broken: Broken,
    mut fails: impl FnMut(&[Op]) -> Option<Broken>,
) -> (Vec<Op>, Broken) {
    let start = Instant::now();
    ops.truncate(broken.step.max(1));
    // Operations after the failing step may have mattered after all, for the comparison at the end.
    match fails(&ops) {
        Some(again) => broken = again,
        None => return (ops, broken),
    }
    let mut size = ops.len() / 2;
    while size > 0 && start.elapsed() < LIMIT {
        let mut dropped = false;
        let mut at = 0;
        while at < ops.len() && start.elapsed() < LIMIT {
            let mut fewer = ops.clone();
            fewer.drain(at..(at + size).min(ops.len()));
            match fails(&fewer) {
                Some(again) => (ops, broken, dropped) = (fewer, again, true),
                None => at += size,
            }
        }
        if !dropped || size > 1 {
            size /= 2;
        }
    }
    for at in 0..ops.len() {
        for simpler in simpler(&ops[at]) {
            if start.elapsed() > LIMIT {
                break;
            }
            let mut changed = ops.clone();
            changed[at] = simpler;
            if let Some(again) = fails(&changed) {
                (ops, broken) = (changed, again);
            }
        }
    }
    (ops, broken)
}

/// The same operation with rounder numbers, the boldest change first.
fn simpler(op: &Op) -> Vec<Op> {
    let rounder = |number: u64| {
        let mut all = vec![0, number / 4096 * 4096, number / 64 * 64];
        all.retain(|candidate| *candidate < number);
        all
    };
    let mut all = Vec::new();
    match op {
        Op::Write { node, offset, len, seed, .. } => {
            let make = |offset, len| Op::Write { node: node.clone(), offset, len, seed: *seed, split: 0 };
            all.extend(rounder(*offset).into_iter().map(|offset| make(offset, *len)));
            all.extend([1, 4096].into_iter().filter(|shorter| shorter < len).map(|len| make(*offset, len)));
        }
        Op::Fallocate { node, mode, offset, len } => {
            let make = |offset, len| Op::Fallocate { node: node.clone(), mode: *mode, offset, len };
            all.extend(rounder(*offset).into_iter().map(|offset| make(offset, *len)));
            all.extend([1, 4096].into_iter().filter(|shorter| shorter < len).map(|len| make(*offset, len)));
        }
        Op::Read { node, offset, len, .. } => {
            let make = |offset, len| Op::Read { node: node.clone(), offset, len, stamped: false };
            all.extend(rounder(*offset).into_iter().map(|offset| make(offset, *len)));
        }
        _ => {}
    }
    all
}
