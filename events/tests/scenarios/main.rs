//! Whole scenarios over real sockets: what an engine publishes, and what a prompt then finds.

#[cfg(test)]
mod engine;
#[cfg(test)]
mod list;
#[cfg(test)]
mod payloads;
#[cfg(test)]
mod publisher;
#[cfg(test)]
mod sockets;

#[cfg(test)]
mod scenarios {
    use std::sync::Arc;
    use std::time::Duration;

    use kvatlas_events::event::Adapter;
    use kvatlas_events::feed::{self, Feed, Met, News, Progress, Shared, Source, State};
    use kvatlas_events::view::{Namespace, Prompt, Shape, View, chain, tenant_key};
    use tokio::sync::watch;
    use tokio::task::JoinSet;

    use crate::engine::{Engine, Reply};
    use crate::list::{Act, Query, Replay, Scenario, scenarios};

    const MODEL: Namespace = Namespace(0xfeed);
    const PATIENCE: Duration = Duration::from_secs(30);
    const TABLE: &str = include_str!("../../../docs/kv-event-scenarios.md");

    #[tokio::test]
    async fn every_scenario_gives_the_right_answer() {
        let mut rows = Vec::new();
        let mut wrong = Vec::new();
        for scenario in scenarios() {
            let mut ours = Vec::new();
            for &replay in scenario.replays {
                for reply in [Reply::ThreeFrames, Reply::FourFrames] {
                    ours.push(play(&scenario, replay, reply).await);
                }
            }
            ours.dedup();
            let Scenario {
                number,
                name,
                right,
                ..
            } = scenario;
            if ours != [right] {
                wrong.push(number);
            }
            let ours: Vec<_> = ours.iter().map(u32::to_string).collect();
            let ours = ours.join(" or ");
            rows.push(format!("| {number} | {name} | {right} | {ours} |"));
        }
        println!("{}", rows.join("\n"));
        assert_eq!(rows.len(), 47);
        assert!(wrong.is_empty(), "wrong: {wrong:?}");
        for row in &rows {
            assert!(TABLE.contains(row), "the table lacks {row}");
        }
    }

    /// The tokens that the prompt finds once the feed came to rest.
    async fn play(scenario: &Scenario, replay: Replay, reply: Reply) -> u32 {
        let kept = match replay {
            Replay::None => 100,
            Replay::Kept(kept) => kept,
        };
        let mut engine = Engine::start(kept, reply).await;
        for payload in &scenario.before {
            engine.publish_unheard(payload);
        }
        let (events, port) = engine.ports;
        let mut source = format!("tcp://127.0.0.1:{events},worker=w");
        if let Replay::Kept(_) = replay {
            source += &format!(",replay=tcp://127.0.0.1:{port}");
        }
        let source: Source = source.parse().unwrap();
        let shared = Shared::default();
        let view = Arc::clone(&shared.view);
        let feed = Feed::new(source, MODEL, None, shared, |_: News<'_>| {
            feed::Reply::Heard
        });
        let mut progress = feed.progress();
        let mut tasks = JoinSet::new();
        tasks.spawn(feed.run(std::future::pending()));
        let mut engines = 1;
        for act in &scenario.acts {
            match act {
                Act::Heard(payload) => engine.publish(payload).await,
                Act::Unheard(payload) => engine.publish_unheard(payload),
                Act::Restart => {
                    settle(&mut progress, &engine, engines).await;
                    engine = engine.restart().await;
                    engines += 1;
                }
            }
        }
        settle(&mut progress, &engine, engines).await;
        found(&view, &scenario.query)
    }

    /// Waits until all that was published is applied, or all that anything was heard of.
    async fn settle(progress: &mut watch::Receiver<Progress>, engine: &Engine, engines: u64) {
        let is_settled = |progress: &Progress| {
            let Met {
                malformed_events,
                decode_errors,
                ..
            } = progress.met;
            // What was not understood keeps the state down.
            let is_doubted = malformed_events + decode_errors > 0;
            (progress.state == State::Exact || is_doubted && progress.state == State::Degraded)
                && progress.met.connections == engines
                && progress.applied.map(|(_, last)| last) == engine.latest()
        };
        let settled = progress.wait_for(is_settled);
        let settled = tokio::time::timeout(PATIENCE, settled).await;
        assert!(settled.is_ok_and(|settled| settled.is_ok()), "{progress:?}");
    }

    fn found(view: &View, query: &Query) -> u32 {
        let shape = Shape {
            block_size: query.block_size,
            lookahead: 0,
        };
        let tokens: Vec<u32> = query.tokens.clone().collect();
        let tenant = query.salt.map(tenant_key);
        let prompt = Prompt {
            namespace: MODEL,
            adapter: query.adapter.map(Adapter::Name),
            tenant: tenant.as_deref(),
            items: &[],
            tokens: &tokens,
        };
        let found = view.matches(shape, &chain(&prompt, shape));
        assert!(found.len() <= 1);
        let blocks = found.iter().map(|found| match query.counts_lower {
            true => found.device_blocks + found.lower_blocks,
            false => found.device_blocks,
        });
        blocks.sum::<u32>() * query.block_size
    }
}
