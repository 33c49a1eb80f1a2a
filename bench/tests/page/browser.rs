//! A headless Chromium, spoken to over two pipes (`--remote-debugging-pipe`): JSON, a zero byte after each message.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

/// How long one answer may take; a loaded machine starts slowly.
const LIMIT: Duration = Duration::from_secs(60);

/// A browser with one tab. It ends with this.
pub(crate) struct Browser {
    child: Child,
    orders: ChildStdin,
    answers: Receiver<Value>,
    number: u64,
    session: Option<String>,
    /// Messages of the page that nobody has asked for: console, exceptions, requests.
    pub(crate) events: Vec<Value>,
    _profile: TempDir,
}

/// Where Chromium is, if it is installed.
pub(crate) fn find() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join("chromium")).find(|path| path.is_file())
}

impl Browser {
    /// Starts it with an empty tab.
    pub(crate) fn start(program: &Path) -> Browser {
        let profile = tempfile::Builder::new().prefix("nacre-test-browser").tempdir().expect("a profile");
        // The protocol is spoken on descriptors 3 and 4: the shell puts our pipes there.
        let mut child = Command::new("sh")
            .args(["-c", "exec \"$0\" \"$@\" 3<&0 4>&1 0</dev/null 1>/dev/null"])
            .arg(program)
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--no-first-run",
            ])
            .args(["--disable-extensions", "--disable-background-networking", "--remote-debugging-pipe"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .env("TMPDIR", profile.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("chromium starts");
        let orders = child.stdin.take().expect("its input");
        let mut output = BufReader::new(child.stdout.take().expect("its output"));
        let (send, answers) = channel();
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            while output.read_until(0, &mut bytes).is_ok_and(|read| read > 0) {
                bytes.pop();
                let message = serde_json::from_slice(&bytes).expect("chromium speaks JSON");
                if send.send(message).is_err() {
                    return;
                }
                bytes.clear();
            }
        });
        let mut browser = Browser {
            child,
            orders,
            answers,
            number: 0,
            session: None,
            events: Vec::new(),
            _profile: profile,
        };
        let tab = browser.call("Target.createTarget", &json!({"url": "about:blank"}));
        let attach = json!({"targetId": tab["targetId"], "flatten": true});
        let session = browser.call("Target.attachToTarget", &attach);
        browser.session = session["sessionId"].as_str().map(str::to_owned);
        for domain in ["Runtime", "Log", "Network", "Page", "Accessibility", "Security"] {
            browser.call(&format!("{domain}.enable"), &json!({}));
        }
        browser
    }

    /// Calls a method of the protocol and returns its result.
    pub(crate) fn call(&mut self, method: &str, parameters: &Value) -> Value {
        self.number += 1;
        let mut order = json!({"id": self.number, "method": method, "params": parameters});
        if let Some(session) = &self.session {
            order["sessionId"] = json!(session);
        }
        let mut bytes = order.to_string().into_bytes();
        bytes.push(0);
        self.orders.write_all(&bytes).expect("chromium listens");
        loop {
            let mut answer = self.next(method);
            if answer["id"] == self.number {
                assert!(answer["error"].is_null(), "{method}: {}", answer["error"]);
                return answer["result"].take();
            }
            self.events.push(answer);
        }
    }

    fn next(&mut self, waiting_for: &str) -> Value {
        self.answers.recv_timeout(LIMIT).unwrap_or_else(|why| panic!("chromium, {waiting_for}: {why}"))
    }

    /// Opens a file and waits until it is loaded.
    pub(crate) fn open(&mut self, path: &Path) {
        let opened = self.call("Page.navigate", &json!({"url": format!("file://{}", path.display())}));
        assert!(opened["errorText"].is_null(), "{opened}");
        while !self.events.iter().any(|event| event["method"] == "Page.loadEventFired") {
            let event = self.next("the page");
            self.events.push(event);
        }
    }

    /// The value of a script's expression.
    pub(crate) fn value(&mut self, script: &str) -> Value {
        let mut found = self.call("Runtime.evaluate", &json!({"expression": script, "returnByValue": true}));
        assert!(found["exceptionDetails"].is_null(), "{script}: {found}");
        found["result"]["value"].take()
    }

    /// How wide the window is, in CSS pixels, and which colours the reader prefers.
    pub(crate) fn show(&mut self, width: u32, colours: &str) {
        let size = json!({"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500});
        self.call("Emulation.setDeviceMetricsOverride", &size);
        let features = json!({"features": [{"name": "prefers-color-scheme", "value": colours}]});
        self.call("Emulation.setEmulatedMedia", &features);
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Asked to close, it waits for its processes; killed, it leaves some that write to the profile while that is removed.
        if self.orders.write_all(b"{\"id\":0,\"method\":\"Browser.close\"}\0").is_ok() {
            while self.answers.recv_timeout(LIMIT).is_ok() {}
        }
        // It may be gone already; nothing can be done about it then.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
