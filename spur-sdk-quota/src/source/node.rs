//! A TOML or YAML text as one kind of tree, with a line for each value.

use std::collections::BTreeMap;

use spur_sdk::Limit;

/// How deep lists and tables may nest; ours need four levels.
const MAX_DEPTH: usize = 16;

/// A value and the line that it begins on.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Node {
    pub(crate) line: u32,
    pub(crate) value: Value,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    /// Nothing: YAML's `null`.
    Null,
    /// A quoted text.
    Text(String),
    /// A number or boolean of TOML, as it stands there.
    Literal(String),
    /// A YAML scalar without quotes, which is a text or a number as the field wants it.
    Plain(String),
    List(Vec<Node>),
    Map(Vec<Entry>),
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) line: u32,
    pub(crate) node: Node,
}

/// Why a text is no tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SyntaxError {
    pub(crate) line: u32,
    pub(crate) message: String,
}

impl Node {
    fn kind(&self) -> &'static str {
        match self.value {
            Value::Null => "nothing",
            Value::Text(_) => "text",
            Value::Literal(_) => "a number or boolean",
            Value::Plain(_) => "a word or number",
            Value::List(_) => "a list",
            Value::Map(_) => "a table",
        }
    }

    fn wrong<T>(&self, wanted: &str) -> Result<T, String> {
        Err(format!("expected {wanted}, found {}", self.kind()))
    }

    pub(crate) fn text(&self) -> Result<&str, String> {
        match &self.value {
            Value::Text(text) | Value::Plain(text) => Ok(text),
            Value::Literal(literal) => Err(format!("expected text in quotes, found {literal}")),
            _ => self.wrong("text"),
        }
    }

    /// Any scalar as it stands there.
    pub(crate) fn scalar(&self) -> Result<&str, String> {
        match &self.value {
            Value::Text(text) | Value::Plain(text) | Value::Literal(text) => Ok(text),
            _ => self.wrong("a number or text"),
        }
    }

    pub(crate) fn boolean(&self) -> Result<bool, String> {
        match &self.value {
            Value::Literal(text) | Value::Plain(text) if text == "true" => Ok(true),
            Value::Literal(text) | Value::Plain(text) if text == "false" => Ok(false),
            _ => self.wrong("true or false"),
        }
    }

    /// A count, `-1` or a word for none, `parent`.
    pub(crate) fn count(&self) -> Result<Limit<u64>, String> {
        parse_count(self.scalar()?)
    }

    pub(crate) fn list(&self) -> Result<&[Node], String> {
        match &self.value {
            Value::List(nodes) => Ok(nodes),
            _ => self.wrong("a list, such as [\"a\", \"b\"]"),
        }
    }

    pub(crate) fn map(&self) -> Result<&[Entry], String> {
        match &self.value {
            Value::Map(entries) => Ok(entries),
            _ => self.wrong("a table"),
        }
    }
}

/// A whole number, `-1` (also `unlimited`, `infinite`, `none`, and Slurm's 4294967295) for no limit, or `parent`.
pub(crate) fn parse_count(text: &str) -> Result<Limit<u64>, String> {
    match text.to_ascii_lowercase().as_str() {
        "-1" | "unlimited" | "infinite" | "none" | "4294967295" => return Ok(Limit::Unset),
        "parent" => return Ok(Limit::Parent),
        _ => {}
    }
    // Underscores as TOML has them.
    match text.replace('_', "").parse::<u64>() {
        Ok(count) if i64::try_from(count).is_ok() && !text.starts_with('+') => Ok(Limit::Value(count)),
        _ => Err(format!("\"{text}\" is no count: write a whole number, or -1 for no limit")),
    }
}

/// Lines of a text by byte offset.
struct Lines(Vec<usize>);

impl Lines {
    fn of(text: &str) -> Self {
        Self(text.bytes().enumerate().filter(|(_, b)| *b == b'\n').map(|(at, _)| at).collect())
    }

    fn at(&self, offset: usize) -> u32 {
        let before = self.0.partition_point(|&end| end < offset);
        u32::try_from(before).unwrap_or(u32::MAX).saturating_add(1)
    }
}

pub(crate) fn parse_toml(text: &str) -> Result<Node, SyntaxError> {
    let lines = Lines::of(text);
    match toml::de::DeTable::parse(text) {
        Ok(table) => {
            let line = lines.at(table.span().start);
            toml_table(table.into_inner(), line, &lines, 0)
        }
        Err(error) => {
            let line = error.span().map_or(1, |span| lines.at(span.start));
            let mut message = error.message().trim().replace('\n', ", ");
            if let Some(key) =
                error.span().and_then(|span| text.get(span)).filter(|_| message == "duplicate key")
            {
                message = format!("the key {key} stands here twice");
            }
            Err(SyntaxError { line, message })
        }
    }
}

fn toml_table(
    table: toml::de::DeTable<'_>,
    line: u32,
    lines: &Lines,
    depth: usize,
) -> Result<Node, SyntaxError> {
    let mut entries = Vec::with_capacity(table.len());
    for (key, value) in table {
        let line = lines.at(key.span().start);
        let node = toml_value(value, lines, depth.saturating_add(1))?;
        entries.push(Entry { key: key.into_inner().into_owned(), line, node });
    }
    // The table is sorted by key; problems are told in the order of the file.
    entries.sort_by_key(|entry| entry.line);
    Ok(Node { line, value: Value::Map(entries) })
}

