//! When the mover moves blocks by itself: windows of the day, in local time.
//!
//! The caller gives how far local time is ahead of UTC, anew for each moment: with daylight saving time, it differs
//! in summer. A window that begins in the skipped hour opens when that hour is over. A window in the repeated hour is
//! open twice.

use std::fmt;
use std::str::FromStr;

/// Windows that there are at the most.
pub const MAX_WINDOWS: usize = 8;
/// How it is written that there is none, and so no limit.
const ALWAYS: &str = "always";
const DAY_MINUTES: u16 = 24 * 60;
const MINUTE_MS: u64 = 60_000;
/// Minutes in which a window is looked for. One that lies in the hour that is skipped comes a day later.
const LOOKED_AT: u64 = 3 * DAY_MINUTES as u64;

/// A minute of the day in local time, 0:00 to 23:59; as the end of a window also 24:00.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Minute(u16);

impl Minute {
    /// That of a time in milliseconds since 1970, where local time is so many seconds ahead of UTC.
    pub fn of(time_ms: u64, ahead_s: i64) -> Minute {
        let seconds = i64::try_from(time_ms / 1000).unwrap_or(i64::MAX).saturating_add(ahead_s);
        Minute(seconds.div_euclid(60).rem_euclid(DAY_MINUTES.into()) as u16)
    }

    /// From `22:00` or `6:00`.
    fn parse(text: &str) -> Option<Minute> {
        let (hours, minutes) = text.split_once(':')?;
        let number =
            |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?;
        let (hours, minutes): (u16, u16) = match (hours.len(), minutes.len()) {
            (1..=2, 2) => (number(hours)?, number(minutes)?),
            _ => return None,
        };
        (minutes < 60 && hours * 60 + minutes <= DAY_MINUTES).then_some(Minute(hours * 60 + minutes))
    }
}

impl fmt::Display for Minute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02}:{:02}", self.0 / 60, self.0 % 60)
    }
}

/// A part of the day; over midnight when it ends before it begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Window {
    begin: Minute,
    end: Minute,
}

impl Window {
    fn parse(text: &str) -> Option<Window> {
        let (begin, end) = text.split_once('-')?;
        let window = Window { begin: Minute::parse(begin)?, end: Minute::parse(end)? };
        (window.begin.0 < DAY_MINUTES && window.begin != window.end).then_some(window)
    }

    fn contains(&self, minute: Minute) -> bool {
        let Window { begin, end } = *self;
        if begin < end { (begin..end).contains(&minute) } else { minute >= begin || minute < end }
    }
}

/// The hours of the mover: always, or in windows of the day.
///
/// ```
/// # use nacre_policy::{Hours, Minute};
/// let hours: Hours = "12:00-13:00+22:00-06:00".parse()?;
/// let midnight = 1_700_006_400_000;
/// assert!(hours.is_open(Minute::of(midnight, 0)));
/// // Where local time is eight hours ahead, it is morning.
/// assert!(!hours.is_open(Minute::of(midnight, 8 * 3600)));
/// assert_eq!(hours.opens_ms(midnight, &|_| 8 * 3600), Some(midnight + 4 * 3_600_000));
/// # Ok::<(), String>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Hours {
    /// The first ones; without any it is always.
    windows: [Option<Window>; MAX_WINDOWS],
}

impl Hours {
    /// There are no windows.
    pub fn is_always(&self) -> bool {
        self.windows[0].is_none()
    }

    /// Whether a minute lies in a window.
    pub fn is_open(&self, minute: Minute) -> bool {
        self.is_always() || self.windows.iter().flatten().any(|window| window.contains(minute))
    }

    /// When the next window begins, in milliseconds since 1970 as is the time now; `None` while one is open.
    /// `ahead_s` says how many seconds local time is ahead of UTC at a time, and is asked for every minute until
    /// then.
    pub fn opens_ms(&self, now_ms: u64, ahead_s: &dyn Fn(u64) -> i64) -> Option<u64> {
        let is_open = |at_ms: &u64| self.is_open(Minute::of(*at_ms, ahead_s(*at_ms)));
        if is_open(&now_ms) {
            return None;
        }
        let minute = now_ms / MINUTE_MS;
        (minute + 1..=minute + LOOKED_AT).map(|minute| minute * MINUTE_MS).find(is_open)
    }
}

impl FromStr for Hours {
    type Err = String;

    /// `always`, or windows with `+` between them.
    fn from_str(text: &str) -> Result<Hours, String> {
        let mut hours = Hours::default();
        if text == ALWAYS {
            return Ok(hours);
        }
        if text.split('+').count() > MAX_WINDOWS {
            return Err(format!("{text:?} has more than {MAX_WINDOWS} windows"));
        }
        for (slot, part) in hours.windows.iter_mut().zip(text.split('+')) {
            let window = Window::parse(part).ok_or_else(|| {
                format!(
                    "{part:?} is no window of the day; give 22:00-06:00, 12:00-13:00+22:00-06:00, or always"
                )
            })?;
            *slot = Some(window);
        }
        Ok(hours)
    }
}

