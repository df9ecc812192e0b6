//! The words of a sacctmgr command line.

use super::keys::{Field, Key, find};

/// Something is wrong with the words; in Slurm's way of saying it where there is one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WordsError(pub(super) String);

impl WordsError {
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }
}

/// What a word does to a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sign {
    Set,
    Add,
    Remove,
}

/// `key=value`, `key+=value`, `key-=value`, or a name alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Word {
    pub(super) text: String,
    pub(super) key: String,
    pub(super) sign: Sign,
    pub(super) value: Option<String>,
}

impl Word {
    pub(super) fn new(text: &str) -> Self {
        let Some((key, value)) = text.split_once('=') else {
            return Self { text: text.to_owned(), key: text.to_owned(), sign: Sign::Set, value: None };
        };
        let (key, sign) = match (key.strip_suffix('+'), key.strip_suffix('-')) {
            (Some(key), _) => (key, Sign::Add),
            (_, Some(key)) => (key, Sign::Remove),
            _ => (key, Sign::Set),
        };
        Self {
            text: text.to_owned(),
            key: key.trim().to_owned(),
            sign,
            value: Some(unquoted(value).to_owned()),
        }
    }
}

/// Without quotes around it, which a shell does not take off where there is none.
fn unquoted(value: &str) -> &str {
    let value = value.trim();
    for quote in ['"', '\''] {
        if let Some(inner) = value.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote)) {
            return inner;
        }
    }
    value
}

/// Whether `written` is `name` or begins it with at least so many letters, in any case.
pub(super) fn is(written: &str, name: &str, least: usize) -> bool {
    let beginning = name.get(..written.len());
    written.len() >= least && beginning.is_some_and(|beginning| beginning.eq_ignore_ascii_case(written))
}

/// Names between commas.
pub(super) fn names(text: &str) -> Vec<String> {
    text.split(',').map(|name| unquoted(name).to_owned()).filter(|name| !name.is_empty()).collect()
}

/// One assignment of an object's field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pair {
    pub(super) field: Field,
    pub(super) sign: Sign,
    pub(super) value: String,
    /// As it was typed.
    pub(super) text: String,
}

/// A line after its object: what it is about, what is to be set, what is shown.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Line {
    /// Before `set`.
    pub(super) conditions: Vec<Pair>,
    /// After `set`.
    pub(super) settings: Vec<Pair>,
    /// Words such as `withassoc`, in lower case.
    pub(super) flags: Vec<Flag>,
    pub(super) format: Option<String>,
}

/// A word that says how to show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flag {
    Tree,
    WithAssociations,
    WithCoordinators,
    WithoutLimits,
    /// Known, and without meaning here.
    Other,
}

const FLAGS: &[(&str, usize, Flag)] = &[
    ("Tree", 4, Flag::Tree),
    ("WithAssoc", 5, Flag::WithAssociations),
    ("WithAssociations", 5, Flag::WithAssociations),
    ("WithCoordinators", 5, Flag::WithCoordinators),
    ("WithDeleted", 5, Flag::Other),
    ("WithRawQOSLevel", 5, Flag::Other),
    ("WithSubAccounts", 5, Flag::Other),
    ("WOPInfo", 4, Flag::Other),
    ("WOPLimits", 4, Flag::WithoutLimits),
    ("OnlyDefaults", 4, Flag::Other),
];

/// Reads the words that follow the object's.
///
/// `naming` is the field that a word without `=` is a value of. With `setting_first` words before any `where` or `set`
/// are settings, as in `add`; otherwise they are conditions.
pub(super) fn line(
    words: &[String],
    keys: &[Key],
    conditions: &[Key],
    naming: Field,
    setting_first: bool,
) -> Result<Line, WordsError> {
    let mut line = Line::default();
    let mut setting = setting_first;
    for text in words {
        let word = Word::new(text);
        let Some(value) = word.value.clone() else {
            if is(&word.key, "where", 5) {
                setting = false;
            } else if is(&word.key, "set", 3) {
                setting = true;
            } else if let Some((_, _, flag)) =
                FLAGS.iter().find(|(name, least, _)| is(&word.key, name, *least))
            {
                line.flags.push(*flag);
            } else {
                let pair = Pair {
                    field: naming,
                    sign: Sign::Set,
                    value: unquoted(&word.key).to_owned(),
                    text: text.clone(),
                };
                if setting_first { line.settings.push(pair) } else { line.conditions.push(pair) }
            }
            continue;
        };
        if is(&word.key, "Format", 3) {
            line.format = Some(value);
            continue;
        }
        let (known, other) = if setting { (keys, conditions) } else { (conditions, keys) };
        let Some(key) = find(known, &word.key) else {
            return Err(unknown(&word, known, other, setting));
        };
        let pair = Pair { field: key.field, sign: word.sign, value, text: text.clone() };
        match key.field {
            Field::Unkept(reason) => return Err(WordsError::new(format!("{}: {reason}", word.key))),
            _ if setting => line.settings.push(pair),
            _ => line.conditions.push(pair),
        }
    }
    Ok(line)
}

fn unknown(word: &Word, known: &[Key], other: &[Key], setting: bool) -> WordsError {
    let what = if setting { "option" } else { "condition" };
    let elsewhere = match (find(other, &word.key), setting) {
        (Some(_), true) => "\n Use keyword 'where' to modify condition".to_owned(),
        (Some(_), false) => "\n Use keyword 'set' to modify value".to_owned(),
        (None, _) => {
            let kept = known.iter().filter(|key| !matches!(key.field, Field::Unkept(_)));
            let mut names: Vec<_> = kept.map(|key| key.name).collect();
            names.dedup();
            format!("\n known are {}", names.join(", "))
        }
    };
    WordsError::new(format!(" Unknown {what}: {}{elsewhere}", word.text))
}

impl Line {
    pub(super) fn has(&self, flag: Flag) -> bool {
        self.flags.contains(&flag)
    }

    /// All names that a field is given among the settings.
    pub(super) fn set_names(&self, field: Field) -> Vec<String> {
        self.settings.iter().filter(|pair| pair.field == field).flat_map(|pair| names(&pair.value)).collect()
    }

    /// The last value that a field is set to.
    pub(super) fn set(&self, field: Field) -> Option<&Pair> {
        self.settings.iter().rev().find(|pair| pair.field == field)
    }

    /// Whether a value meets what is asked of a field, which is anything where nothing is. Upper and lower case are one,
    /// as in Slurm.
    pub(super) fn admits(&self, field: Field, value: &str) -> bool {
        let mut asked = self.conditions.iter().filter(|pair| pair.field == field).peekable();
        if asked.peek().is_none() {
            return true;
        }
        asked.any(|pair| match pair.value.as_str() {
            "" => value.is_empty(),
            wanted => names(wanted).iter().any(|name| name.eq_ignore_ascii_case(value)),
        })
    }

    /// Whether a list holds what is asked of a field.
    pub(super) fn admits_any(&self, field: Field, values: &[String]) -> bool {
        match values {
            [] => self.admits(field, ""),
            values => values.iter().any(|value| self.admits(field, value)),
        }
    }

    pub(super) fn sets_any(&self, fields: &[Field]) -> bool {
        self.settings.iter().any(|pair| fields.contains(&pair.field))
    }

    pub(super) fn asks(&self, field: Field) -> bool {
        self.conditions.iter().any(|pair| pair.field == field)
    }
}
