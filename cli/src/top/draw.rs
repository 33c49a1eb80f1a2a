//! The picture of a snapshot: a pure function of it, the one before, and the size of the screen.
//!
//! With an earlier snapshot, traffic is the rate per second since then, otherwise the total since the mount.

use nacre_control::{AgesInfo, CacheInfo, HotFileInfo, MoverInfo};
use nacre_engine::size;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::Paragraph;

use super::snapshot::{Place, Snapshot};
use crate::{mover, output};

/// The width of a bar that shows how full a place is, in characters.
const BAR: usize = 10;
/// Blanks between columns.
const GAP: usize = 2;
/// The shown characters of a longer last column, at least.
const CUT: usize = 12;
/// The help for keys.
const KEYS: &str = "q: quit   space: refresh";

/// Draws a snapshot on the whole screen: as much as fits, from the top.
pub(crate) fn draw(frame: &mut Frame<'_>, previous: Option<&Snapshot>, now: &Snapshot) {
    let area = frame.area();
    let lines = lines(previous, now, usize::from(area.width));
    // A single line is worth more than the help for keys.
    let keys = u16::from(area.height > 1);
    let body = Rect { height: area.height - keys, ..area };
    frame.render_widget(Paragraph::new(Text::from(lines)), body);
    let foot = Rect { y: area.y + body.height, height: keys, ..area };
    frame.render_widget(Paragraph::new(Line::styled(KEYS, dim())), foot);
}

/// A snapshot as text, without a limit on the width.
pub(crate) fn text(previous: Option<&Snapshot>, now: &Snapshot) -> String {
    let lines = lines(previous, now, usize::MAX);
    lines.iter().map(|line| format!("{}\n", line.to_string().trim_end())).collect()
}

fn lines(previous: Option<&Snapshot>, now: &Snapshot, width: usize) -> Vec<Line<'static>> {
    // A new server process starts its counters again.
    let previous = previous.filter(|previous| previous.pid == now.pid && previous.at_ms < now.at_ms);
    let since = Since { previous, ms: previous.map_or(0, |previous| now.at_ms - previous.at_ms) };
    let when = if previous.is_some() { "" } else { "; traffic since the mount" };
    let head = format!("{}: preset {} on {}{when}", now.mountpoint, now.preset, now.device);
    let mut lines = vec![Line::styled(head, bold())];
    lines.extend(places(&since, now, width));
    lines.push(Line::default());
    lines.extend(moving(&since, now));
    lines.extend(caches(&since, now));
    if let Some(temperature) = &now.temperature {
        lines.push(Line::default());
        lines.extend(ages(&temperature.ages_s, &temperature.memory, &temperature.below, width));
        if !temperature.hottest.is_empty() {
            lines.push(Line::default());
            lines.extend(hottest(&temperature.hottest, width));
        }
    }
    lines
}

/// The changes since another snapshot, or since the mount.
struct Since<'s> {
    previous: Option<&'s Snapshot>,
    ms: u64,
}

impl Since<'_> {
    /// The change per second, or the total without an earlier snapshot.
    fn rate(&self, now: u64, before: impl Fn(&Snapshot) -> Option<u64>) -> u64 {
        match self.previous {
            None => now,
            Some(previous) => {
                let grown = u128::from(now.saturating_sub(before(previous).unwrap_or(0)));
                u64::try_from(grown * 1000 / u128::from(self.ms.max(1))).unwrap_or(u64::MAX)
            }
        }
    }

    fn bytes(&self, now: u64, before: impl Fn(&Snapshot) -> Option<u64>) -> String {
        format!("{}{}", size::print(self.rate(now, before)), self.unit())
    }

    fn unit(&self) -> &'static str {
        if self.previous.is_some() { "/s" } else { "" }
    }

    /// The share of hits among hits and misses: since the last snapshot if there were any, otherwise since the mount.
    fn hits(&self, now: (u64, u64), before: impl Fn(&Snapshot) -> Option<(u64, u64)>) -> String {
        let before = self.previous.and_then(before).unwrap_or_default();
        let lately = (now.0.saturating_sub(before.0), now.1.saturating_sub(before.1));
        let (hits, misses) = if lately == (0, 0) { now } else { lately };
        match hits + misses {
            0 => "- hit".to_owned(),
            all => format!("{:.1} % hit", 100.0 * hits as f64 / all as f64),
        }
    }
}

