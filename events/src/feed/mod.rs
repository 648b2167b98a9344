//! Follows engines: their events come in over sockets, in order and without a gap, into the view.

pub mod track;
