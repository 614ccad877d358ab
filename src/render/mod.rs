//! A record as text: the `count` table, its lines below, the views of `files`,
//! and `show`.
//!
//! Everything here is a function from a record to a string (the views of
//! `files` write row by row instead, there may be a million); where it goes,
//! and how wide the terminal is, is the caller's business. Three rules hold
//! for all of it: no line is wider than asked (from some 45 columns on, and
//! unless columns were asked for that do not fit), no cell of a table is
//! blank, and nothing out of a record reaches a terminal unescaped.

mod bench;
mod cache;
pub mod check;
mod columns;
mod cpu;
mod environment;
mod files;
mod footer;
mod grid;
mod imports;
mod network;
mod regions;
mod show;
mod table;
mod text;
mod times;
mod tree;
mod units;

#[cfg(test)]
pub(crate) mod tests;

pub use bench::{bench, bench_csv, bench_markdown};
pub use columns::{Column, SortKey, UnknownWord};
pub use cpu::cpu;
pub use environment::environment;
pub use files::{
    FileSort, FileSource, Selection, UnknownFileSort, files, files_csv, files_json, files_null,
    files_search, files_tree, mapped,
};
pub use footer::footer;
pub use imports::{imports, slowest_imports};
pub use network::network;
pub use regions::regions;
pub use show::{processes, show, summary};
pub use table::{TableOptions, count, groups, native_abi, table};
pub use text::{command_line, display_width, escape, quote, shorten_middle};
pub use times::{memory, times};
pub use units::{bytes, counted, time};

/// The width to use where there is no terminal.
pub const DEFAULT_WIDTH: usize = 80;
