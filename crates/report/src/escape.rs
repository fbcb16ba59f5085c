//! Text that means nothing but itself, in XML and in HTML.

/// A text as XML and HTML have it, as content or in a quoted attribute; what no XML may have is
/// left out.
pub(crate) fn escape_xml(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\n' | '\t' => escaped.push(character),
            '\u{fffe}' | '\u{ffff}' => {}
            other if other.is_control() => {}
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped_and_what_xml_forbids_left_out() {
        assert_eq!(escape_xml("a<b> & \"c\"\u{0}\u{1b}"), "a&lt;b&gt; &amp; &quot;c&quot;");
    }
}
