//! Logs: one JSON object a line on standard output, or text for a person at a terminal.
//!
//! Owns the format, the level filter and the printing of error chains. Must not decide what is worth a line.

use std::error::Error;

use tracing_subscriber::EnvFilter;

/// How log lines look (`--log-format`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// One JSON object a line: `timestamp`, `level`, `fields`, `target`, `span`, `spans`.
    #[default]
    Json,
    /// Lines for a person at a terminal.
    Text,
}

/// The filter of `RUST_LOG` cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// `RUST_LOG` is no valid filter.
    #[error("RUST_LOG={value:?} is no log filter: allowed is e.g. info, or info,node_ctl=debug")]
    Filter {
        /// What was set.
        value: String,
        /// What is wrong with it.
        #[source]
        source: tracing_subscriber::filter::ParseError,
    },
    /// A subscriber was installed before.
    #[error("logging was already started")]
    Installed(#[source] Box<dyn Error + Send + Sync>),
}

/// The default filter. The one target that is off logs each failed request as an error; whoever made the request says
/// so with its context.
const DEFAULT_FILTER: &str = "info,kube_client::client::builder=off";

/// Starts logging to standard output. `filter` is the value of `RUST_LOG`; absent or empty means `info`.
///
/// # Errors
/// The filter does not parse, or logging was started before.
pub fn init(format: LogFormat, filter: Option<&str>) -> Result<(), TelemetryError> {
    let filter = parse_filter(filter)?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter);
    match format {
        LogFormat::Json => builder.json().try_init(),
        LogFormat::Text => builder.try_init(),
    }
    .map_err(TelemetryError::Installed)
}

fn parse_filter(filter: Option<&str>) -> Result<EnvFilter, TelemetryError> {
    let value = filter.map(str::trim).filter(|value| !value.is_empty()).unwrap_or(DEFAULT_FILTER);
    EnvFilter::try_new(value).map_err(|source| TelemetryError::Filter { value: value.to_owned(), source })
}

/// An error with its causes, outermost first, joined by `: `. A cause whose text the line already holds (an error
/// that prints its source itself) is not said twice.
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let said = error.to_string();
        if !text.contains(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
    use std::sync::{Arc, Mutex};

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Layer {
        text: &'static str,
        #[source]
        source: Option<Box<Layer>>,
    }

    fn layers(texts: &[&'static str]) -> Layer {
        let source = (texts.len() > 1).then(|| Box::new(layers(&texts[1..])));
        Layer { text: texts[0], source }
    }

    #[test]
    fn a_chain_names_every_cause_once() {
        assert_eq!(
            chain(&layers(&["cannot create Pod", "request failed", "refused"])),
            "cannot create Pod: request failed: refused"
        );
        assert_eq!(chain(&layers(&["request failed: refused", "refused"])), "request failed: refused");
    }

    #[test]
    fn an_absent_or_empty_filter_means_info() {
        for filter in [None, Some(""), Some("  ")] {
            let filter = parse_filter(filter).unwrap().to_string();
            assert!(filter.split(',').any(|directive| directive == "info"), "{filter}");
        }
        assert!(parse_filter(Some("info,=,=x")).is_err());
    }

    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_json_line_has_the_documented_shape() {
        let sink = Sink::default();
        let writer = sink.clone();
        let subscriber = tracing_subscriber::fmt().json().with_writer(move || writer.clone()).finish();
        tracing::subscriber::with_default(subscriber, || {
            let span = tracing::info_span!("reconcile", cluster_name = "c");
            let _inside = span.enter();
            tracing::info!(node = "c-1", "creating Pod for node");
        });
        let line = String::from_utf8(sink.0.lock().unwrap().clone()).unwrap();
        let json: serde_json::Value = serde_json::from_str(&line).unwrap();
        let keys: Vec<&str> = json.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(keys, ["fields", "level", "span", "spans", "target", "timestamp"]);
        assert_eq!(json["fields"]["message"], "creating Pod for node");
        assert_eq!(json["fields"]["node"], "c-1");
        assert_eq!(json["span"]["cluster_name"], "c");
    }
}
