//! The columns of the `count` table and its orders, under strace's words.

use super::text::escape;

/// A word that is no column and no order.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnknownWord {
    /// For `-S`.
    #[error(
        "cannot sort by '{}': expected time, calls, errors, min, max, avg, name, nothing, \
         p50, p90, p99, unfinished or restarts", escape(.0)
    )]
    SortKey(String),
    /// For `-U`.
    #[error(
        "no column '{}': expected time-percent, total-time, avg-time, calls, errors, min-time, \
         max-time, p50, p90, p99, unfinished, restarts or name", escape(.0)
    )]
    Column(String),
    /// For `-U`, twice the same.
    #[error("column '{}' is given twice", escape(.0))]
    Repeated(String),
}

/// What the rows are sorted by: largest first, names from a to z.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SortKey {
    /// Wall time inside.
    #[default]
    Time,
    /// Calls.
    Calls,
    /// Calls that returned an error.
    Errors,
    /// Shortest call.
    Min,
    /// Longest call.
    Max,
    /// Mean time of a call.
    Avg,
    /// Median.
    P50,
    /// 90th percentile.
    P90,
    /// 99th percentile.
    P99,
    /// Calls that never returned.
    Unfinished,
    /// Re-issues by the kernel.
    Restarts,
    /// Name.
    Name,
    /// The order of the syscall tables: by ABI and number.
    Nothing,
}

impl SortKey {
    /// The key for one of strace's words for `-S`, or of ours.
    pub fn parse(word: &str) -> Result<Self, UnknownWord> {
        match word.replace('_', "-").as_str() {
            "time" | "time-percent" | "percent" | "time-total" | "total-time" | "seconds" => {
                Ok(Self::Time)
            }
            "nothing" | "none" => Ok(Self::Nothing),
            other => match Column::named(other) {
                Some(Column::Calls) => Ok(Self::Calls),
                Some(Column::Errors) => Ok(Self::Errors),
                Some(Column::Min) => Ok(Self::Min),
                Some(Column::Max) => Ok(Self::Max),
                Some(Column::Avg) => Ok(Self::Avg),
                Some(Column::P50) => Ok(Self::P50),
                Some(Column::P90) => Ok(Self::P90),
                Some(Column::P99) => Ok(Self::P99),
                Some(Column::Unfinished) => Ok(Self::Unfinished),
                Some(Column::Restarts) => Ok(Self::Restarts),
                Some(Column::Name) => Ok(Self::Name),
                Some(Column::Percent | Column::Seconds) | None => {
                    Err(UnknownWord::SortKey(word.to_owned()))
                }
            },
        }
    }
}

/// A column of the `count` table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Column {
    /// Share of the wall time of all calls.
    Percent,
    /// Wall time inside, in seconds.
    Seconds,
    /// Mean time of a call, in microseconds.
    Avg,
    /// Calls.
    Calls,
    /// Calls that returned an error.
    Errors,
    /// Shortest call, in microseconds.
    Min,
    /// Median, in microseconds.
    P50,
    /// 90th percentile, in microseconds.
    P90,
    /// 99th percentile, in microseconds.
    P99,
    /// Longest call, in microseconds.
    Max,
    /// Calls that never returned.
    Unfinished,
    /// Re-issues by the kernel.
    Restarts,
    /// Name of the syscall.
    Name,
}

impl Column {
    /// What is shown when nothing else is asked for.
    pub const DEFAULT: [Self; 8] = [
        Self::Percent,
        Self::Seconds,
        Self::Avg,
        Self::Calls,
        Self::Errors,
        Self::P99,
        Self::Max,
        Self::Name,
    ];

    /// The columns of a comma-separated list of strace's words for `-U`, or of
    /// ours. The name is added at the end when it is not among them.
    pub fn parse_list(list: &str) -> Result<Vec<Self>, UnknownWord> {
        let mut columns = Vec::new();
        for word in list.split(',') {
            let column = Self::named(&word.replace('_', "-"))
                .ok_or_else(|| UnknownWord::Column(word.to_owned()))?;
            if columns.contains(&column) {
                return Err(UnknownWord::Repeated(word.to_owned()));
            }
            columns.push(column);
        }
        if !columns.contains(&Self::Name) {
            columns.push(Self::Name);
        }
        Ok(columns)
    }

    fn named(word: &str) -> Option<Self> {
        Some(match word {
            "time" | "time-percent" | "percent" => Self::Percent,
            "total-time" | "time-total" | "seconds" => Self::Seconds,
            "avg-time" | "time-avg" | "avg" => Self::Avg,
            "calls" | "count" => Self::Calls,
            "errors" | "error" => Self::Errors,
            "min-time" | "time-min" | "shortest" | "min" => Self::Min,
            "max-time" | "time-max" | "longest" | "max" => Self::Max,
            "p50" => Self::P50,
            "p90" => Self::P90,
            "p99" => Self::P99,
            "unfinished" => Self::Unfinished,
            "restarts" => Self::Restarts,
            "name" | "syscall" | "syscall-name" => Self::Name,
            _ => return None,
        })
    }

    /// What stands above the column.
    pub fn title(self) -> &'static str {
        match self {
            Self::Percent => "% time",
            Self::Seconds => "seconds",
            Self::Avg => "usecs/call",
            Self::Calls => "calls",
            Self::Errors => "errors",
            Self::Min => "min us",
            Self::P50 => "p50 us",
            Self::P90 => "p90 us",
            Self::P99 => "p99 us",
            Self::Max => "max us",
            Self::Unfinished => "unfinished",
            Self::Restarts => "restarts",
            Self::Name => "syscall",
        }
    }

    /// Its width when nothing in it is wider.
    pub(super) fn usual_width(self) -> usize {
        match self {
            Self::Percent | Self::Errors => 6,
            Self::Seconds => 9,
            Self::Avg | Self::Unfinished => 10,
            Self::Calls => 7,
            Self::Min | Self::P50 | Self::P90 | Self::P99 | Self::Max | Self::Restarts => 8,
            Self::Name => 17,
        }
    }
}
