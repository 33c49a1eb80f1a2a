//! Questions and orders to a mount of nacre, stated once for the server and for all that ask it.
//!
//! A question is the name of an extended attribute that no inode stores; its value is the answer, as JSON. An order is
//! the value of such an attribute, under a name that its sender chose. The result of the order stays under that name
//! for a while, because a failed setxattr(2) returns a number only.
//!
//! | module | contents |
//! | --- | --- |
//! | `name` | the names of the attributes |
//! | `order` | orders and their results |
//! | `info` | devices, file systems and mounts |
//! | `scrub` | scrubs |
//! | `tier`, `mover` | the tiers of a mount, its mover and access statistics, as it reports them |

mod info;
mod mover;
mod name;
mod order;
mod scrub;
mod tier;

pub use info::{
    CacheInfo, CounterInfo, DeviceInfo, Features, FlagsTaken, Info, MountInfo, SpaceInfo, VolumeInfo,
    VolumeRow,
};
pub use mover::{AgesInfo, DoingInfo, HotFileInfo, MoverInfo, QueueInfo, QueuedInfo, TemperatureInfo};
pub use name::{ANSWER_MAX, Command, PREFIX, Question, result_attribute, result_id};
pub use order::{
    Attached, Drained, Envelope, FilesMoved, FilesToMove, Order, Outcome, Synced, TierAdded, TierToAdd,
    TierToTrim, Trimmed,
};
pub use scrub::{ScrubInfo, TierScrubInfo};
pub use tier::{TierInfo, TiersInfo, TrafficInfo};
