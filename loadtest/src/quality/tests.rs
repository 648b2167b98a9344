//! The judge of `quality` catches planted wrong answers; what is asked depends on the seed alone.