fn places(since: &Since<'_>, now: &Snapshot, width: usize) -> Vec<Line<'static>> {
    let before = |name: &str, field: fn(&Place) -> Option<u64>| {
        let name = name.to_owned();
        move |snapshot: &Snapshot| snapshot.places.iter().find(|place| place.name == name).and_then(field)
    };
    let cells = |cell: &dyn Fn(&Place) -> String| now.places.iter().map(cell).collect::<Vec<_>>();
    let bytes = |field: fn(&Place) -> Option<u64>| {
        cells(&|place| match field(place) {
            Some(count) => since.bytes(count, before(&place.name, field)),
            None => "-".to_owned(),
        })
    };
    let count = |field: fn(&Place) -> Option<u64>| {
        cells(&|place| match field(place) {
            Some(count) => format!("{}{}", since.rate(count, before(&place.name, field)), since.unit()),
            None => "-".to_owned(),
        })
    };
    let about =
        cells(&|place| if place.state.is_empty() { place.device.clone() } else { place.state.clone() });
    let columns = vec![
        Column::left("place", 0, cells(&|place| place.name.clone())),
        Column::right("use%", 0, cells(&|place| percent(place).to_string())),
        Column::left("", 5, cells(&bar)),
        Column::right("used", 2, cells(&|place| size::print(place.used))),
        Column::right("size", 3, cells(&|place| size::print(place.size))),
        Column::right("read", 1, bytes(|place| place.read)),
        Column::right("written", 1, bytes(|place| place.written)),
        Column::right("reads", 4, count(|place| place.reads)),
        Column::right("writes", 4, count(|place| place.writes)),
        Column::left("device", 6, about),
    ];
    table(columns, width)
}

fn percent(place: &Place) -> u64 {
    (u128::from(place.used) * 100).div_ceil(u128::from(place.size.max(1))).min(100) as u64
}

fn bar(place: &Place) -> String {
    let full = (percent(place) as usize * BAR).div_ceil(100);
    format!("[{}{}]", "#".repeat(full), " ".repeat(BAR - full))
}

fn moving(since: &Since<'_>, now: &Snapshot) -> Vec<Line<'static>> {
    let Some(status) = &now.mover else { return vec![Line::from("mover    no tiers, and nothing to move")] };
    let doing = match &status.doing {
        Some(doing) => mover::moves(doing),
        None => mover::reason(status),
    };
    let rate = |field: fn(&MoverInfo) -> u64| {
        since.bytes(field(status), move |snapshot| snapshot.mover.as_ref().map(field))
    };
    let threshold = match status.anticache {
        Some(anticache) => {
            let (data, limit) = (size::print(status.data), size::print(anticache));
            format!("{data} of data, the least recently used blocks go above {limit}")
        }
        None => format!("blocks move above {:.1} %", status.threshold_percent),
    };
    let waiting = status.waiting;
    let mut lines = vec![
        titled("mover", doing),
        titled(
            "",
            format!("{:.1} % of PM in use, {threshold}; {waiting} waiting for room", status.usage_percent),
        ),
        titled(
            "moved",
            format!(
                "{} for space, {} down for reads, {} up for reads, {} to slower tiers",
                rate(|mover| mover.moved),
                rate(|mover| mover.lowered),
                rate(|mover| mover.raised),
                rate(|mover| mover.descended)
            ),
        ),
    ];
    if status.anticache.is_some() {
        let (out, back) = (rate(|mover| mover.evicted), rate(|mover| mover.promoted));
        let known = output::count(status.listed_blocks, "block", "blocks");
        lines.push(titled("anticache", format!(" {out} evicted, {back} brought up, {known} known")));
    }
    let queue = &status.queue;
    let looking = if queue.looking { ", looking for more" } else { "" };
    let (files, young, accesses) = (queue.files, queue.young, queue.accesses);
    let unheard =
        if status.unheard > 0 { format!(", {} not sampled", status.unheard) } else { String::new() };
    let files = match status.anticache {
        Some(_) => String::new(),
        None => format!("{}, {young} with young blocks, ", output::count(files, "file", "files")),
    };
    lines.push(titled("queue", format!("{files}{accesses} accesses{unheard}{looking}")));
    lines.extend(status.rate.map(|rate| titled("limit", format!("{} in a second", size::print(rate)))));
    lines.extend(status.failure.clone().map(|failure| titled("failed", failure)));
    lines
}

fn caches(since: &Since<'_>, now: &Snapshot) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    if let Some(buffer) = &now.buffer {
        let before =
            |field: fn(&CacheInfo) -> u64| move |snapshot: &Snapshot| snapshot.buffer.as_ref().map(field);
        let rate = |field: fn(&CacheInfo) -> u64| since.bytes(field(buffer), before(field));
        let hits = since.hits((buffer.write_hits, buffer.write_misses), |snapshot| {
            snapshot.buffer.as_ref().map(|buffer| (buffer.write_hits, buffer.write_misses))
        });
        let text = format!(
            "{} of {} in use, {hits}; {} in, {} back, {} past it; {} stalls",
            size::print(buffer.used),
            size::print(buffer.size),
            rate(|buffer| buffer.written_lazily),
            rate(|buffer| buffer.written_back),
            rate(|buffer| buffer.written_eagerly),
            buffer.stalls
        );
        lines.push(titled("buffer", text));
    }
    if let Some(mover) = &now.mover {
        let hits = since.hits((mover.cache_hits, mover.cache_misses), |snapshot| {
            snapshot.mover.as_ref().map(|mover| (mover.cache_hits, mover.cache_misses))
        });
        let (cached, all) = (size::print(mover.cached), size::print(mover.cache_size));
        lines.push(titled("pages", format!("{cached} of {all} with blocks of tiers, {hits}")));
    }
    lines
}

fn ages(limits_s: &[u64], memory: &AgesInfo, below: &AgesInfo, width: usize) -> Vec<Line<'static>> {
    let names = limits_s.iter().map(|limit| format!("under {}", age(limit * 1000)));
    let names: Vec<String> = names.chain(["older".to_owned()]).collect();
    let cells = |from: &[u64], print: &dyn Fn(u64) -> String| {
        (0..names.len()).map(|at| print(from.get(at).copied().unwrap_or(0))).collect::<Vec<_>>()
    };
    let (count, bytes) = (&|files: u64| files.to_string(), &size::print);
    let columns = vec![
        Column::left("temperature", 0, names.clone()),
        Column::right("files written", 1, cells(&memory.files, count)),
        Column::right("size", 3, cells(&memory.bytes, bytes)),
        Column::right("read from tiers", 2, cells(&below.files, count)),
        Column::right("size", 3, cells(&below.bytes, bytes)),
    ];
    table(columns, width)
}

