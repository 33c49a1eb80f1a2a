//! A crash while a crash is recovered from.

use std::fmt::Write as _;

use nacre_media::crash::{CrashImage, Replay};
use nacre_media::sim::Defect;
use nacre_media::{Image, Trace};

use super::case::{read_line, write_lines};
use super::record::Rig;
use super::report::{Again, Lines, Recovery};
use super::subject::{Mounting, Subject};
use super::verify::caught;

/// The words of a trace that begin such a crash.
const IN_MOUNT: &str = "crash-in-mount";
const IN_REPAIR: &str = "crash-in-repair";

impl Recovery {
    /// The recovery of this number: mount and repair alternate.
    pub(super) fn by_turn(number: u64) -> Recovery {
        if number.is_multiple_of(2) { Recovery::Repair } else { Recovery::Mount }
    }
}

/// The trace of a recovery of an image. It ends with an unmount, after which the changes of the recovery must be
/// durable.
pub(super) fn trace_recovery<S: Subject>(
    rig: &Rig<'_, S>,
    crashed: &Image,
    by: Recovery,
    defect: Option<Defect>,
) -> Trace {
    rig.pm.load(crashed);
    rig.pm.start_recording_with(defect);
    let (subject, pm) = (rig.subject, &rig.pm);
    subject.use_lane(0);
    // A failure here happened without the trace, too, and was reported.
    let _ = caught(|| {
        if by == Recovery::Repair {
            subject.repair(pm)?;
        }
        subject.unmount(subject.mount(pm, Mounting::default())?)
    });
    pm.stop_recording()
}

/// Loads the image of a crash in the recovery of an image into simulated PM; false if there is no such crash.
pub(super) fn crash_again<S: Subject>(
    rig: &Rig<'_, S>,
    crashed: Image,
    again: &Again,
    defect: Option<Defect>,
) -> bool {
    let trace = trace_recovery(rig, &crashed, again.by, defect);
    let mut recovery = Replay::new(crashed, &trace);
    while let Some(point) = recovery.advance() {
        if point.index == again.point {
            if !again.landed.iter().all(|(line, bytes)| recovery.allows(*line, bytes)) {
                return false;
            }
            rig.pm.load(recovery.media());
            let lines = again.landed.clone();
            CrashImage { index: 0, lines, choice: "from a trace" }.apply(&rig.pm);
            return true;
        }
    }
    false
}

/// The description of such a crash, which follows that of the first one.
pub(super) fn in_words(by: Recovery, image: &CrashImage) -> String {
    format!("; then during recovery ({by:?}); {image:?}")
}

/// Writes it behind the first crash.
pub(super) fn write_again(text: &mut String, again: Option<&Again>) {
    if let Some(again) = again {
        let word = if again.by == Recovery::Mount { IN_MOUNT } else { IN_REPAIR };
        let _ = writeln!(text, "{word} {}", again.point);
        write_lines(text, "landed", &again.landed);
    }
}

/// Parses a line that says where a crash happened, or which lines landed in the last one. `None` if the line is of
/// another kind, or is wrong.
pub(super) fn take_crash(
    (word, rest): (&str, &str),
    point: &mut usize,
    landed: &mut Lines,
    recovery: &mut Option<Again>,
) -> Option<()> {
    match word {
        "crash" => *point = rest.parse().ok()?,
        IN_MOUNT | IN_REPAIR => {
            let by = if word == IN_MOUNT { Recovery::Mount } else { Recovery::Repair };
            *recovery = Some(Again { by, point: rest.parse().ok()?, landed: Lines::new() });
        }
        "landed" => recovery.as_mut().map_or(landed, |again| &mut again.landed).push(read_line(rest)?),
        _ => return None,
    }
    Some(())
}
