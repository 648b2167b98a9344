//! The live console: its pages over plain HTTP, and in a real browser.

mod browser;
mod pages;
mod watched;