fn hottest(files: &[HotFileInfo], width: usize) -> Vec<Line<'static>> {
    let cells = |cell: &dyn Fn(&HotFileInfo) -> String| files.iter().map(cell).collect::<Vec<_>>();
    let ago = |ms: Option<u64>| ms.map_or_else(|| "-".to_owned(), |ms| format!("{} ago", age(ms)));
    let name = |file: &HotFileInfo| file.name.clone().unwrap_or_else(|| format!("inode {}", file.inode));
    let place = |file: &HotFileInfo| match (&file.on[..], file.below) {
        // Mounts of older versions do not report where.
        ("", true) => "tiers".to_owned(),
        ("", false) => "pm".to_owned(),
        (on, _) => on.to_owned(),
    };
    let columns = vec![
        Column::left("hottest files", 0, cells(&name)),
        Column::right("size", 2, cells(&|file| size::print(file.size))),
        Column::left("on", 1, cells(&place)),
        Column::right("read", 1, cells(&|file| ago(file.read_ago_ms))),
        Column::right("written", 1, cells(&|file| ago(file.written_ago_ms))),
    ];
    table(columns, width)
}

/// A time in its largest unit.
fn age(ms: u64) -> String {
    match ms / 1000 {
        seconds @ 0..60 => format!("{seconds} s"),
        seconds @ 60..3600 => format!("{} min", seconds / 60),
        seconds => format!("{} h", seconds / 3600),
    }
}

