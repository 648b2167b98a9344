//! Encoders against transformers, and folders that are no models.
