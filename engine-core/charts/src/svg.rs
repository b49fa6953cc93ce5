//! Elements of an SVG, written one after the other; everything that is said in it is escaped here.

use std::fmt::Write as _;

/// Text for an SVG or a page: markup, control characters and what turns the direction of writing come as what they are
/// called.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\t' => out.push(' '),
            c if c.is_control() || is_hidden(c) => {
                let _ = write!(out, "\\u{{{:x}}}", c as u32);
            }
            c => out.push(c),
        }
    }
    out
}

/// Characters that show nothing and change what is around them, and those that XML has no place for.
fn is_hidden(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}')
}

/// A coordinate to a tenth.
pub(crate) struct At(pub f64);

impl std::fmt::Display for At {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let tenths = if self.0.is_finite() { (self.0 * 10.0).round() + 0.0 } else { 0.0 };
        if tenths % 10.0 == 0.0 { write!(f, "{:.0}", tenths / 10.0) } else { write!(f, "{:.1}", tenths / 10.0) }
    }
}

/// Where a text stands to its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

/// An SVG while it is written.
#[derive(Debug)]
pub(crate) struct Svg(String);

impl Svg {
    /// Begins a picture that a reader of the page hears as `title` and `description`.
    pub fn new(id: &str, (width, height): (f64, f64), title: &str, description: &str) -> Self {
        let (id, title, description) = (escaped(id), escaped(title), escaped(description));
        let (w, h) = (At(width), At(height));
        Self(format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"chart\" role=\"img\" viewBox=\"0 0 {w} {h}\" \
             width=\"{w}\" height=\"{h}\" aria-labelledby=\"{id}-t {id}-d\">\
             <title id=\"{id}-t\">{title}</title><desc id=\"{id}-d\">{description}</desc>"
        ))
    }

    pub fn raw(&mut self, markup: &str) {
        self.0.push_str(markup);
    }

    pub fn line(&mut self, class: &str, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
        let (x1, y1, x2, y2) = (At(x1), At(y1), At(x2), At(y2));
        let _ = write!(self.0, "<path class=\"{class}\" d=\"M{x1} {y1}L{x2} {y2}\"/>");
    }

    /// A line through points.
    pub fn path(&mut self, class: &str, points: &[(f64, f64)]) {
        let _ = write!(self.0, "<path class=\"{class}\" d=\"");
        for (index, (x, y)) in points.iter().enumerate() {
            let _ = write!(self.0, "{}{} {}", if index == 0 { 'M' } else { 'L' }, At(*x), At(*y));
        }
        self.0.push_str("\"/>");
    }

    /// A rectangle; with `said`, what is heard of it and seen on pointing.
    pub fn rect(&mut self, paint: &str, (x, y): (f64, f64), (width, height): (f64, f64), said: Option<&str>) {
        let (x, y, width, height) = (At(x), At(y), At(width.max(0.0)), At(height.max(0.0)));
        let _ = write!(self.0, "<rect {paint} x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\"");
        self.close("rect", said);
    }

    pub fn text(&mut self, class: &str, (x, y): (f64, f64), anchor: Anchor, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "",
            Anchor::Middle => " text-anchor=\"middle\"",
            Anchor::End => " text-anchor=\"end\"",
        };
        let class = if class.is_empty() { String::new() } else { format!(" class=\"{class}\"") };
        let _ = write!(self.0, "<text{class} x=\"{}\" y=\"{}\"{anchor}>{}</text>", At(x), At(y), escaped(text));
    }

    /// The mark of a series: each has a shape of its own.
    pub fn marker(&mut self, series: usize, (x, y): (f64, f64), said: Option<&str>) {
        const R: f64 = 4.0;
        let (left, right, top, bottom) = (At(x - R), At(x + R), At(y - R), At(y + R));
        let (cx, cy) = (At(x), At(y));
        let shape = match series % 6 {
            0 => format!("M{left} {cy}a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z"),
            1 => format!("M{left} {top}h8v8h-8z"),
            2 => format!("M{cx} {top}L{right} {bottom}H{left}z"),
            3 => format!("M{cx} {top}L{right} {cy}L{cx} {bottom}L{left} {cy}z"),
            4 => format!("M{left} {cy}h8M{cx} {top}v8"),
            _ => format!("M{left} {top}l8 8m0 -8l-8 8"),
        };
        let _ = write!(self.0, "<path class=\"m s{}\" d=\"{shape}\"", series % 6 + 1);
        self.close("path", said);
    }

    fn close(&mut self, element: &str, said: Option<&str>) {
        match said {
            Some(said) => {
                let _ = write!(self.0, "><title>{}</title></{element}>", escaped(said));
            }
            None => self.0.push_str("/>"),
        }
    }

    pub fn end(mut self) -> String {
        self.0.push_str("</svg>");
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_is_said_is_markup_or_hides() {
        let hostile = "<script>alert('1')</script> \"&\u{1b}[2J\u{202e}gnp\u{0}";
        let text = escaped(hostile);
        assert!(!text.contains(['<', '>', '"', '\'', '\u{1b}', '\u{202e}', '\u{0}']), "{text}");
        assert!(text.contains("&lt;script&gt;") && text.contains("\\u{1b}") && text.contains("\\u{202e}"), "{text}");
        let mut svg = Svg::new("\"><x", (10.0, 10.0), hostile, hostile);
        svg.text("", (1.0, 1.0), Anchor::Start, hostile);
        svg.marker(0, (1.0, 1.0), Some(hostile));
        let svg = svg.end();
        assert!(!svg.contains("<script") && !svg.contains("<x"), "{svg}");
    }

    #[test]
    fn coordinates_are_short_and_finite() {
        assert_eq!(
            [1.0, 1.25, -0.04, f64::NAN, f64::INFINITY].map(|at| At(at).to_string()),
            ["1", "1.3", "0", "0", "0"]
        );
    }
}
