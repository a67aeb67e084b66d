//! Compares JSON with a JSON Schema.
//!
//! It knows the keywords of the schemas that `schemars` derives for the tool, and panics at any other.

use serde_json::Value;

/// Asserts that `value` matches `schema`.
#[track_caller]
pub fn assert_matches(schema: &Value, value: &Value) {
    let mismatches = mismatches(schema, value);
    assert!(mismatches.is_empty(), "{mismatches:#?}");
}

/// Returns the places where `value` does not match `schema`, each with the violated rule.
pub fn mismatches(schema: &Value, value: &Value) -> Vec<String> {
    let mut list = Vec::new();
    compare(schema, schema, value, "", &mut list);
    list
}

fn compare(root: &Value, schema: &Value, value: &Value, at: &str, list: &mut Vec<String>) {
    // `true` is a schema that everything matches.
    for (keyword, rule) in schema.as_object().into_iter().flatten() {
        match keyword.as_str() {
            "$ref" => {
                let pointer = rule.as_str().unwrap().strip_prefix('#').unwrap();
                compare(root, root.pointer(pointer).unwrap(), value, at, list);
            }
            "properties" => {
                for (name, rule) in rule.as_object().unwrap() {
                    if let Some(inner) = value.get(name) {
                        compare(root, rule, inner, &format!("{at}/{name}"), list);
                    }
                }
            }
            "additionalProperties" => {
                for (name, inner) in value.as_object().into_iter().flatten() {
                    if schema["properties"].get(name).is_none() {
                        compare(root, rule, inner, &format!("{at}/{name}"), list);
                    }
                }
            }
            "prefixItems" => {
                let items = value.as_array().into_iter().flatten().enumerate();
                for ((index, inner), rule) in items.zip(rule.as_array().unwrap()) {
                    compare(root, rule, inner, &format!("{at}/{index}"), list);
                }
            }
            "items" => {
                let before = schema["prefixItems"].as_array().map_or(0, Vec::len);
                let items = value.as_array().into_iter().flatten().enumerate();
                for (index, inner) in items.skip(before) {
                    compare(root, rule, inner, &format!("{at}/{index}"), list);
                }
            }
            _ if is_met(root, keyword, rule, value) => {}
            _ => list.push(format!("{at}: {value} violates {keyword}: {rule}")),
        }
    }
}

/// Returns whether `value` meets a rule on the value as a whole.
fn is_met(root: &Value, keyword: &str, rule: &Value, value: &Value) -> bool {
    let list = || rule.as_array().unwrap();
    let matching = || {
        let matches = |schema: &&Value| {
            let mut mismatches = Vec::new();
            compare(root, schema, value, "", &mut mismatches);
            mismatches.is_empty()
        };
        list().iter().filter(matches).count()
    };
    let length = value.as_array().map(|items| items.len() as f64);
    let limit = || rule.as_f64().unwrap();
    match keyword {
        "$defs" | "$schema" | "default" | "description" | "format" | "title" => true,
        "type" => match rule {
            Value::Array(names) => names.iter().any(|name| is_of_type(value, name)),
            name => is_of_type(value, name),
        },
        "const" => value == rule,
        "enum" => list().contains(value),
        "anyOf" => matching() > 0,
        "oneOf" => matching() == 1,
        "required" => {
            let has = |name: &Value| value.get(name.as_str().unwrap()).is_some();
            !value.is_object() || list().iter().all(has)
        }
        "minimum" => value.as_f64().is_none_or(|number| number >= limit()),
        "maximum" => value.as_f64().is_none_or(|number| number <= limit()),
        "minItems" => length.is_none_or(|length| length >= limit()),
        "maxItems" => length.is_none_or(|length| length <= limit()),
        _ => panic!("a schema has the keyword `{keyword}`, which this comparison does not know"),
    }
}

fn is_of_type(value: &Value, name: &Value) -> bool {
    match name.as_str().unwrap() {
        "array" => value.is_array(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "null" => value.is_null(),
        "number" => value.is_number(),
        "object" => value.is_object(),
        "string" => value.is_string(),
        name => panic!("a schema has the type `{name}`"),
    }
}
