//! What callers of the embedder see, with a model that they hold back.
