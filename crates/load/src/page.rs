//! One HTML page that needs nothing from elsewhere.

/// Readable in light and dark, whichever the reader's system asks for.
const STYLE: &str = "\
:root { color-scheme: light dark; --paper: #ffffff; --ink: #1d2129; --soft: #5b6470; \
--grid: #e4e7eb; --a: #2563c9; --b: #d4572a; --c: #2b8a57; }
@media (prefers-color-scheme: dark) { :root { --paper: #15181d; --ink: #e6e8eb; --soft: #a3abb6; \
--grid: #2d333b; --a: #6ea8ff; --b: #ff9a62; --c: #63c48d; } }
body { background: var(--paper); color: var(--ink); margin: 2rem auto; padding: 0 1rem; \
max-width: 56rem; font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { text-align: right; padding: 0.25rem 0.75rem; border-bottom: 1px solid var(--grid); \
font-variant-numeric: tabular-nums; }
th { color: var(--soft); font-weight: 500; }
table.facts th, table.facts td { text-align: left; vertical-align: top; overflow-wrap: anywhere; }
table.facts th { white-space: nowrap; }
svg { display: block; width: 100%; height: auto; margin: 1rem 0; font-size: 12px; }
svg text { fill: var(--soft); } svg text.title { fill: var(--ink); font-size: 14px; \
font-weight: 600; }
svg .middle { text-anchor: middle; } svg .end { text-anchor: end; } svg .start { text-anchor: start; }
svg .grid { stroke: var(--grid); } svg .axis { stroke: var(--soft); }
svg .mark { stroke: var(--c); stroke-width: 2; stroke-dasharray: 5 4; }
svg .bar { fill: var(--a); }
svg .line-a, svg .line-b, svg .line-c { fill: none; stroke-width: 2; stroke-linejoin: round; }
svg .line-a { stroke: var(--a); } svg .line-b { stroke: var(--b); } svg .line-c { stroke: var(--c); }
svg circle.line-a { fill: var(--a); } svg circle.line-b { fill: var(--b); } \
svg circle.line-c { fill: var(--c); }
";

/// A page with this title and content, which is HTML.
pub(crate) fn page(title: &str, content: &str) -> String {
    let title = escape(title);
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n\
         {content}</body>\n</html>\n"
    )
}

/// A table of keys and values.
pub(crate) fn facts(facts: &[(String, String)]) -> String {
    let rows = facts.iter().map(|(key, value)| {
        format!("<tr><th scope=\"row\">{}</th><td>{}</td></tr>\n", escape(key), escape(value))
    });
    format!("<table class=\"facts\">\n{}</table>\n", rows.collect::<String>())
}

/// A table with heads and rows.
pub(crate) fn table(heads: &[&str], rows: &[Vec<String>]) -> String {
    let heads = heads.iter().map(|head| format!("<th scope=\"col\">{}</th>", escape(head)));
    let rows = rows.iter().map(|row| {
        let cells = row.iter().map(|cell| format!("<td>{}</td>", escape(cell)));
        format!("<tr>{}</tr>\n", cells.collect::<String>())
    });
    let (heads, rows) = (heads.collect::<String>(), rows.collect::<String>());
    format!("<table>\n<tr>{heads}</tr>\n{rows}</table>\n")
}

/// Text that means nothing but itself, in content and in attributes.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            character if character.is_control() => escaped.push(' '),
            character => escaped.push(character),
        }
    }
    escaped
}
