// SPDX-License-Identifier: GPL-2.0
//! Judges JSON by a schema, as far as the schema of `--json` goes; a keyword that is not known here
//! is an error. A crate for all of JSON Schema brings sixty others, a minute of building for what
//! these lines do.

use serde_json::Value;

/// Returns how `document` violates `schema`, whose references lie in `root`.
pub fn judge(root: &Value, schema: &Value, document: &Value) -> Result<(), String> {
    for (keyword, wanted) in schema.as_object().ok_or("a schema that is no object")? {
        match keyword.as_str() {
            "$schema" | "title" | "description" | "definitions" | "format" => Ok(()),
            "$ref" => {
                let path = wanted.as_str().and_then(|path| path.strip_prefix('#')).ok_or("a foreign $ref")?;
                judge(root, root.pointer(path).ok_or(format!("no {path}"))?, document)
            }
            "type" => expect(any(wanted).any(|kind| is(kind, document)), wanted, document),
            "enum" => expect(any(wanted).any(|value| value == document), wanted, document),
            "minimum" => expect(document.as_f64().is_none_or(|n| Some(n) >= wanted.as_f64()), wanted, document),
            "allOf" => any(wanted).try_for_each(|part| judge(root, part, document)),
            // That more than one of "anyOf" fit would be allowed, but these are all apart.
            "anyOf" | "oneOf" => {
                let judged: Vec<_> = any(wanted).map(|part| judge(root, part, document)).collect();
                match judged.iter().filter(|judged| judged.is_ok()).count() {
                    1 => Ok(()),
                    0 => Err(format!("none of {keyword}: {judged:?}")),
                    n => Err(format!("{n} of {keyword} fit {document}")),
                }
            }
            "required" => any(wanted).filter_map(Value::as_str).try_for_each(|key| match document.get(key) {
                Some(_) => Ok(()),
                None => Err(format!("no {key} in {document}")),
            }),
            "properties" => {
                let mut parts = wanted.as_object().into_iter().flatten();
                parts.try_for_each(|(key, part)| match document.get(key) {
                    Some(value) => judge(root, part, value).map_err(|error| format!("{key}: {error}")),
                    None => Ok(()),
                })
            }
            // Only of maps, which have no properties of their own.
            "additionalProperties" if schema.get("properties").is_none() => {
                let mut values = document.as_object().into_iter().flatten();
                values.try_for_each(|(_, value)| judge(root, wanted, value))
            }
            "items" => document.as_array().into_iter().flatten().try_for_each(|item| judge(root, wanted, item)),
            other => Err(format!("keyword {other} of the schema is not known to this test")),
        }?;
    }
    Ok(())
}

/// Returns the items of a list, or the value itself if it is no list.
fn any(value: &Value) -> impl Iterator<Item = &Value> {
    let list = value.as_array();
    list.into_iter().flatten().chain(list.is_none().then_some(value))
}

fn is(kind: &Value, document: &Value) -> bool {
    match kind.as_str() {
        Some("null") => document.is_null(),
        Some("boolean") => document.is_boolean(),
        Some("string") => document.is_string(),
        Some("integer") => document.is_i64() || document.is_u64(),
        Some("number") => document.is_number(),
        Some("array") => document.is_array(),
        Some("object") => document.is_object(),
        _ => false,
    }
}

fn expect(fits: bool, wanted: &Value, document: &Value) -> Result<(), String> {
    match fits {
        true => Ok(()),
        false => Err(format!("{document}, wanted {wanted}")),
    }
}
