//! Corrections to generated schemas that attributes cannot express. Knows nothing of single resources.

use schemars::Schema;
use schemars::transform::{Transform as _, transform_subschemas};
use serde_json::Value;

/// A Kubernetes quantity above zero, as a pattern (CEL knows quantities from 1.29 only): a sign, digits with a point
/// of which one is not zero, and a binary, decimal or exponent suffix.
pub(super) const QUANTITY: &str = concat!(
    r"^\+?(0*[1-9][0-9]*(\.[0-9]*)?|0*\.0*[1-9][0-9]*)",
    r"([KMGTPE]i|[numkMGTPE]|[eE][-+]?[0-9]{1,2})?$"
);

/// Makes a generated schema say what the API means; put on every struct with `#[schemars(transform = …)]`.
///
/// * An optional field may be absent but not `null`: the server then prunes a `null`, and `has()` in CEL rules has one
///   meaning only.
/// * A line break within a paragraph of a doc comment is a space: `kubectl explain` wraps text itself.
/// * Formats that Kubernetes does not know (`uint16` and the like) go, since servers from 1.34 warn about them.
pub(super) fn strict(schema: &mut Schema) {
    let Some(object) = schema.as_object_mut() else { return };
    if let Some(Value::Array(types)) = object.get_mut("type") {
        types.retain(|kind| kind != "null");
        if let [only] = types.as_slice() {
            let only = only.clone();
            object.insert("type".to_owned(), only);
        }
    }
    if let Some(Value::Array(mut branches)) = object.remove("anyOf") {
        branches.retain(|branch| branch.get("type").is_none_or(|kind| kind != "null"));
        match (branches.pop(), branches.is_empty()) {
            (Some(Value::Object(only)), true) => {
                // The description of the field wins over that of its type.
                for (key, value) in only {
                    object.entry(key).or_insert(value);
                }
            }
            (Some(last), _) => {
                branches.push(last);
                object.insert("anyOf".to_owned(), Value::Array(branches));
            }
            (None, _) => {}
        }
    }
    if let Some(Value::String(text)) = object.get_mut("description") {
        *text =
            text.split("\n\n").map(|paragraph| paragraph.replace('\n', " ")).collect::<Vec<_>>().join("\n\n");
    }
    if object.get("format").and_then(Value::as_str).is_some_and(|format| format.starts_with("uint")) {
        object.remove("format");
    }
    transform_subschemas(&mut strict, schema);
}

/// Removes CEL rules at every depth: for a copy of something that was validated where it came from.
pub(super) fn without_rules(schema: &mut Schema) {
    schema.remove("x-kubernetes-validations");
    let mut recurse = without_rules;
    transform_subschemas(&mut recurse, schema);
}

/// The schema of `T` with neither CEL rules nor `null`, for a stored copy of a `T`.
pub(super) fn snapshot_of<T: schemars::JsonSchema>(generator: &mut schemars::SchemaGenerator) -> Schema {
    let mut schema = T::json_schema(generator);
    let mut rewrite = without_rules;
    rewrite.transform(&mut schema);
    schema
}
