//! The picture: for each case the distribution of ours and of what it stands on, as an SVG file.

use std::ops::Range;
use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::chart::SeriesLabelPosition;
use plotters::coord::Shift;
use plotters::prelude::{
    AreaSeries, BindKeyPoints as _, ChartBuilder, Color as _, DrawingArea, IntoDrawingArea as _,
    IntoLogRange as _, LineSeries, RGBColor, Rectangle, SVGBackend, Text, WHITE,
};
use plotters::style::{FontFamily, FontStyle, IntoFont as _, TextStyle};

use crate::bench::case::{Panel, duration};
use crate::bench::statistics::{Distribution, to_f64};

/// Draws the panels in two columns and writes them to `path`.
pub(crate) fn write(panels: &[&Panel], path: &Path) -> Result<()> {
    let rows = panels.len().div_ceil(COLUMNS);
    let columns = panels.len().min(COLUMNS);
    let height = TITLE_HEIGHT + PANEL_HEIGHT * u32::try_from(rows)?;
    let size = (PANEL_WIDTH * u32::try_from(columns)?, height);
    let picture = |error| anyhow!("cannot draw {}: {error}", path.display());
    let root = SVGBackend::new(path, size).into_drawing_area();
    root.fill(&WHITE).map_err(picture)?;
    let (title, body) = root.split_vertically(TITLE_HEIGHT);
    title
        .draw(&Text::new(TITLE, (12, 12), text(15)))
        .map_err(picture)?;
    for (area, panel) in body.split_evenly((rows, columns)).iter().zip(panels) {
        draw(area, panel).map_err(picture)?;
    }
    root.present().map_err(picture)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Failure<'a> = plotters::drawing::DrawingAreaErrorKind<
    <SVGBackend<'a> as plotters::prelude::DrawingBackend>::ErrorType,
>;

fn draw<'a>(area: &Area<'a>, panel: &Panel) -> Result<(), Failure<'a>> {
    let shown: Vec<(&str, &Distribution, RGBColor)> = [("this library", &panel.ours, OURS)]
        .into_iter()
        .chain(
            panel
                .floor
                .iter()
                .map(|(name, floor)| (*name, floor, FLOOR)),
        )
        .collect();
    let range = range(shown.iter().map(|(_, distribution, _)| *distribution));
    let curves: Vec<Vec<(f64, f64)>> = shown
        .iter()
        .map(|(_, distribution, _)| curve(distribution, &range))
        .collect();
    let shares = curves.iter().flatten().map(|(_, share)| *share);
    let top = shares.fold(0.0, f64::max) * HEADROOM;
    let mut chart = ChartBuilder::on(area)
        .caption(&panel.title, text(17))
        .margin(12)
        .x_label_area_size(30)
        .y_label_area_size(46)
        .build_cartesian_2d(
            range.clone().log_scale().with_key_points(ticks(&range)),
            0.0..top,
        )?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .light_line_style(WHITE)
        .bold_line_style(GRID)
        .axis_style(AXIS)
        .x_label_formatter(&|value_ns| tick_label(*value_ns))
        .y_label_formatter(&|share| format!("{:.0} %", share * 100.0))
        .y_labels(4)
        .label_style(text(13))
        .draw()?;
    for ((name, distribution, color), curve) in shown.into_iter().zip(curves) {
        let fill = color.mix(0.25);
        let p50 = to_f64(distribution.percentile_ns(50.0));
        let label = format!(
            "{name}: p50 {}, p99 {}",
            duration(p50),
            duration(to_f64(distribution.percentile_ns(99.0)))
        );
        chart
            .draw_series(AreaSeries::new(curve, 0.0, fill).border_style(color.stroke_width(1)))?
            .label(label)
            .legend(move |(x, y)| {
                Rectangle::new([(x, y - 5), (x + 14, y + 5)], color.mix(0.6).filled())
            });
        let line = [(p50, 0.0), (p50, top)];
        chart.draw_series(LineSeries::new(line, color.stroke_width(1)))?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.85))
        .border_style(GRID)
        .label_font(text(13))
        .draw()
}

/// The share of round trips in each of equally wide steps of the logarithm.
fn curve(distribution: &Distribution, range: &Range<f64>) -> Vec<(f64, f64)> {
    let steps = (range.end / range.start).log10() * STEPS_PER_DECADE;
    let at = |step: f64| range.start * 10_f64.powf(step / STEPS_PER_DECADE);
    let mut curve = Vec::new();
    let mut step = 0.0;
    while step < steps {
        let (low, high) = (at(step), at(step + 1.0));
        let inside = distribution.buckets().iter().filter(|(value, _)| {
            let value = to_f64(*value);
            low <= value && value < high
        });
        let count: u64 = inside.map(|(_, count)| count).sum();
        let share = to_f64(count) / to_f64(distribution.count().max(1));
        // A step of a staircase: the bins are no more exact than their width.
        curve.extend([(low, share), (high, share)]);
        step += 1.0;
    }
    curve
}

