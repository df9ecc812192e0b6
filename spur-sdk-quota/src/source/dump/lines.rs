//! The lines of a dump: `Kind - 'name':Key=Value:Key='Value with : and ='`.

/// One line, with continuations joined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Line {
    /// The number of its first line, from 1.
    pub(super) number: u32,
    pub(super) text: String,
    /// Whether the file ends in it without an end of line, so that it may have been cut.
    pub(super) unterminated: bool,
}

/// One `Key=Value` of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pair {
    pub(super) key: String,
    pub(super) operator: Operator,
    pub(super) value: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operator {
    Set,
    Add,
    Remove,
}

/// A line taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    /// `account`, `user`, … in lower case.
    pub(super) kind: String,
    pub(super) name: String,
    /// What follows the name; a piece that is no pair is kept as the error to tell.
    pub(super) pairs: Vec<Result<Pair, String>>,
}

/// Drops comments, joins continuations, drops blank lines and carriage returns. In this order, as in Slurm: a
/// backslash at the end of a comment continues nothing.
pub(super) fn lines(text: &str) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    let mut open: Option<Line> = None;
    let mut quotes = Quotes::default();
    for (index, raw) in text.split_inclusive('\n').enumerate() {
        let unterminated = !raw.ends_with('\n');
        let number = u32::try_from(index).unwrap_or(u32::MAX).saturating_add(1);
        let raw = raw.get(..comment_start(raw, &mut quotes)).unwrap_or(raw);
        let raw = raw.trim_end_matches(['\n', '\r', ' ', '\t']);
        // An odd number of backslashes; two are one that is written.
        let backslashes = raw.bytes().rev().take_while(|b| *b == b'\\').count();
        let continued = !backslashes.is_multiple_of(2);
        let body = if continued { raw.strip_suffix('\\').unwrap_or(raw) } else { raw };
        let mut line = open.take().unwrap_or(Line { number, text: String::new(), unterminated: false });
        line.text.push_str(body);
        line.unterminated = unterminated;
        if continued && !unterminated {
            open = Some(line);
        } else {
            quotes = Quotes::default();
            lines.push(line);
        }
    }
    // A backslash at the very end promises a line that never came.
    lines.extend(open.map(|line| Line { unterminated: true, ..line }));
    for line in &mut lines {
        let trimmed = line.text.trim().to_owned();
        line.text = trimmed;
    }
    lines.retain(|line| !line.text.is_empty());
    lines
}

/// The quote that is open, if one is.
#[derive(Debug, Clone, Copy, Default)]
struct Quotes(Option<char>);

impl Quotes {
    /// Takes the next character; whether it stands outside quotes.
    fn outside(&mut self, c: char) -> bool {
        let outside = self.0.is_none();
        match self.0 {
            Some(open) if open == c => self.0 = None,
            None if c == '\'' || c == '"' => self.0 = Some(c),
            _ => {}
        }
        outside
    }
}

/// Walks over a text and says for each character whether it stands outside quotes.
fn outside_quotes(text: &str) -> impl Iterator<Item = (usize, char, bool)> {
    let mut quotes = Quotes::default();
    text.char_indices().map(move |(at, c)| (at, c, quotes.outside(c)))
}

/// Where a comment begins: a `#` outside quotes and not behind a backslash. Slurm's own loader also ends a line at
/// one inside quotes, but its dump writes such a one as it is, so here it belongs to the value.
fn comment_start(text: &str, quotes: &mut Quotes) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        if quotes.outside(c) && c == '#' && !escaped {
            return at;
        }
        escaped = c == '\\' && !escaped;
    }
    text.len()
}

fn split_outside(text: &str, separator: char) -> Vec<&str> {
    let mut pieces = Vec::new();
    let mut start = 0;
    for (at, c, outside) in outside_quotes(text) {
        if outside && c == separator {
            pieces.extend(text.get(start..at));
            start = at.saturating_add(c.len_utf8());
        }
    }
    pieces.extend(text.get(start..));
    pieces
}

/// Takes the quotes off. `None` when they do not match.
fn unquote(text: &str) -> Option<String> {
    let mut plain = String::with_capacity(text.len());
    let mut quote = None;
    for c in text.trim().chars() {
        match quote {
            Some(open) if open == c => quote = None,
            None if c == '\'' || c == '"' => quote = Some(c),
            _ => plain.push(c),
        }
    }
    // A dump writes a backslash as it is; only the two escapes that a file made for loading needs are taken.
    quote.is_none().then(|| plain.replace("\\#", "#").replace("\\\\", "\\"))
}

/// Whether the last amount of a TRES list still lacks its type: `GrpTRES=cpu=4,gres/gpu`.
///
/// Slurm writes `gres/gpu:mi300x=4` into a dump without quotes, and cannot load that itself.
fn wants_type(piece: &str) -> bool {
    let last = piece.rsplit([',', '=']).next().unwrap_or("");
    last.get(..5).is_some_and(|family| family.eq_ignore_ascii_case("gres/"))
        && !last.contains([':', '\'', '"'])
}

/// Joins the pieces that a colon inside an unquoted TRES took apart.
fn rejoin<'t>(pieces: impl Iterator<Item = &'t str>, is_key: impl Fn(&str) -> bool) -> Vec<String> {
    let mut joined: Vec<String> = Vec::new();
    for piece in pieces {
        // `gres/gpu:GrpJobs=4` lacks an amount; it is no GPU of type GrpJobs.
        let key = piece.split('=').next().unwrap_or("");
        match joined.last_mut() {
            Some(before) if wants_type(before) && !piece.is_empty() && !is_key(key) => {
                before.push(':');
                before.push_str(piece);
            }
            _ => joined.push(piece.to_owned()),
        }
    }
    joined
}

