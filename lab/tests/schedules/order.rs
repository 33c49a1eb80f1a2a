//! Whether there is an order of calls, one after the other, that answers as the threads were answered and leaves what
//! they left.

use std::collections::HashMap;

use nacre_engine::Data;
use nacre_lab::model::MemLayout;

use crate::call::{Answer, Call, Ground, Tree};

/// One call of a thread.
#[derive(Debug, Clone)]
pub(crate) struct Event {
    /// Its number among all calls of the workload.
    pub(crate) number: u32,
    pub(crate) call: Call,
    pub(crate) answer: Answer,
    /// Ticks of one clock for all threads.
    pub(crate) began: u64,
    pub(crate) ended: u64,
}

/// The model, asked for all orders that come up; its answers are kept, for the next schedules ask the same.
pub(crate) struct Orders {
    /// The model after the setup.
    base: MemLayout,
    known: HashMap<Vec<u32>, (Answer, Tree)>,
}

impl Orders {
    pub(crate) fn new(setup: &[Call]) -> Orders {
        let ground = Ground::new(MemLayout::default()).expect("the model makes the ground");
        set_up(&ground, setup);
        Orders { base: ground.into_fs(), known: HashMap::new() }
    }

    /// The answer of the last call of an order, and what there is then.
    fn last(&mut self, order: &[&Event]) -> &(Answer, Tree) {
        let key: Vec<u32> = order.iter().map(|event| event.number).collect();
        let base = &self.base;
        self.known.entry(key).or_insert_with(|| {
            let model = Ground::new(base.remount()).expect("the model has the ground");
            let mut answer = Answer::Done;
            for event in order {
                answer = model.make(event.call, event.number);
            }
            (answer, model.tree().expect("the model can be read"))
        })
    }

    /// Whether some order of these events explains them and the tree that they left. No call comes before one that had
    /// ended when it began.
    pub(crate) fn explain(&mut self, events: &[Event], left: &Tree) -> bool {
        let mut order = Vec::with_capacity(events.len());
        self.search(events, &mut order, left)
    }

    fn search<'e>(&mut self, events: &'e [Event], order: &mut Vec<&'e Event>, left: &Tree) -> bool {
        if order.len() == events.len() {
            return order.is_empty() || self.last(order).1 == *left;
        }
        let open = |event: &&Event| !order.iter().any(|done| done.number == event.number);
        let candidates: Vec<&Event> = events.iter().filter(open).collect();
        let first_end = candidates.iter().map(|event| event.ended).min().unwrap_or(u64::MAX);
        for event in candidates.into_iter().filter(|event| event.began <= first_end) {
            order.push(event);
            if self.last(order).0 == event.answer && self.search(events, order, left) {
                return true;
            }
            order.pop();
        }
        false
    }
}

/// Makes the calls of a setup. Their numbers, and so their times, come before those of the threads.
pub(crate) fn set_up<S: Data>(ground: &Ground<S>, setup: &[Call]) {
    for (&call, number) in setup.iter().zip(100..) {
        let answer = ground.make(call, number);
        assert!(!matches!(answer, Answer::Failed(_)), "{call:?}: {answer:?}");
    }
}