impl fmt::Display for Hours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_always() {
            return f.write_str(ALWAYS);
        }
        for (at, Window { begin, end }) in self.windows.iter().flatten().enumerate() {
            let between = if at == 0 { "" } else { "+" };
            write!(f, "{between}{begin}-{end}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{DAY_MINUTES, Hours, MAX_WINDOWS, MINUTE_MS, Minute};

    const HOUR_MS: u64 = 60 * MINUTE_MS;
    /// 2023-11-15 0:00 UTC.
    const MIDNIGHT_MS: u64 = 1_700_006_400_000;

    fn hours(text: &str) -> Hours {
        text.parse().unwrap()
    }

    #[test]
    fn windows_are_read_and_written() {
        for text in ["always", "22:00-06:00", "12:30-13:00+22:00-06:00", "00:00-24:00", "23:59-00:00"] {
            assert_eq!(hours(text).to_string(), text);
        }
        assert_eq!(hours("6:05-7:00").to_string(), "06:05-07:00");
        assert_eq!(hours("always"), Hours::default());
        let most = ["01:00-02:00"; MAX_WINDOWS].join("+");
        assert_eq!(hours(&most).to_string(), most);
        for wrong in [
            "",
            "never",
            "22:00",
            "22:00-",
            "22-6",
            "22:00-22:00",
            "24:00-06:00",
            "22:60-06:00",
            "24:01-06:00",
            "22:0-06:00",
            "022:00-06:00",
            "+1:00-06:00",
            "22:00-06:00+",
            "22:00-06:00+always",
            "-1:00-06:00",
            "22:00–06:00",
        ] {
            let error = wrong.parse::<Hours>().expect_err(wrong);
            assert!(error.contains("no window of the day"), "{error}");
        }
        let error = format!("{most}+03:00-04:00").parse::<Hours>().unwrap_err();
        assert!(error.contains("more than 8 windows"), "{error}");
    }

    #[test]
    fn a_window_has_its_first_minute_and_not_its_last() {
        let open = |text: &str| {
            let hours = hours(text);
            (0..DAY_MINUTES).filter(|minute| hours.is_open(Minute(*minute))).collect::<Vec<_>>()
        };
        assert_eq!(open("12:00-12:03"), [720, 721, 722]);
        assert_eq!(open("23:59-00:01"), [0, 1439]);
        assert_eq!(open("23:58-24:00"), [1438, 1439]);
        assert_eq!(open("23:58-00:00"), [1438, 1439]);
        assert_eq!(open("00:01-00:02+00:03-00:04"), [1, 3]);
        assert_eq!((open("always").len(), open("00:00-24:00").len()), (1440, 1440));
    }

    #[test]
    fn minutes_are_those_of_local_time() {
        for (hours, ahead_s, minute) in
            [(0, 0, "00:00"), (0, -1, "23:59"), (5, 5 * 3600 + 1800, "10:30"), (23, 3600, "00:00")]
        {
            assert_eq!(Minute::of(MIDNIGHT_MS + hours * HOUR_MS, ahead_s).to_string(), minute);
        }
        assert_eq!(Minute::of(MIDNIGHT_MS + MINUTE_MS - 1, 0), Minute(0));
        // A clock that says nothing sensible brings nothing down.
        Minute::of(u64::MAX, i64::MAX);
        Minute::of(0, i64::MIN);
    }

    #[test]
    fn the_next_window_is_the_first_that_begins() {
        let nights = hours("12:00-13:00+22:00-06:00");
        let opens = |now_ms: u64| nights.opens_ms(now_ms, &|_| 0);
        let at = |hour: u64| MIDNIGHT_MS + hour * HOUR_MS;
        assert_eq!(opens(at(1)), None);
        assert_eq!(opens(at(6)), Some(at(12)));
        assert_eq!(opens(at(12) - 1), Some(at(12)));
        assert_eq!((opens(at(12)), opens(at(13) - 1)), (None, None));
        assert_eq!(opens(at(13)), Some(at(22)));
        assert_eq!((opens(at(22)), opens(at(30) - 1), opens(at(30))), (None, None, Some(at(36))));
        // In the middle of a minute, and a day later.
        assert_eq!(hours("06:00-07:00").opens_ms(at(7) + 12_345, &|_| 0), Some(at(30)));
        assert_eq!(Hours::default().opens_ms(at(7), &|_| 0), None);
    }

    /// As in Berlin in 2023: an hour ahead until 26 March, 1:00 UTC, two from then on until 29 October, 1:00 UTC.
    #[test]
    fn clocks_that_are_set_forward_and_back_are_followed() {
        const SPRING_MS: u64 = 1_679_792_400_000;
        const AUTUMN_MS: u64 = 1_698_541_200_000;
        let ahead_s = |at_ms: u64| if (SPRING_MS..AUTUMN_MS).contains(&at_ms) { 7200 } else { 3600 };
        let opens = |text: &str, now_ms: u64| hours(text).opens_ms(now_ms, &ahead_s);
        // 20:00 of the day before: the night is an hour shorter, and one longer.
        let evening = |change_ms: u64, ahead: u64| change_ms - (5 + ahead) * HOUR_MS;
        assert_eq!(Minute::of(evening(SPRING_MS, 1), 3600).to_string(), "20:00");
        assert_eq!(Minute::of(evening(AUTUMN_MS, 2), 7200).to_string(), "20:00");
        assert_eq!(opens("05:00-06:00", evening(SPRING_MS, 1)), Some(evening(SPRING_MS, 1) + 8 * HOUR_MS));
        assert_eq!(opens("05:00-06:00", evening(AUTUMN_MS, 2)), Some(evening(AUTUMN_MS, 2) + 10 * HOUR_MS));
        // 2:00 to 3:00 is not there in spring.
        assert_eq!(opens("02:30-04:00", evening(SPRING_MS, 1)), Some(SPRING_MS));
        assert_eq!(opens("02:30-02:50", evening(SPRING_MS, 1)), Some(SPRING_MS + 23 * HOUR_MS + HOUR_MS / 2));
        // In autumn it comes twice.
        let first = AUTUMN_MS - HOUR_MS / 2;
        assert_eq!(opens("02:30-03:00", evening(AUTUMN_MS, 2)), Some(first));
        assert_eq!(opens("02:30-03:00", AUTUMN_MS), Some(first + HOUR_MS));
    }
}
