//! Starts what finds donors by vectors: threads that make them, and threads that search them.

use std::{sync::Arc, thread::JoinHandle};

use super::AppError;
use crate::{
    config::ServeArgs,
    donors::{
        catalog::Catalog,
        neighbours::indexer,
        text::{Embedder, TextModel},
        texts::DonorTexts,
        vectors::{Embeddings, Sketches},
    },
    rpc::{clock::Clock, near::NearParts},
    supervise::{Supervisor, Workers},
};

/// Look-ups among vectors at a time, and how many may wait.
const NEAR_THREADS: usize = 1;
const NEAR_QUEUE_DEPTH_MAX: usize = 256;

/// The parts that handlers need, and the threads, which end when bells and the embedder say so.
pub(super) fn start(
    args: &ServeArgs,
    supervisor: &Supervisor,
    clock: Clock,
    catalog: &Arc<Catalog>,
    texts: DonorTexts,
) -> Result<(NearParts, Vec<JoinHandle<()>>), AppError> {
    let mut threads = Vec::new();
    if args.sketches {
        let source = Sketches(Arc::clone(catalog));
        let work = move || indexer::run(&source, &source.0.sketch_bell);
        threads.push(supervisor.background("sketcher", work));
    }
    let embedder = match args.text.model()? {
        None => None,
        Some(files) => {
            let model = TextModel::open(&files)?;
            let depth = args.text.embedding_queue_depth_max as usize;
            let (embedder, worker) = Embedder::new(model, depth, move || clock.now_ns());
            threads.push(supervisor.thread("embedder", move || worker.run()));
            let embedder = Arc::new(embedder);
            let source = Embeddings {
                catalog: Arc::clone(catalog),
                texts: texts.clone(),
                embedder: Arc::clone(&embedder),
                segments_max: args.text.donor_text_segments_max,
            };
            let work = move || indexer::run(&source, &source.catalog.embedding_bell);
            threads.push(supervisor.background("text-indexer", work));
            Some(embedder)
        }
    };
    let searchers = Workers::start(
        supervisor,
        "near-lookup",
        NEAR_THREADS,
        NEAR_QUEUE_DEPTH_MAX,
    );
    let parts = NearParts {
        threads: searchers.map_err(AppError::Thread)?,
        by_sketch: args.sketches,
        texts: args.text.enabled.then_some(texts),
        embedder,
        query_segments_max: args.text.query_text_segments_max as usize,
    };
    let threads: Result<_, _> = threads.into_iter().collect();
    Ok((parts, threads.map_err(AppError::Thread)?))
}
