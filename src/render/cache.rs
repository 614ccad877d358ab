//! How cold a run was, in words.

use crate::record::CacheState;

use super::text::{Clause, escape};
use super::units::counted;

/// `warm (by block input: 1.5 MiB of 411.4 MiB read)`: a label with what it was made of,
/// without what the evidence says of all such labels.
pub(super) fn label(label: Option<&str>, basis: Option<&str>, evidence: Option<&str>) -> String {
    let label = escape(label.unwrap_or("unknown"));
    let evidence = evidence.unwrap_or_default();
    let (evidence, _) = evidence.split_once("; ").unwrap_or((evidence, ""));
    let basis = basis.map(|basis| format!("by {}", escape(basis)));
    let evidence = Some(escape(evidence).into_owned()).filter(|words| !words.is_empty());
    let why: Vec<String> = basis.into_iter().chain(evidence).collect();
    match why.join(": ") {
        why if why.is_empty() => label.into_owned(),
        why => format!("{label} ({why})"),
    }
}

/// The line `cache` of a record.
pub(super) fn cache_line(of: &CacheState) -> Vec<Clause> {
    let said = label(Some(&of.label), of.basis.as_deref(), Some(&of.evidence));
    let mut clauses = vec![Clause::one(said)];
    if let Some((_, rest)) = of.evidence.split_once("; ") {
        clauses.push(Clause::words(rest));
    }
    if let Some(by) = &of.evicted_by {
        let files = of.files_evicted.map(|files| counted(files, "file"));
        let files = files.map_or(String::new(), |files| format!("{files} "));
        clauses.push(Clause::words(&format!("{files}evicted by {by}")));
    }
    if let Some(written) = of.bytecode_written.filter(|&written| written > 0) {
        clauses.push(Clause::one(format!("wrote {} of bytecode", counted(written, "file"))));
    }
    if of.first_since_boot == Some(true) {
        clauses.push(Clause::one("first since boot under bench"));
    }
    clauses
}
