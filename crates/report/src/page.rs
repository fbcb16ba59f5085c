//! One HTML page that needs nothing from elsewhere.

use crate::escape::escape_xml;
use crate::picture::InlineSvg;
use crate::style::{PAGE_STYLE, PICTURE_STYLE};
use crate::table::Table;

/// A table with more rows than this is folded where it goes with pictures.
const FOLDED_ROWS: usize = 16;

/// A page that is being written, from the top.
#[derive(Clone, Debug)]
pub struct HtmlPage {
    title: String,
    content: String,
}

/// A part of a page, under a heading of its own.
#[derive(Clone, Debug)]
pub struct PageSection {
    /// The heading.
    pub title: &'static str,
    /// What is to be seen, a paragraph each.
    pub words: Vec<String>,
    /// What is drawn.
    pub pictures: Vec<InlineSvg>,
    /// The figures; a long table is folded.
    pub tables: Vec<Table>,
}

impl HtmlPage {
    /// A page with this title, and nothing else yet.
    pub fn new(title: &str) -> Self {
        Self { title: escape_xml(title), content: String::new() }
    }

    /// Adds the heading of a part.
    pub fn add_heading(&mut self, text: &str) {
        self.content.push_str(&format!("<h2>{}</h2>\n", escape_xml(text)));
    }

    /// Adds a paragraph.
    pub fn add_paragraph(&mut self, text: &str) {
        self.content.push_str(&format!("<p>{}</p>\n", escape_xml(text)));
    }

    /// Adds lines of what there is to say, each after what it is about.
    pub fn add_facts<Key: AsRef<str>>(&mut self, facts: &[(Key, String)]) {
        let rows = facts.iter().map(|(key, value)| {
            let (key, value) = (escape_xml(key.as_ref()), escape_xml(value));
            format!("<tr><th scope=\"row\">{key}</th><td>{value}</td></tr>\n")
        });
        let rows = rows.collect::<String>();
        self.content.push_str(&format!("<table class=\"facts\">\n{rows}</table>\n"));
    }

    /// Adds a table.
    pub fn add_table(&mut self, table: &Table) {
        self.content.push_str(&html_table(table));
    }

    /// Adds a picture.
    pub fn add_picture(&mut self, picture: &InlineSvg) {
        self.content.push_str(picture.as_str());
    }

    /// Adds a section.
    pub fn add_section(&mut self, section: &PageSection) {
        self.content.push_str("<section>\n");
        self.add_heading(section.title);
        for words in &section.words {
            self.add_paragraph(words);
        }
        for picture in &section.pictures {
            self.add_picture(picture);
        }
        for table in &section.tables {
            self.content.push_str(&folding_table(table));
        }
        self.content.push_str("</section>\n");
    }

    /// The page as a file.
    pub fn to_html(&self) -> String {
        let Self { title, content } = self;
        format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
             <title>{title}</title>\n<style>\n{PAGE_STYLE}{PICTURE_STYLE}\n</style>\n</head>\n\
             <body>\n<h1>{title}</h1>\n{content}</body>\n</html>\n"
        )
    }
}

fn html_table(table: &Table) -> String {
    let (heads, rows) = table.heads_and_rows();
    let class = |column: usize| match heads.get(column) {
        Some((_, true)) => " class=\"right\"",
        _ => "",
    };
    let head = |(column, (head, _)): (usize, &(&str, bool))| {
        format!("<th scope=\"col\"{}>{}</th>", class(column), escape_xml(head))
    };
    let row = |row: &Vec<String>| {
        let cells = row.iter().enumerate();
        let cells =
            cells.map(|(column, cell)| format!("<td{}>{}</td>", class(column), escape_xml(cell)));
        format!("<tr>{}</tr>\n", cells.collect::<String>())
    };
    let head: String = heads.iter().enumerate().map(head).collect();
    let body: String = rows.iter().map(row).collect();
    format!("<div class=\"scroll\"><table>\n<tr>{head}</tr>\n{body}</table></div>\n")
}

fn folding_table(table: &Table) -> String {
    let (_, rows) = table.heads_and_rows();
    let html = html_table(table);
    if rows.len() > FOLDED_ROWS {
        format!("<details><summary>{} rows</summary>\n{html}</details>\n", rows.len())
    } else {
        html
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_cells_mean_nothing_but_themselves() {
        let evil = "</td><script>alert(\"x\")</script>&";
        let mut cells = Table::new(&["a", ">b"]);
        cells.add_row([evil.to_owned(), "1".to_owned()]);
        let mut page = HtmlPage::new(evil);
        page.add_facts(&[(evil, evil.to_owned())]);
        page.add_section(&PageSection {
            title: "<title>",
            words: vec![evil.to_owned()],
            pictures: Vec::new(),
            tables: vec![cells],
        });
        let html = page.to_html();
        assert!(!html.contains("<script") && !html.contains("<h2><title>"), "{html}");
        assert!(html.contains("<td>&lt;/td&gt;&lt;script&gt;alert(&quot;x&quot;)"), "{html}");
        assert!(html.contains("<td class=\"right\">1</td>"), "{html}");
    }

    #[test]
    fn a_page_needs_nothing_from_elsewhere() {
        let html = HtmlPage::new("page").to_html();
        for part in ["src=", "href=", "url(", "@import", "<script"] {
            assert!(!html.contains(part), "{part}");
        }
    }

    #[test]
    fn a_long_table_is_folded() {
        let mut long = Table::new(&["n"]);
        for number in 0..20 {
            long.add_row([number.to_string()]);
        }
        assert!(folding_table(&long).starts_with("<details>"));
        assert!(!html_table(&long).contains("<details>"));
    }
}
