//! A check's report in the words of whoever reads it.

mod human;

pub use human::human;