/// A column of a table. If not all fit, those of the largest rank are left out first; rank 0 stays.
struct Column {
    head: &'static str,
    rank: u8,
    is_left: bool,
    cells: Vec<String>,
}

impl Column {
    fn left(head: &'static str, rank: u8, cells: Vec<String>) -> Column {
        Column { head, rank, is_left: true, cells }
    }

    fn right(head: &'static str, rank: u8, cells: Vec<String>) -> Column {
        Column { head, rank, is_left: false, cells }
    }

    fn width(&self) -> usize {
        let cells = self.cells.iter().map(|cell| cell.chars().count());
        cells.chain([self.head.chars().count()]).max().unwrap_or(0)
    }

    fn cell(&self, text: &str) -> String {
        let width = self.width();
        if self.is_left { format!("{text:<width$}") } else { format!("{text:>width$}") }
    }
}

/// A table of the columns that fit.
fn table(mut columns: Vec<Column>, width: usize) -> Vec<Line<'static>> {
    while taken(&columns) > width {
        match columns.iter().map(|column| column.rank).max() {
            Some(rank) if rank > 0 => columns.retain(|column| column.rank < rank),
            _ => break,
        }
    }
    let line = |cells: Vec<String>| cells.join(&" ".repeat(GAP));
    let head = line(columns.iter().map(|column| column.cell(column.head)).collect());
    let rows = columns.first().map_or(0, |column| column.cells.len());
    let row =
        |at: usize| Line::from(line(columns.iter().map(|column| column.cell(&column.cells[at])).collect()));
    let mut lines = vec![Line::styled(head, bold())];
    lines.extend((0..rows).map(row));
    lines
}

/// The width of columns in characters. The end of a long last column may be cut.
fn taken(columns: &[Column]) -> usize {
    let width = |(at, column): (usize, &Column)| match at + 1 == columns.len() && column.is_left {
        true => column.width().min(CUT),
        false => column.width() + GAP,
    };
    columns.iter().enumerate().map(width).sum::<usize>()
}

fn titled(title: &str, text: String) -> Line<'static> {
    Line::from(format!("{title:<9}{text}"))
}

fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

