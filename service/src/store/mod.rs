//! Durable state: records in sled, large values in checksummed files.
