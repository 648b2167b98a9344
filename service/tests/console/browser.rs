//! A headless Chromium, driven over pipes by the DevTools protocol.

use std::{
    os::fd::OwnedFd,
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::unix::pipe;

use crate::{
    common::{until, within},
    tools,
};

/// One page. The browser is killed when dropped.
pub(crate) struct Browser {
    child: Child,
    to: pipe::Sender,
    from: pipe::Receiver,
    received: Vec<u8>,
    calls: u64,
    session: Option<String>,
    /// What the page's own console and its policy complained of.
    pub(crate) complaints: Vec<String>,
    _profile: TempDir,
}

/// Chromium reads commands from 3 and writes answers to 4.
const PIPES: &str = "exec \"$0\" \"$@\" 3<&0 4>&1 0</dev/null 1>/dev/null 2>/dev/null";

impl Browser {
    /// None where no Chromium is installed, or fails where it must be.
    pub(crate) async fn start() -> Option<Browser> {
        let chromium = tools::find("chromium", "KVATLAS_CHROMIUM")?;
        let profile = TempDir::new().unwrap();
        let mut child = Command::new("sh")
            .args(["-c", PIPES])
            .arg(chromium)
            // Without a sandbox, since tests may run as root; it sees our own pages alone.
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
            .args(["--no-first-run", "--no-proxy-server", "--remote-debugging-pipe"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg("about:blank")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let to = OwnedFd::from(child.stdin.take().unwrap());
        let from = OwnedFd::from(child.stdout.take().unwrap());
        let mut browser = Browser {
            child,
            to: pipe::Sender::from_owned_fd(to).unwrap(),
            from: pipe::Receiver::from_owned_fd(from).unwrap(),
            received: Vec::new(),
            calls: 0,
            session: None,
            complaints: Vec::new(),
            _profile: profile,
        };
        let target = browser
            .call("Target.createTarget", json!({"url": "about:blank"}))
            .await;
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let attached = browser.call("Target.attachToTarget", attach).await;
        browser.session = Some(attached["sessionId"].as_str().unwrap().to_owned());
        for domain in ["Log.enable", "Runtime.enable", "Page.enable"] {
            browser.call(domain, json!({})).await;
        }
        Some(browser)
    }

    pub(crate) async fn open(&mut self, url: &str) {
        self.call("Page.navigate", json!({"url": url})).await;
    }

    /// What an expression of the page comes to.
    pub(crate) async fn value(&mut self, expression: &str) -> Value {
        let ask = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let answer = self.call("Runtime.evaluate", ask).await;
        answer["result"]["value"].clone()
    }

    /// Waits until an expression of the page is true.
    pub(crate) async fn wait_for(&mut self, expression: &str) {
        let browser = tokio::sync::Mutex::new(self);
        until(|| async { browser.lock().await.value(expression).await == true }).await;
    }

    /// How wide the page is seen, and by day or by night.
    pub(crate) async fn look(&mut self, width: u32, scheme: &str) {
        let size = json!({
            "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600
        });
        self.call("Emulation.setDeviceMetricsOverride", size).await;
        let features = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.call("Emulation.setEmulatedMedia", features).await;
    }

    /// Keeps a picture of the whole page below the target folder.
    pub(crate) async fn picture(&mut self, name: &str) {
        let whole = json!({"captureBeyondViewport": true});
        let answer = self.call("Page.captureScreenshot", whole).await;
        let bytes = base64(answer["data"].as_str().unwrap());
        assert!(bytes.starts_with(b"\x89PNG"));
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
        std::fs::write(folder.join(name), bytes).unwrap();
    }

    async fn call(&mut self, method: &str, params: Value) -> Value {
        self.calls += 1;
        let mut message = json!({"id": self.calls, "method": method, "params": params});
        if let Some(session) = &self.session {
            message["sessionId"] = session.as_str().into();
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        within(self.write_all(&bytes)).await;
        loop {
            let message = within(self.message()).await;
            if message["id"] == self.calls {
                assert!(message.get("error").is_none(), "{method}: {message}");
                return message["result"].clone();
            }
            let event = message["method"].as_str().unwrap_or_default();
            if event == "Log.entryAdded" || event == "Runtime.exceptionThrown" {
                self.complaints.push(message["params"].to_string());
            }
        }
    }

    async fn write_all(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            self.to.writable().await.unwrap();
            match self.to.try_write(bytes) {
                Ok(written) => bytes = &bytes[written..],
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => panic!("the browser's pipe: {error}"),
            }
        }
    }

    // The next one; each ends with a zero byte.
    async fn message(&mut self) -> Value {
        let mut searched = 0;
        loop {
            let rest = &self.received[searched..];
            if let Some(end) = rest.iter().position(|byte| *byte == 0) {
                let rest = self.received.split_off(searched + end + 1);
                let message = std::mem::replace(&mut self.received, rest);
                return serde_json::from_slice(&message[..message.len() - 1]).unwrap();
            }
            searched = self.received.len();
            self.from.readable().await.unwrap();
            let mut more = [0; 64 << 10];
            match self.from.try_read(&mut more) {
                Ok(0) => panic!("the browser has ended"),
                Ok(read) => self.received.extend_from_slice(&more[..read]),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => panic!("the browser's pipe: {error}"),
            }
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

// RFC 4648, with padding.
fn base64(text: &str) -> Vec<u8> {
    let value = |letter: u8| -> u32 {
        match letter {
            b'A'..=b'Z' => u32::from(letter - b'A'),
            b'a'..=b'z' => u32::from(letter - b'a') + 26,
            b'0'..=b'9' => u32::from(letter - b'0') + 52,
            b'+' => 62,
            b'/' => 63,
            other => panic!("{other} is not of the alphabet"),
        }
    };
    let letters: Vec<u8> = text.bytes().filter(|byte| *byte != b'=').collect();
    let mut bytes = Vec::new();
    for group in letters.chunks(4) {
        let bits = group
            .iter()
            .fold(0, |bits, letter| bits << 6 | value(*letter));
        let bits = bits << (6 * (4 - group.len()));
        bytes.extend_from_slice(&bits.to_be_bytes()[1..group.len()]);
    }
    bytes
}
