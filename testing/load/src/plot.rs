//! A picture of a run: writes a second, stalls by length, and what was done when.

use std::time::Duration;

use crate::interruptions::OPERATOR;
use crate::record::{INTERVAL, Mark, Record, Who};

const WIDTH: f64 = 1400.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 20.0;
/// Top and height of the panel of writes.
const WRITES: (f64, f64) = (220.0, 200.0);
/// Top and height of the panel of stalls.
const STALLS: (f64, f64) = (460.0, 260.0);
const HEIGHT: f64 = 760.0;
/// Lengths with a line across the panel of stalls, milliseconds.
const LINES: [f64; 5] = [10.0, 60.0, 100.0, 1000.0, 10_000.0];
/// Most marks with a text: more would be unreadable.
const TEXTS: usize = 60;

/// The picture as SVG.
pub fn svg(title: &str, record: &Record) -> String {
    let end = end_of(record).max(1.0);
    let x = |at: f64| LEFT + at / end * (WIDTH - LEFT - RIGHT);
    let mut out = String::new();
    let mut add = |text: &str| {
        out.push_str(text);
        out.push('\n');
    };
    add(&format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"11\">"
    ));
    add("<rect width=\"100%\" height=\"100%\" fill=\"white\"/>");
    add(&format!("<text x=\"{LEFT}\" y=\"18\" font-size=\"15\">{}</text>", escaped(title)));
    add(&marks(&record.marks, &x));
    add(&writes(record, &x));
    add(&stalls(record, &x));
    add(&axis(end, &x));
    add("</svg>");
    out
}

fn end_of(record: &Record) -> f64 {
    let counted = INTERVAL.as_secs_f64() * f64::from(u32::try_from(record.counts.len()).unwrap_or(u32::MAX));
    let stalled = record.stalls.iter().map(|it| it.to.as_secs_f64()).fold(0.0, f64::max);
    counted.max(stalled)
}

fn marks(marks: &[Mark], x: &impl Fn(f64) -> f64) -> String {
    let bottom = STALLS.0 + STALLS.1;
    let mut out = String::new();
    for (index, mark) in marks.iter().enumerate() {
        let at = x(mark.at.as_secs_f64());
        let ours = mark.text.starts_with(OPERATOR);
        let colour = if ours { "#9bb8d8" } else { "#c0392b" };
        let text = format!(
            "<line x1=\"{at:.1}\" y1=\"{:.0}\" x2=\"{at:.1}\" y2=\"{bottom:.0}\" stroke=\"{colour}\" stroke-width=\"0.7\"><title>{:.2} s {}</title></line>\n",
            WRITES.0 - 8.0,
            mark.at.as_secs_f64(),
            escaped(&mark.text)
        );
        out.push_str(&text);
        if index < TEXTS || !ours {
            let text: String = mark.text.chars().take(44).collect();
            let text = format!(
                "<text transform=\"translate({at:.1},{:.0}) rotate(-60)\" font-size=\"8\" fill=\"{colour}\">{}</text>\n",
                WRITES.0 - 12.0,
                escaped(&text)
            );
            out.push_str(&text);
        }
    }
    out
}

fn writes(record: &Record, x: &impl Fn(f64) -> f64) -> String {
    let per_second = 1.0 / INTERVAL.as_secs_f64();
    let most = record.counts.iter().map(|it| f64::from(it.writes)).fold(1.0, f64::max) * per_second;
    let (top, height) = WRITES;
    let y = |value: f64| top + height - value / most * height;
    let mut points = String::new();
    let mut failures = String::new();
    for (index, counts) in record.counts.iter().enumerate() {
        let at = x(INTERVAL.as_secs_f64() * f64::from(u32::try_from(index).unwrap_or(u32::MAX)));
        let text = format!("{at:.1},{:.1} ", y(f64::from(counts.writes) * per_second));
        points.push_str(&text);
        if counts.failures > 0 {
            let text = format!(
                "<circle cx=\"{at:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"#c0392b\"><title>{} failed</title></circle>\n",
                top + height - 4.0,
                counts.failures
            );
            failures.push_str(&text);
        }
    }
    format!(
        "<text x=\"4\" y=\"{:.0}\">writes/s</text><text x=\"4\" y=\"{:.0}\">{most:.0}</text>\n\
         <polyline fill=\"none\" stroke=\"#2c6e49\" stroke-width=\"1\" points=\"{points}\"/>\n{failures}",
        top + height,
        top + 10.0
    )
}

