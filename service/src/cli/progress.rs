//! How far an upload is, shown on the standard error where that is a terminal, and nowhere else.

use std::io::Read;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressFinish, ProgressStyle};

const BYTES: &str = "{msg} [{wide_bar}] {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left";
const NUMBER: &str = "{msg} [{wide_bar}] {pos} of {len}, {eta} left";

/// A file that shows how much of it has been read. The bar goes when the file is dropped.
pub(super) fn watched<R: Read>(name: &str, bytes: u64, file: R) -> impl Read + use<R> {
    bar(BYTES, name, bytes).wrap_read(file)
}

/// A bar over a number of things. It goes when it is dropped.
pub(super) fn counted(name: &str, number: usize) -> ProgressBar {
    bar(NUMBER, name, number as u64)
}

fn bar(template: &'static str, name: &str, length: u64) -> ProgressBar {
    let style = ProgressStyle::with_template(template).expect("the templates are part of the code");
    // Hidden unless the standard error is a terminal.
    ProgressBar::with_draw_target(Some(length), ProgressDrawTarget::stderr())
        .with_style(style.progress_chars("=> "))
        .with_message(name.to_owned())
        .with_finish(ProgressFinish::AndClear)
}
