//! Blanks out comments and the contents of literals of Rust source, so that a rule about code does
//! not trip over prose. A scanner, not a parser: it knows just what starts and ends those.

/// `source` with every character of a comment, string or character literal replaced by a blank.
/// Line breaks stay, so that line numbers do.
pub(super) fn code_only(source: &str) -> String {
    let mut masked = String::with_capacity(source.len());
    let mut rest = source;
    let mut previous = ' ';
    while let Some(first) = rest.chars().next() {
        let len = match first {
            '/' if rest.starts_with("//") => line_comment_len(rest),
            '/' if rest.starts_with("/*") => block_comment_len(rest),
            '"' => string_len(rest),
            'r' if !is_identifier(previous) || is_literal_prefix(previous) => raw_string_len(rest),
            '\'' => char_len(rest),
            _ => 0,
        };
        let (skipped, after) = rest.split_at(len);
        masked.extend(skipped.chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
        rest = after;
        previous = ' ';
        if len == 0 {
            masked.push(first);
            previous = first;
            rest = &rest[first.len_utf8()..];
        }
    }
    masked
}

/// Whether `code` holds `word` as a whole identifier.
pub(super) fn has_word(code: &str, word: &str) -> bool {
    code.split(|c| !is_identifier(c)).any(|token| token == word)
}

fn line_comment_len(rest: &str) -> usize {
    rest.find('\n').unwrap_or(rest.len())
}

fn block_comment_len(rest: &str) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while at < rest.len() {
        let tail = &rest[at..];
        if tail.starts_with("/*") {
            depth += 1;
            at += 2;
        } else if tail.starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += tail.chars().next().map_or(1, char::len_utf8);
        }
    }
    rest.len()
}

/// Length of a literal that starts with its quotation mark.
fn string_len(rest: &str) -> usize {
    let mut escaped = false;
    for (index, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return index + 1,
            _ => {}
        }
    }
    rest.len()
}

/// Length of `r"..."` or `r#"..."#`; 0 when `rest` is neither (a name, or a raw identifier).
fn raw_string_len(rest: &str) -> usize {
    let hashes = rest[1..].len() - rest[1..].trim_start_matches('#').len();
    let open_len = 1 + hashes + 1;
    if !rest[1 + hashes..].starts_with('"') {
        return 0;
    }
    let close = format!("\"{}", "#".repeat(hashes));
    rest[open_len..]
        .find(&close)
        .map_or(rest.len(), |index| open_len + index + close.len())
}

/// Length of a character literal; 0 when the mark starts a lifetime or label.
fn char_len(rest: &str) -> usize {
    let mut chars = rest.char_indices().skip(1);
    match chars.next() {
        Some((_, '\\')) => {
            chars.next();
            chars
                .find(|&(_, c)| c == '\'')
                .map_or(0, |(index, _)| index + 1)
        }
        Some(_) => match chars.next() {
            Some((index, '\'')) => index + 1,
            _ => 0,
        },
        None => 0,
    }
}

fn is_identifier(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// `b` and `c` may stand before the `r` of a raw string.
fn is_literal_prefix(c: char) -> bool {
    matches!(c, 'b' | 'c')
}