fn dim() -> Style {
    Style::new().add_modifier(Modifier::DIM)
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::snapshot::tests::snapshot;
    use super::super::snapshot::{Place, Snapshot};
    use super::{age, draw, text};

    /// What is on a screen of this size.
    fn screen(previous: Option<&Snapshot>, now: &Snapshot, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, previous, now)).unwrap();
        let buffer = terminal.backend().buffer();
        let symbol = |x, y| buffer[(x, y)].symbol().to_owned();
        let row = |y| (0..width).map(|x| symbol(x, y)).collect::<String>().trim_end().to_owned();
        (0..height).map(row).collect()
    }

    /// Two seconds later: a mebibyte was written to memory, and 30 KiB read from tier 1 by six accesses.
    fn later(before: &Snapshot) -> Snapshot {
        let mut now = before.clone();
        now.at_ms += 2000;
        let grow = |place: &mut Place, read: u64, written: u64| {
            place.read = place.read.map(|bytes| bytes + read);
            place.written = place.written.map(|bytes| bytes + written);
        };
        grow(&mut now.places[0], 0, 1 << 20);
        grow(&mut now.places[2], 30 << 10, 0);
        now.places[2].reads = Some(10);
        now.mover.as_mut().unwrap().cache_hits += 100;
        now
    }

    /// A file with most of its blocks on a tier was shown as one on PM.
    #[test]
    fn a_file_is_shown_where_it_has_data() {
        let mut now = snapshot();
        now.temperature.as_mut().unwrap().hottest[0].on = "pm,1".into();
        now.mover.as_mut().unwrap().anticache = Some(1 << 20);
        let shown = text(None, &now);
        let line = shown.lines().find(|line| line.starts_with("inode 12")).unwrap();
        assert!(line.contains(" pm,1 "), "{line}");
        assert!(!shown.contains("with young blocks"), "{shown}");
    }

    #[test]
    fn a_wide_screen_shows_all_with_traffic_in_a_second() {
        let before = snapshot();
        let rows = screen(Some(&before), &later(&before), 120, 40);
        let row = |begin: &str| {
            rows.iter().find(|row| row.starts_with(begin)).unwrap_or_else(|| panic!("{rows:#?}"))
        };
        assert_eq!(rows[0], "/mnt: preset nacre on /dev/pmem0");
        assert!(row("pm").contains("[########  ]") && row("pm").contains("512 KiB/s"), "{rows:#?}");
        assert!(row("tier 1").contains("15 KiB/s") && row("tier 1").contains("3/s"), "{rows:#?}");
        assert!(
            row("tier 1").ends_with("/dev/sdb") && row("tier 3").ends_with("missing: it was taken offline")
        );
        assert!(row("mover").ends_with("inode 17 moves down, because space is short"));
        assert!(row("pages").ends_with("100.0 % hit") && row("buffer").contains("75.0 % hit"), "{rows:#?}");
        assert!(row("under 5 min").contains("8 KiB") && row("older").contains("1 MiB"), "{rows:#?}");
        assert!(row("inode 99").contains("tiers") && row("inode 99").ends_with("2 h ago"), "{rows:#?}");
        assert_eq!(rows[39], "q: quit   space: refresh");
    }

    #[test]
    fn without_one_before_traffic_is_since_the_mount() {
        let now = snapshot();
        let said = text(None, &now);
        assert!(said.starts_with("/mnt: preset nacre on /dev/pmem0; traffic since the mount\n"), "{said}");
        assert!(said.contains("16 KiB") && !said.contains("B/s"), "{said}");
        // So it is when another process serves the mount.
        let mut other = later(&now);
        other.pid = 78;
        assert!(text(Some(&now), &other).contains("since the mount"));
        let mut drains = now.clone();
        drains.mover.as_mut().unwrap().doing = serde_json::from_value(
            serde_json::json!({ "inode": 9, "files": 2, "way": "drained", "tier": 3, "left": 1 << 20 }),
        )
        .unwrap();
        let said = text(None, &drains);
        assert!(said.contains("tier 3 is drained, 1 MiB left: inode 9 moves with 1 other\n"), "{said}");
        let mut waits = now.clone();
        let mover = waits.mover.as_mut().unwrap();
        (mover.phase, mover.doing) = ("outside_hours".to_owned(), None);
        (mover.hours, mover.next_window) = (Some("22:00-06:00".to_owned()), Some("22:00".to_owned()));
        assert!(text(None, &waits).contains("outside its hours, 22:00-06:00, until 22:00\n"));
        let mut evicts = now.clone();
        let mover = evicts.mover.as_mut().unwrap();
        (mover.anticache, mover.data, mover.evicted, mover.listed_blocks) =
            (Some(40 << 20), 3 << 20, 5 << 20, 7);
        let said = text(None, &evicts);
        assert!(said.contains("3 MiB of data, the least recently used blocks go above 40 MiB"), "{said}");
        assert!(said.contains("\nanticache 5 MiB evicted, 0 B brought up, 7 blocks known\n"), "{said}");
        let mut quiet = now.clone();
        (quiet.mover, quiet.temperature, quiet.buffer) = (None, None, None);
        assert!(text(None, &quiet).contains("no tiers, and nothing to move"));
    }

    #[test]
    fn a_small_screen_shows_what_fits() {
        let before = snapshot();
        let now = later(&before);
        let rows = screen(Some(&before), &now, 40, 8);
        assert!(rows[1].starts_with("place") && rows[1].ends_with("written"), "{rows:#?}");
        assert!(!rows[1].contains("device") && rows[2].contains("512 KiB/s"), "{rows:#?}");
        assert_eq!(rows[7], "q: quit   space: refresh");
        let rows = screen(Some(&before), &now, 14, 4);
        assert_eq!(rows[1], "place   use%", "{rows:#?}");
        for (width, height) in [(1, 1), (3, 2), (80, 1), (500, 200)] {
            screen(Some(&before), &now, width, height);
        }
    }

    #[test]
    fn times_are_in_their_largest_unit() {
        let said = [999, 30_000, 300_000, 3_599_999, 7_200_000].map(age);
        assert_eq!(said, ["0 s", "30 s", "5 min", "59 min", "2 h"]);
    }
}
