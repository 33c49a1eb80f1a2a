//! The page of a report in a real browser: nothing goes wrong in it, every chart is there and says in words what it shows,
//! dark colours are dark, and on a phone nothing is wider than the screen. Without Chromium, what can be said of the page
//! as text is still tested.

mod browser;

use std::io::Write;
use std::path::Path;

use nacre_bench::report::merge::{Document, Named};
use nacre_bench::report::schema::{Report, Verdict};
use nacre_bench::report::{html, sample};
use serde_json::Value;

use browser::Browser;

fn document(reports: &[(&str, Report)]) -> Document {
    let named =
        reports.iter().map(|(name, report)| Named { name: (*name).to_owned(), report: report.clone() });
    Document::new(named.collect())
}

fn page() -> String {
    html::page(&document(&[("sample", sample::report())]))
}

/// Bars, a sweep, time; claims of ratios and of values; latencies of two operations at each of eleven places.
const CHARTS: usize = 3 + 2 + 2 * (4 + 6 + 1);

#[test]
fn the_page_needs_nothing_else_and_escapes_what_it_shows() {
    let page = page();
    assert!(page.contains("A &#60;Processor&#62; &#38; Co"), "text is escaped");
    assert!(!page.contains("<b>not</b>") && !page.contains("<nilfs2>"), "text is escaped");
    for what in ["http:", "https:", "//", "<script", "<img", "<iframe", "@import", "url(http"] {
        assert!(!page.contains(what), "{what} in the page");
    }
    let report = sample::report();
    for experiment in &report.experiments {
        assert!(page.contains(&experiment.command), "{} can be repeated", experiment.name);
    }
    let words = ["Linux 6.18.0", "interrupted", "peer:nilfs2", "served through FUSE", "at least 100.0k op/s"];
    for what in words.into_iter().chain([report.commit.as_str(), "preset:hinfs is not &#60;built&#62; yet"]) {
        assert!(page.contains(what), "{what} is not in the page");
    }
    for verdict in [Verdict::Holds, Verdict::Missed, Verdict::Better, Verdict::Beside, Verdict::Waits] {
        let claims = report.experiments.iter().flat_map(|experiment| &experiment.claims);
        assert!(claims.clone().any(|claim| claim.verdict() == verdict), "the sample has {verdict:?}");
    }
}

#[test]
fn reports_side_by_side_share_their_charts() {
    let mut later = sample::report();
    later.experiments.remove(2);
    later.complete = true;
    let document = document(&[("before", sample::report()), ("after", later)]);
    let names: Vec<&str> = document.experiments.iter().map(|made| made.name.as_str()).collect();
    assert_eq!(names, ["filebench", "micro.write", "postmark"]);
    let targets: Vec<&str> =
        document.experiments[0].series.iter().map(|series| series.target.as_str()).collect();
    assert_eq!(targets[..3], ["preset:nova · before", "preset:nova · after", "mount:nova · before"]);
    let page = html::page(&document);
    assert!(page.contains("preset:nova · after") && page.contains("peer:nilfs2 · before"));
    assert_eq!(page.matches("class=\"warning\"").count(), 1, "only one was interrupted");
}

#[test]
fn an_empty_report_is_a_page_too() {
    let mut report = sample::report();
    report.experiments.clear();
    assert!(html::page(&document(&[("empty", report.clone())])).contains("peer:nilfs2"));
    report = sample::report();
    for series in report.experiments.iter_mut().flat_map(|experiment| &mut experiment.series) {
        series.points.clear();
    }
    let mut none = report.clone();
    none.experiments.iter_mut().for_each(|experiment| experiment.series.clear());
    none.options.scale = f64::NAN;
    for report in [report, none] {
        let page = html::page(&document(&[("no points", report)]));
        for none in ["NaN", ">inf", "\"inf", " inf"] {
            assert!(!page.contains(none), "numbers that are none stay out of charts");
        }
    }
}

#[test]
fn a_browser_shows_it() {
    let Some(program) = browser::find() else {
        // A test that is left out still passes; if standard error is gone, nobody can be told.
        let _ = writeln!(std::io::stderr(), "left out: the page in a browser (chromium is not installed)");
        return;
    };
    let dir = tempfile::Builder::new().prefix("nacre-test-page").tempdir().expect("a directory");
    let path = dir.path().join("report.html");
    std::fs::write(&path, page()).expect("the page");
    let mut browser = Browser::start(&program);
    browser.show(1280, "light");
    browser.open(&path);

    assert_eq!(browser.value(VISIBLE), CHARTS, "one chart of each pair is shown");
    assert_eq!(browser.value(WITHOUT_WORDS), Value::from(Vec::<String>::new()), "each chart has its words");
    assert_eq!(browser.value(WITHOUT_TABLE), 0, "each chart has a table");
    images_have_names(&mut browser);
    let light = browser.value(BRIGHTNESS).as_array().cloned().expect("paper and ink");
    let colour_in_light = browser.value(BAR_COLOUR);
    browser.show(1280, "dark");
    let number = |value: &Value| value.as_f64().expect("a number");
    assert!(number(&light[0]) > 230.0 && number(&light[1]) < 60.0, "light: {light:?}");
    assert!(is_dark(&mut browser));
    assert_ne!(browser.value(BAR_COLOUR), colour_in_light, "bars have other colours in the dark");
    for width in [360, 768, 1280] {
        browser.show(width, "light");
        assert_eq!(browser.value(TOO_WIDE), Value::from(Vec::<String>::new()), "at {width}");
        assert_eq!(browser.value(VISIBLE), CHARTS, "at {width}");
    }
    browser.show(360, "light");
    assert!(number(&browser.value(SMALLEST_TEXT)) >= 10.0, "text of charts can be read on a phone");
    assert_eq!(what_went_wrong(&browser, &path), Vec::<String>::new());
}

