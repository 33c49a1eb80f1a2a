//! The layouts of the tests in this directory. One line of [`each_layout`] brings a layout into all of them: the
//! behaviour suite, random system calls and random sequences beside the model, the crash explorer, and threads in many
//! schedules. Each test program includes this module.
//!
//! Four of them ship. The last is [`minimal`]: it shows the least that a layout writes.

pub(crate) mod minimal;

/// Calls `$tests!` once for each layout, with a name for a module of tests, and with the layout's registration
/// ([`Registered`](nacre_lab::crash::Registered)).
macro_rules! each_layout {
    ($tests:ident) => {
        $tests!(log, nacre_lab::crash::Log);
        $tests!(inplace, nacre_lab::crash::Inplace);
        $tests!(pool, nacre_lab::crash::Pool);
        $tests!(shadow, nacre_lab::crash::Shadow);
        $tests!(minimal, crate::layouts::minimal::Minimal);
    };
}
pub(crate) use each_layout;
