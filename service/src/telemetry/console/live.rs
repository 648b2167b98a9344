//! The thread that makes the console's events: once a second while somebody watches, and never
//! otherwise.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use axum::body::Bytes;

use super::{
    hub::{Event, Hub},
    pulse::Pulse,
    state::{self, State},
};
use crate::{
    report::{
        html,
        picture::Picture,
        summary::{Assumptions, Summary, summarize},
    },
    telemetry::record::Line,
};

const TURN: Duration = Duration::from_secs(1);
/// What the picture is of moves on with the window: it is made anew every so many turns.
const TURNS_OF_PICTURE: u32 = 60;
/// Records that are taken at a time, so that nobody waits for the window for long.
const RECORDS_PER_PAGE: usize = 2_048;

/// Where the thread gets what it shows.
pub struct Feed {
    pub records: Box<TakeRecords>,
    /// None while the server starts.
    pub state: Box<dyn Fn() -> Option<State> + Send>,
    /// Milliseconds since 1970 (UTC).
    pub clock_ms: Box<dyn Fn() -> u64 + Send>,
}

/// Up to so many records from this number on, and the number after the last of them.
pub type TakeRecords = dyn Fn(u64, usize) -> (Vec<Line>, u64) + Send;

impl std::fmt::Debug for Feed {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Feed").finish_non_exhaustive()
    }
}

/// Makes events until the hub stops.
pub fn run(hub: &Hub, feed: &Feed) {
    while hub.wait_for_clients() {
        // Nothing of it is kept while nobody watches.
        let mut live = Live::default();
        loop {
            live.turn(feed);
            hub.tell(&live.event(feed));
            if !hub.pause(TURN) {
                break;
            }
        }
    }
}

#[derive(Default)]
struct Live {
    picture: Picture,
    pulse: Pulse,
    next: u64,
    turns: u32,
    told: HashMap<&'static str, String>,
}

impl Live {
    fn turn(&mut self, feed: &Feed) {
        if self.turns == 0 {
            *self = Live {
                told: std::mem::take(&mut self.told),
                ..Live::default()
            };
        }
        self.turns = (self.turns + 1) % TURNS_OF_PICTURE;
        self.pulse.advance((feed.clock_ms)());
        loop {
            let (lines, next) = (feed.records)(self.next, RECORDS_PER_PAGE);
            self.next = next;
            if lines.is_empty() {
                return;
            }
            for line in &lines {
                self.picture.lines.read += 1;
                self.picture.add_record(line);
                self.pulse.add(line);
            }
        }
    }

    fn event(&mut self, feed: &Feed) -> Event {
        let now_ms = (feed.clock_ms)();
        let sections = self.sections((feed.state)().as_ref());
        let mut changed = Vec::new();
        for (id, html) in sections {
            if self.told.get(id) != Some(&html) {
                self.told.insert(id, html);
                changed.push(id);
            }
        }
        let all: Vec<_> = self.told.keys().copied().collect();
        Event {
            changed: self.frame(now_ms, &changed),
            whole: self.frame(now_ms, &all),
        }
    }

    // One server-sent event. JSON has no line breaks of its own.
    fn frame(&self, now_ms: u64, ids: &[&'static str]) -> Bytes {
        let told = ids.iter().filter_map(|id| Some((*id, self.told.get(id)?)));
        let sections: BTreeMap<_, _> = told.collect();
        let event = serde_json::json!({ "at_ms": now_ms, "sections": sections });
        format!("data: {event}\n\n").into()
    }

    fn sections(&self, state: Option<&State>) -> Vec<(&'static str, String)> {
        let starting = State::default();
        let is_there = state.is_some();
        let state = state.unwrap_or(&starting);
        let server = match is_there {
            true => state::server(state),
            false => "starting".to_owned(),
        };
        let mut sections = vec![
            ("server", server),
            ("now", state::now(state, &self.pulse)),
            ("pulse", state::pulse(&self.pulse)),
            ("holds", state::holds(state)),
            ("workers", state::workers(state)),
            ("priors", state::priors(state)),
        ];
        let source = "the newest records".to_owned();
        let summary = summarize(&self.picture, source, Assumptions::default());
        sections.push(("window", window(&summary)));
        for section in html::SECTIONS {
            sections.push((section.id, (section.render)(&summary)));
        }
        sections
    }
}

// What the picture below is of.
fn window(summary: &Summary) -> String {
    let lines = crate::report::show::grouped(summary.lines);
    html::escape(&format!("{}: {lines} records", html::period(summary)))
}
