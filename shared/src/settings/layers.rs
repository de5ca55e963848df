//! Reads the layers into single entries, each with the name of the place that it came from.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use figment::value::{Dict, Map, Value};
use figment::{Metadata, Profile, Provider};

use super::{Settings, SettingsError, Sources};

/// Environment variables and their settings. Only what differs per container or is tuned by hand has a name here.
const ENVIRONMENT: [(&str, &str); 4] = [
    ("DEFAULT_ZONE_SPREAD", "defaultZoneSpread"),
    ("ACL_TICK", "aclTick"),
    ("TLS_TICK", "tlsTick"),
    ("LISTEN_ADDRESS", "listenAddress"),
];

/// One key of one layer: its own provider, so that an error can name the exact place.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    key: String,
    value: Value,
    from: String,
}

impl Provider for Entry {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.from.clone())
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        Ok(Map::from([(Profile::Default, Dict::from([(self.key.clone(), self.value.clone())]))]))
    }
}

/// All entries, later ones win.
pub(super) fn read(
    sources: &Sources,
    env: impl IntoIterator<Item = (String, String)>,
) -> Result<Vec<Entry>, SettingsError> {
    let mut entries = directory(&sources.directory)?;
    if let Some(path) = &sources.file {
        entries.extend(file(path)?);
    }
    entries.extend(environment(env));
    Ok(entries)
}

/// One file a key, as the kubelet mounts a ConfigMap. Its own entries (`..data`, `..2026_…`) are skipped.
fn directory(path: &Path) -> Result<Vec<Entry>, SettingsError> {
    let failed = |path: &Path, source| SettingsError::Read { path: path.to_owned(), source };
    let listing = match fs::read_dir(path) {
        Ok(listing) => listing,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(path, error)),
    };
    let mut files = BTreeMap::new();
    for item in listing {
        let item = item.map_err(|error| failed(path, error))?;
        let key = item.file_name().to_string_lossy().into_owned();
        if !key.starts_with("..") {
            files.insert(key, item.path());
        }
    }
    let read = |(key, file): (String, std::path::PathBuf)| {
        let text = fs::read_to_string(&file).map_err(|error| failed(&file, error))?;
        Ok(Entry { key, value: Value::from(text.trim()), from: format!("from file {}", file.display()) })
    };
    files.into_iter().map(read).collect()
}

/// A YAML map with the same keys.
fn file(path: &Path) -> Result<Vec<Entry>, SettingsError> {
    let text =
        fs::read_to_string(path).map_err(|source| SettingsError::Read { path: path.to_owned(), source })?;
    let map: Option<BTreeMap<String, Value>> = serde_saphyr::from_str(&text).map_err(|error| {
        let problem = error.to_string();
        let problem = problem.lines().next().unwrap_or_default().to_owned();
        SettingsError::Yaml { path: path.to_owned(), problem }
    })?;
    let from = format!("from file {}", path.display());
    let entry = |(key, value)| Entry { key, value, from: from.clone() };
    Ok(map.unwrap_or_default().into_iter().map(entry).collect())
}

fn environment(env: impl IntoIterator<Item = (String, String)>) -> Vec<Entry> {
    let setting = |name: &str| ENVIRONMENT.iter().find(|(variable, _)| *variable == name);
    env.into_iter()
        .filter_map(|(name, value)| {
            let (variable, key) = setting(&name)?;
            let from = format!("from environment variable {variable}");
            Some(Entry { key: (*key).to_owned(), value: Value::from(value.trim()), from })
        })
        .collect()
}

/// A value as written, quoted where it is text.
pub(super) fn show(value: &Value) -> String {
    match value {
        Value::String(_, text) => format!("{text:?}"),
        Value::Num(_, number) => number
            .to_u128()
            .map(|number| number.to_string())
            .or_else(|| number.to_i128().map(|number| number.to_string()))
            .or_else(|| number.to_f64().map(|number| number.to_string()))
            .unwrap_or_else(|| "a number".to_owned()),
        Value::Bool(_, yes) => yes.to_string(),
        Value::Empty(..) => "nothing".to_owned(),
        _ => "a list or map".to_owned(),
    }
}

impl Settings {
    /// The effective settings as one line of JSON, for the start line.
    pub fn to_line(&self) -> String {
        serde_json::to_string(self).unwrap_or_else(|error| format!("unprintable: {error}"))
    }
}
