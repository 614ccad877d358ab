//! How people write times.

use std::time::Duration;

use jiff::SignedDuration;

/// `5s`, `2m`, `1.5h`, `500ms`; a number alone is seconds, as for timeout(1).
///
/// # Errors
/// Where it is no time above 0: how one is written.
pub fn duration(text: &str) -> Result<Duration, String> {
    let parsed = match text.parse::<f64>() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds).ok(),
        Err(_) => text.parse::<SignedDuration>().ok().and_then(|d| Duration::try_from(d).ok()),
    };
    match parsed {
        Some(duration) if !duration.is_zero() => Ok(duration),
        _ => Err("a time is written 5s, 2m, 1h or 500ms".into()),
    }
}