fn stalls(record: &Record, x: &impl Fn(f64) -> f64) -> String {
    let (top, height) = STALLS;
    // Logarithmic, from 10 ms to 100 s.
    let y = |millis: f64| top + height - (millis.max(10.0).log10() - 1.0) / 4.0 * height;
    let mut out = String::new();
    for line in LINES {
        let text = format!(
            "<line x1=\"{LEFT}\" y1=\"{0:.1}\" x2=\"{1:.0}\" y2=\"{0:.1}\" stroke=\"#dddddd\"/><text x=\"4\" y=\"{0:.1}\">{line:.0} ms</text>\n",
            y(line),
            WIDTH - RIGHT
        );
        out.push_str(&text);
    }
    for stall in &record.stalls {
        let colour = match (&stall.failure, stall.who) {
            (Some(_), _) => "#c0392b",
            (None, Who::Slot) => "#1f5fa8",
            (None, Who::Application) => "#e08e0b",
            (None, Who::Newcomer) => "#8e6bbf",
        };
        let height = y(stall.length().as_secs_f64() * 1000.0);
        let text = format!(
            "<line x1=\"{:.1}\" y1=\"{height:.1}\" x2=\"{:.1}\" y2=\"{height:.1}\" stroke=\"{colour}\" stroke-width=\"2\"/>\n",
            x(stall.from.as_secs_f64()),
            x(stall.to.as_secs_f64()).max(x(stall.from.as_secs_f64()) + 1.0)
        );
        out.push_str(&text);
    }
    let text = format!(
        "<text x=\"{LEFT}\" y=\"{:.0}\">stalls: <tspan fill=\"#1f5fa8\">slot</tspan> · \
         <tspan fill=\"#e08e0b\">application</tspan> · <tspan fill=\"#8e6bbf\">newcomer</tspan> · \
         <tspan fill=\"#c0392b\">failed</tspan></text>\n",
        top - 4.0
    );
    out.push_str(&text);
    out
}

fn axis(end: f64, x: &impl Fn(f64) -> f64) -> String {
    let step = [1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 120.0, 300.0, 600.0]
        .into_iter()
        .find(|step| end / step <= 24.0)
        .unwrap_or(1800.0);
    let mut out = String::new();
    let mut at = 0.0;
    while at <= end {
        let text = format!(
            "<text x=\"{:.1}\" y=\"{:.0}\" text-anchor=\"middle\">{at:.0} s</text>\n",
            x(at),
            STALLS.0 + STALLS.1 + 16.0
        );
        out.push_str(&text);
        at += step;
    }
    out
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Only the part of a record from one time to another, with times from its start.
pub fn part(record: &Record, from: Duration, to: Duration) -> Record {
    let index = |at: Duration| usize::try_from(at.as_millis() / INTERVAL.as_millis()).unwrap_or(0);
    let end = index(to).min(record.counts.len());
    let shift = |mark: &&Mark| (from..=to).contains(&mark.at);
    let moved = |mark: &Mark| Mark { at: mark.at.saturating_sub(from), text: mark.text.clone() };
    Record {
        counts: record.counts.get(index(from).min(end)..end).unwrap_or_default().to_vec(),
        stalls: record
            .stalls
            .iter()
            .filter(|it| it.to >= from && it.from <= to)
            .map(|it| {
                let mut it = it.clone();
                (it.from, it.to) = (it.from.saturating_sub(from), it.to.saturating_sub(from));
                it
            })
            .collect(),
        marks: record.marks.iter().filter(shift).map(moved).collect(),
        ..Record::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Counts, Stall};

    #[test]
    fn a_picture_has_writes_stalls_failures_and_marks() {
        let at = Duration::from_millis;
        let stall = |failure: Option<&str>| Stall {
            who: Who::Slot,
            slot: 1,
            from: at(100),
            to: at(400),
            failure: failure.map(str::to_owned),
        };
        let record = Record {
            counts: vec![Counts { writes: 5, reads: 0, failures: 1 }; 20],
            stalls: vec![stall(None), stall(Some("timeout"))],
            marks: vec![Mark { at: at(50), text: "a <b>".to_owned() }],
            ..Record::default()
        };
        let picture = svg("t", &record);
        assert!(picture.starts_with("<svg ") && picture.trim_end().ends_with("</svg>"));
        assert!(
            picture.contains("a &lt;b&gt;") && picture.contains("polyline") && picture.contains("1 failed")
        );
        let later = part(&record, at(200), at(1000));
        assert_eq!((later.counts.len(), later.stalls.len(), later.marks.len()), (8, 2, 0));
        assert_eq!(later.stalls[0].to, at(200));
    }
}