/// Charts that take room, those in closed details counted as open.
const VISIBLE: &str = "document.querySelectorAll('details').forEach(it => it.open = true);
    [...document.querySelectorAll('svg[role=img]')].filter(it => it.getBoundingClientRect().height > 50).length";

/// Charts without a title and a description that the browser finds.
const WITHOUT_WORDS: &str = "[...document.querySelectorAll('svg[role=img]')].filter(it =>
    ['aria-labelledby', 'aria-describedby'].some(name =>
        (document.getElementById(it.getAttribute(name))?.textContent ?? '').length < 10)).map(it => it.outerHTML)";

/// Figures that no table follows.
const WITHOUT_TABLE: &str = "[...document.querySelectorAll('figure')].filter(it =>
    !(it.nextElementSibling?.querySelector('tbody tr'))).length";

/// How bright paper and ink are, from 0 to 255.
const BRIGHTNESS: &str = "(() => { const style = getComputedStyle(document.body);
    return [style.backgroundColor, style.color].map(it =>
        it.match(/[0-9]+/g).slice(0, 3).reduce((sum, part) => sum + Number(part), 0) / 3); })()";

const BAR_COLOUR: &str = "getComputedStyle(document.querySelector('.bar')).fill";

/// What reaches past the window and does not scroll within itself.
const TOO_WIDE: &str = "(() => { const width = document.documentElement.clientWidth;
    const inside = it => it.closest('.scroll, .command');
    const out = it => it.right > width + 1 || it.left < -1;
    const wide = [...document.querySelectorAll('body *')].filter(it =>
        out(it.getBoundingClientRect()) && !inside(it));
    return document.documentElement.scrollWidth > width ? ['the page', ...wide.map(it => it.outerHTML)]
        : wide.map(it => it.outerHTML); })()";

/// The smallest text of the charts that are shown, in CSS pixels of the screen.
const SMALLEST_TEXT: &str = "Math.min(...[...document.querySelectorAll('svg.narrow text')].map(it =>
    parseFloat(getComputedStyle(it).fontSize) * it.getScreenCTM().a))";

/// What a reader of the page aloud is told.
fn images_have_names(browser: &mut Browser) {
    let tree = browser.call("Accessibility.getFullAXTree", &serde_json::json!({}));
    let nodes = tree["nodes"].as_array().expect("a tree");
    let images: Vec<&Value> = nodes
        .iter()
        .filter(|node| node["ignored"] == false)
        .filter(|node| matches!(node["role"]["value"].as_str(), Some("image" | "img")))
        .collect();
    assert_eq!(images.len(), CHARTS, "images for who cannot see them");
    for image in images {
        let words = |what: &str| image[what]["value"].as_str().unwrap_or_default().len();
        assert!(words("name") > 10 && words("description") > 10, "{image}");
    }
}

/// Errors and warnings of the console, exceptions, and whatever was asked for but the page itself.
fn what_went_wrong(browser: &Browser, path: &Path) -> Vec<String> {
    let mut requests = 0;
    let mut wrong = Vec::new();
    for event in &browser.events {
        match event["method"].as_str().unwrap_or_default() {
            "Runtime.consoleAPICalled" | "Runtime.exceptionThrown" | "Log.entryAdded" => {
                wrong.push(event.to_string());
            }
            "Network.requestWillBeSent" => {
                let url = event["params"]["request"]["url"].as_str().unwrap_or_default();
                if url != format!("file://{}", path.display()) && url != "data:," {
                    wrong.push(format!("it asks for {url}"));
                }
                requests += 1;
            }
            _ => {}
        }
    }
    assert!(requests > 0, "requests are seen");
    wrong
}

/// The control: what the test above looks for is seen where it is.
#[test]
fn a_browser_sees_what_is_wrong() {
    let Some(program) = browser::find() else { return };
    let dir = tempfile::Builder::new().prefix("nacre-test-page").tempdir().expect("a directory");
    let path = dir.path().join("wrong.html");
    let wrong = "<!doctype html><title>wrong</title><img src='file:///nowhere.png'>\
                 <script>console.error('wrong'); throw new Error('thrown')</script>";
    std::fs::write(&path, wrong).expect("the page");
    let mut browser = Browser::start(&program);
    browser.open(&path);
    let found = what_went_wrong(&browser, &path).join("\n");
    for what in ["consoleAPICalled", "exceptionThrown", "it asks for file:///nowhere.png"] {
        assert!(found.contains(what), "{what} is not in {found}");
    }
}

/// Whether paper is dark and ink is bright.
fn is_dark(browser: &mut Browser) -> bool {
    let found = browser.value(BRIGHTNESS);
    let brightness = |at: usize| found[at].as_f64().expect("paper and ink are numbers");
    brightness(0) < 40.0 && brightness(1) > 200.0
}