fn toml_value(
    value: toml::Spanned<toml::de::DeValue<'_>>,
    lines: &Lines,
    depth: usize,
) -> Result<Node, SyntaxError> {
    use toml::de::DeValue;
    let line = lines.at(value.span().start);
    if depth > MAX_DEPTH {
        return Err(too_deep(line));
    }
    let value = match value.into_inner() {
        DeValue::String(text) => Value::Text(text.into_owned()),
        DeValue::Integer(number) if number.radix() != 10 => {
            return Err(SyntaxError { line, message: "write numbers in base ten".to_owned() });
        }
        DeValue::Integer(number) => Value::Literal(number.as_str().to_owned()),
        DeValue::Float(number) => Value::Literal(number.as_str().to_owned()),
        DeValue::Boolean(truth) => Value::Literal(truth.to_string()),
        DeValue::Datetime(time) => Value::Literal(time.to_string()),
        DeValue::Array(array) => Value::List(
            array
                .into_iter()
                .map(|item| toml_value(item, lines, depth.saturating_add(1)))
                .collect::<Result<_, _>>()?,
        ),
        DeValue::Table(table) => return toml_table(table, line, lines, depth),
    };
    Ok(Node { line, value })
}

fn too_deep(line: u32) -> SyntaxError {
    SyntaxError { line, message: format!("lists and tables nest deeper than {MAX_DEPTH}") }
}

/// A list or map that is not closed yet.
struct Open {
    line: u32,
    value: Value,
    /// The key that waits for its value.
    key: Option<(String, u32)>,
    /// The keys of a map so far, and where they stand.
    keys: BTreeMap<String, u32>,
}

pub(crate) fn parse_yaml(text: &str) -> Result<Node, SyntaxError> {
    use saphyr_parser::{Event, Parser, ScalarStyle};
    let mut stack: Vec<Open> = Vec::new();
    let mut root: Option<Node> = None;
    let mut documents = 0_u32;
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|error| SyntaxError {
            line: u32::try_from(error.marker().line()).unwrap_or(u32::MAX),
            message: error.info().to_owned(),
        })?;
        let line = u32::try_from(span.start.line()).unwrap_or(u32::MAX);
        let fail = |message: &str| SyntaxError { line, message: message.to_owned() };
        let node = match event {
            Event::DocumentStart(_) => {
                documents = documents.saturating_add(1);
                if documents > 1 {
                    return Err(fail("a second document begins here; one file holds one"));
                }
                continue;
            }
            Event::Alias(_) => {
                return Err(fail("anchors and aliases (&, *) are not read; write the value out"));
            }
            Event::Scalar(text, style, ..) => Node {
                line,
                value: match style {
                    ScalarStyle::Plain if matches!(&*text, "" | "~" | "null") => Value::Null,
                    ScalarStyle::Plain => Value::Plain(text.into_owned()),
                    _ => Value::Text(text.into_owned()),
                },
            },
            Event::SequenceStart(..) | Event::MappingStart(..) => {
                if stack.len() >= MAX_DEPTH {
                    return Err(too_deep(line));
                }
                let map = matches!(event, Event::MappingStart(..));
                let value = if map { Value::Map(Vec::new()) } else { Value::List(Vec::new()) };
                stack.push(Open { line, value, key: None, keys: BTreeMap::new() });
                continue;
            }
            Event::SequenceEnd | Event::MappingEnd => match stack.pop() {
                Some(open) => Node { line: open.line, value: open.value },
                None => return Err(fail("a list or table ends that has not begun")),
            },
            _ => continue,
        };
        match stack.last_mut() {
            Some(open) => place(open, node)?,
            None => root = Some(node),
        }
    }
    // An empty file is an empty table, as in TOML.
    Ok(root
        .filter(|node| node.value != Value::Null)
        .unwrap_or(Node { line: 1, value: Value::Map(Vec::new()) }))
}

fn place(open: &mut Open, node: Node) -> Result<(), SyntaxError> {
    match (&mut open.value, open.key.take()) {
        (Value::List(nodes), _) => nodes.push(node),
        (Value::Map(entries), Some((key, line))) => entries.push(Entry { key, line, node }),
        (Value::Map(_), None) => {
            let Ok(key) = node.scalar().map(str::to_owned) else {
                return Err(SyntaxError { line: node.line, message: "a key must be a word".to_owned() });
            };
            if let Some(first) = open.keys.insert(key.clone(), node.line) {
                let message = format!("the key {key} stands here twice, first on line {first}");
                return Err(SyntaxError { line: node.line, message });
            }
            open.key = Some((key, node.line));
        }
        _ => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn toml_and_yaml_give_the_same_tree_but_for_quotes() {
        let toml = parse_toml("a = \"x\"\n\n[[b]]\nc = 1\n").unwrap();
        let yaml = parse_yaml("a: \"x\"\n\nb:\n- c: 1\n").unwrap();
        let (toml, yaml) = (toml.map().unwrap(), yaml.map().unwrap());
        assert_eq!(toml[0], yaml[0]);
        assert_eq!(toml[1].node.list().unwrap()[0].map().unwrap()[0].line, 4);
        assert_eq!(yaml[1].node.list().unwrap()[0].map().unwrap()[0].line, 4);
    }

    #[test]
    fn a_key_given_twice_is_refused_in_both() {
        assert_eq!(parse_yaml("a: 1\na: 2\n").unwrap_err().line, 2);
        assert_eq!(parse_toml("a = 1\na = 2\n").unwrap_err().line, 2);
    }

    #[test]
    fn aliases_second_documents_and_deep_nesting_are_refused() {
        assert!(parse_yaml("a: &x 1\nb: *x\n").unwrap_err().message.contains("aliases"));
        assert!(parse_yaml("a: 1\n---\na: 2\n").unwrap_err().message.contains("second document"));
        assert!(parse_yaml(&"[".repeat(40)).is_err());
        assert!(parse_toml(&format!("a = {}{}", "[".repeat(20), "]".repeat(20))).is_err());
    }
}
