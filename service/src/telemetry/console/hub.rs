//! Who watches the console: a bounded number of clients, none of whom is waited for.

use axum::body::Bytes;
use parking_lot::{Condvar, Mutex};
use std::time::Duration;
use tokio::sync::mpsc;

/// Browsers that can watch at a time.
pub const CLIENTS_MAX: usize = 16;
/// Events that wait for a client; one that takes none of them for so long is dropped.
pub const EVENTS_WAITING_MAX: usize = 4;

/// Shared by the HTTP port and the thread that makes the events.
#[derive(Debug, Default)]
pub struct Hub {
    clients: Mutex<Clients>,
    bell: Condvar,
}

#[derive(Debug, Default)]
struct Clients {
    open: Vec<Client>,
    stops: bool,
}

#[derive(Debug)]
struct Client {
    events: mpsc::Sender<Bytes>,
    /// Has seen nothing yet.
    is_new: bool,
}

/// One event as a client that has seen the one before gets it, and as a new one does.
#[derive(Debug)]
pub struct Event {
    pub changed: Bytes,
    pub whole: Bytes,
}

impl Hub {
    /// A place for one more; none where all are taken, or at the end.
    #[must_use]
    pub fn join(&self) -> Option<mpsc::Receiver<Bytes>> {
        let (events, receiver) = mpsc::channel(EVENTS_WAITING_MAX);
        let mut clients = self.clients.lock();
        clients.open.retain(|client| !client.events.is_closed());
        if clients.stops || clients.open.len() >= CLIENTS_MAX {
            return None;
        }
        let is_new = true;
        clients.open.push(Client { events, is_new });
        drop(clients);
        self.bell.notify_all();
        Some(receiver)
    }

    /// Tells everybody; who has gone, or does not keep up, is there no longer.
    pub fn tell(&self, event: &Event) {
        self.clients.lock().open.retain_mut(|client| {
            let Event { changed, whole } = event;
            let news = if client.is_new { whole } else { changed };
            client.is_new = false;
            client.events.try_send(news.clone()).is_ok()
        });
    }

    /// Waits until somebody watches; false at the end.
    #[must_use]
    pub fn wait_for_clients(&self) -> bool {
        let mut clients = self.clients.lock();
        while clients.open.is_empty() && !clients.stops {
            self.bell.wait(&mut clients);
        }
        !clients.stops
    }

    /// Waits for a turn, or until somebody new is there. False when nobody watches any more.
    #[must_use]
    pub fn pause(&self, turn: Duration) -> bool {
        let mut clients = self.clients.lock();
        let is_new = clients.open.iter().any(|client| client.is_new);
        if !clients.stops && !is_new {
            self.bell.wait_for(&mut clients, turn);
        }
        clients.open.retain(|client| !client.events.is_closed());
        !clients.open.is_empty() && !clients.stops
    }

    /// Ends every client's stream, and lets nobody in any more.
    pub fn stop(&self) {
        let mut clients = self.clients.lock();
        clients.stops = true;
        clients.open.clear();
        drop(clients);
        self.bell.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(number: usize) -> Event {
        let number = u8::try_from(number).unwrap();
        Event {
            changed: vec![number].into(),
            whole: vec![number, number].into(),
        }
    }

    #[test]
    fn a_new_client_gets_all_and_then_what_changed() {
        let hub = Hub::default();
        let mut first = hub.join().unwrap();
        hub.tell(&event(1));
        let mut second = hub.join().unwrap();
        hub.tell(&event(2));
        assert_eq!(&first.try_recv().unwrap()[..], [1, 1]);
        assert_eq!(&first.try_recv().unwrap()[..], [2]);
        assert_eq!(&second.try_recv().unwrap()[..], [2, 2]);
    }

    #[test]
    fn a_slow_client_is_dropped_and_its_place_is_free() {
        let hub = Hub::default();
        let mut slow = hub.join().unwrap();
        let mut others: Vec<_> = (1..CLIENTS_MAX).map(|_| hub.join().unwrap()).collect();
        assert!(hub.join().is_none());
        for number in 0..=EVENTS_WAITING_MAX {
            hub.tell(&event(number));
            for other in &mut others {
                other.try_recv().unwrap();
            }
        }
        let seen = std::iter::from_fn(|| slow.try_recv().ok()).count();
        assert_eq!(seen, EVENTS_WAITING_MAX);
        assert!(slow.is_closed());
        assert!(hub.join().is_some());
    }

    #[test]
    fn who_goes_gives_the_place_back_and_the_end_lets_nobody_in() {
        let hub = Hub::default();
        let all: Vec<_> = (0..CLIENTS_MAX).map(|_| hub.join().unwrap()).collect();
        assert!(hub.join().is_none());
        drop(all);
        let last = hub.join().unwrap();
        assert!(hub.pause(Duration::ZERO));
        hub.stop();
        assert!(last.is_closed());
        assert!(hub.join().is_none());
        assert!(!hub.pause(Duration::ZERO) && !hub.wait_for_clients());
    }
}
