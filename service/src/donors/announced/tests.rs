//! Announced donors against a slow twin.