/// Takes a line apart; the error says why it cannot be told what the line is about. `is_key` knows the keys.
pub(super) fn entry(text: &str, is_key: impl Fn(&str) -> bool) -> Result<Entry, String> {
    let (kind, rest) = text.split_once('-').ok_or(
        "is no line of a dump: each begins with QOS, Cluster, Parent, Account or User and \" - 'name'\"",
    )?;
    let mut pieces = split_outside(rest, ':').into_iter();
    let name = pieces.next().unwrap_or("").trim();
    if outside_quotes(name).any(|(_, c, outside)| outside && c == '=') {
        return Err(format!("{name} is no name; a colon stands between the name and what follows"));
    }
    let name = unquote(name).ok_or_else(|| format!("the quotes of the name {name} do not match"))?;
    // A trailing colon leaves an empty piece.
    let pieces = rejoin(pieces.map(str::trim), is_key);
    let pairs = pieces.iter().filter(|piece| !piece.is_empty()).map(|piece| pair(piece)).collect();
    Ok(Entry { kind: kind.trim().to_ascii_lowercase(), name, pairs })
}

fn pair(piece: &str) -> Result<Pair, String> {
    let (key, value) = piece
        .split_once('=')
        .ok_or_else(|| format!("\"{piece}\" is no Key=Value; a colon in a value needs quotes"))?;
    let value = unquote(value).ok_or_else(|| format!("the quotes of {piece} do not match"))?;
    let (key, operator) = match (key.strip_suffix('+'), key.strip_suffix('-')) {
        (Some(key), _) => (key, Operator::Add),
        (_, Some(key)) => (key, Operator::Remove),
        _ => (key, Operator::Set),
    };
    Ok(Pair { key: key.trim().to_owned(), operator, value: value.trim().to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn continuations_comments_and_carriage_returns_are_taken_out() {
        let text = "# head\r\n\r\nAccount - 'a':\\\r\nDescription='x # y':Fairshare=1 # tail\r\nUser - 'u'";
        let lines = lines(text);
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0].text, "Account - 'a':Description='x # y':Fairshare=1");
        assert_eq!((lines[0].number, lines[1].number), (3, 5));
        assert!(!lines[0].unterminated && lines[1].unterminated);
    }

    #[test]
    fn a_backslash_at_the_end_of_a_comment_continues_nothing() {
        let texts = |text: &str| lines(text).into_iter().map(|line| line.text).collect::<Vec<_>>();
        assert_eq!(texts("# a \\\nAccount - 'a'\n"), ["Account - 'a'"]);
        assert_eq!(texts("Account - 'a' # b \\\nAccount - 'c'\n"), ["Account - 'a'", "Account - 'c'"]);
        // The quote stays open over the end of the line, so the # is no comment.
        assert_eq!(
            texts("Account - 'a':Description='x \\\ny # z'\n"),
            ["Account - 'a':Description='x y # z'"]
        );
        assert_eq!(texts("Account - a:Description=x\\#y#z\n"), ["Account - a:Description=x\\#y"]);
    }

    #[test]
    fn a_colon_in_quotes_belongs_to_the_value() {
        let entry = entry("Account - 'dept':Description='science: dept':QOS+=a,b:", |_| false).unwrap();
        assert_eq!((entry.kind.as_str(), entry.name.as_str()), ("account", "dept"));
        let pairs: Vec<_> = entry.pairs.into_iter().map(Result::unwrap).collect();
        assert_eq!(pairs[0].value, "science: dept");
        assert_eq!(pairs[1], Pair { key: "QOS".into(), operator: Operator::Add, value: "a,b".into() });
        assert_eq!(pairs.len(), 2);
    }

    #[test]
    fn a_typed_gres_without_quotes_is_one_value() {
        let is_key = |key: &str| key == "GrpJobs";
        let values = |text: &str| {
            let pairs = entry(text, is_key).unwrap().pairs;
            pairs.into_iter().map(|pair| pair.unwrap().value).collect::<Vec<_>>()
        };
        let text = "Account - 'a':GrpTRES=cpu=4,gres/gpu:mi300x=4,gres/gpu=8,mem=1G:GrpJobs=3";
        assert_eq!(values(text), ["cpu=4,gres/gpu:mi300x=4,gres/gpu=8,mem=1G", "3"]);
        // An amount that is missing is not taken from the next key.
        assert_eq!(values("Account - 'a':GrpTRES=cpu=4,gres/gpu:GrpJobs=3"), ["cpu=4,gres/gpu", "3"]);
        assert_eq!(values("Account - 'a':GrpTRES='gres/gpu:x=4':GrpJobs=3"), ["gres/gpu:x=4", "3"]);
    }

    #[test]
    fn what_has_no_end_is_an_error() {
        assert!(entry("Account - 'a:GrpTRES=cpu=1", |_| false).is_err());
        assert!(entry("Account", |_| false).is_err());
        assert!(entry("Account - 'a' Fairshare=2", |_| false).is_err());
        assert_eq!(entry("Account - 'a=b':Fairshare=2", |_| false).unwrap().name, "a=b");
        assert!(entry("Account - a:node:2", |_| false).unwrap().pairs[0].is_err());
        assert!(entry("Account - a:Description='x", |_| false).unwrap().pairs[0].is_err());
    }
}