/// From a little below the fastest to a little above all but the slowest hundredth, and at least
/// wide enough for a few ticks.
fn range<'d>(distributions: impl Iterator<Item = &'d Distribution>) -> Range<f64> {
    let (mut low, mut high) = (f64::MAX, 1.0_f64);
    for distribution in distributions {
        low = low.min(to_f64(distribution.percentile_ns(0.1)));
        high = high.max(to_f64(distribution.percentile_ns(99.0)));
    }
    let low = low.min(high).max(1.0) / MARGIN;
    low..(high * MARGIN).max(low * NARROWEST)
}

/// Some digits times each power of ten: more of them where the range is narrow.
fn ticks(range: &Range<f64>) -> Vec<f64> {
    let digits: &[f64] = if range.end / range.start < WIDE {
        &[1.0, 2.0, 3.0, 5.0, 7.0]
    } else {
        &[1.0, 2.0, 5.0]
    };
    let mut ticks = Vec::new();
    let mut decade = 1.0;
    while decade < range.end {
        ticks.extend(digits.iter().map(|digit| digit * decade));
        decade *= 10.0;
    }
    ticks.retain(|tick| range.contains(tick));
    ticks
}

/// Ticks are whole numbers of their unit.
fn tick_label(value_ns: f64) -> String {
    match value_ns {
        ns if ns < 1e3 => format!("{ns:.0} ns"),
        ns if ns < 1e6 => format!("{:.0} µs", ns / 1e3),
        ns if ns < 1e9 => format!("{:.0} ms", ns / 1e6),
        ns => format!("{:.0} s", ns / 1e9),
    }
}

fn text(size: i32) -> TextStyle<'static> {
    (FontFamily::SansSerif, size, FontStyle::Normal)
        .into_font()
        .color(&AXIS)
}

/// Vermilion and blue of the Okabe-Ito palette: told apart by most colour-blind readers.
const OURS: RGBColor = RGBColor(213, 94, 0);
const FLOOR: RGBColor = RGBColor(0, 114, 178);
const GRID: RGBColor = RGBColor(221, 221, 221);
const AXIS: RGBColor = RGBColor(51, 51, 51);

const TITLE: &str = "Round trips of one push and one pull: share of all by duration, beside what they stand on. \
                     The line is the median.";
const TITLE_HEIGHT: u32 = 40;

const COLUMNS: usize = 2;
const PANEL_WIDTH: u32 = 620;
const PANEL_HEIGHT: u32 = 270;

/// Fine enough to show two humps that are 6 % apart, coarse enough for few samples.
const STEPS_PER_DECADE: f64 = 40.0;

/// Room for the legend.
const HEADROOM: f64 = 1.45;

/// How far the axis goes beyond what it shows.
const MARGIN: f64 = 1.15;

/// From this factor on an axis has fewer ticks for each power of ten: their labels would touch.
const WIDE: f64 = 30.0;

/// An axis spans a factor of this at least.
const NARROWEST: f64 = 4.0;

#[cfg(test)]
mod tests {
    use super::{curve, range, tick_label, ticks, write};
    use crate::bench::case::Panel;
    use crate::bench::statistics::{Distribution, Recorder};

    fn distribution(values: impl IntoIterator<Item = u64>) -> Distribution {
        let mut recorder = Recorder::new().unwrap();
        values.into_iter().for_each(|value| recorder.record(value));
        recorder.distribution()
    }

    #[test]
    fn a_curve_has_all_that_its_range_covers() {
        let values = distribution(100..200);
        let curve = curve(&values, &range([&values].into_iter()));
        // Each bin has two corners.
        let sum: f64 = curve.iter().map(|(_, share)| share / 2.0).sum();
        assert!((sum - 1.0).abs() < 0.01, "{sum}");
    }

    #[test]
    fn ticks_lie_in_the_range_and_read_as_whole_numbers() {
        let labels = |range| -> Vec<String> {
            let ticks = ticks(&range).into_iter();
            ticks.map(tick_label).collect()
        };
        let wide = labels(150.0..6_000.0);
        assert_eq!(wide, ["200 ns", "500 ns", "1 µs", "2 µs", "5 µs"]);
        assert_eq!(
            labels(250.0..1_100.0),
            ["300 ns", "500 ns", "700 ns", "1 µs"]
        );
    }

    #[test]
    fn the_picture_is_an_svg_file_with_each_panel_even_without_samples() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("picture.svg");
        let full = Panel {
            title: "first panel".into(),
            ours: distribution(1_000..2_000),
            floor: Some(("bare", distribution(300..500))),
        };
        let empty = Panel {
            title: "second panel".into(),
            ours: distribution([]),
            floor: None,
        };
        write(&[&full, &empty], &path).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        for part in ["<svg", "</svg>", "first panel", "second panel", "bare: p50"] {
            assert!(text.contains(part), "{part}");
        }
    }
}
