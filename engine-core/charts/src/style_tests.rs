//! The palette: seen by everybody, on light and dark ground, and told apart with two kinds of cones.

use crate::{SERIES, STYLE};
use std::collections::BTreeMap;

/// Contrast of graphics and of text that WCAG 2.2 asks for.
const GRAPHICS: f64 = 3.0;
const TEXT: f64 = 4.5;

/// Least distance of two series in the plane of colours and lightness, as eyes with two kinds of cones have them. Marks
/// and dashes tell them apart as well.
const APART: f64 = 0.06;

type Rgb = [f64; 3];

/// Variables of the light and the dark palette.
fn palettes() -> [BTreeMap<String, Rgb>; 2] {
    let (light, rest) = STYLE.split_once("@media screen").expect("a dark palette");
    let dark = rest.split("@media (forced-colors").next().expect("the dark palette ends");
    [light, dark].map(|part| {
        let pairs = part.split("--c-").skip(1).filter_map(|text| {
            let (name, value) = text.split_once(": #")?;
            let channel = |at: usize| {
                let byte = u8::from_str_radix(value.get(at..at + 2)?, 16).ok()?;
                Some(linear(f64::from(byte) / 255.0))
            };
            Some((name.to_owned(), [channel(0)?, channel(2)?, channel(4)?]))
        });
        pairs.collect()
    })
}

fn linear(value: f64) -> f64 {
    if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
}

fn luminance([r, g, b]: Rgb) -> f64 {
    0.2126 * r + 0.7152 * g + 0.0722 * b
}

fn contrast(one: Rgb, other: Rgb) -> f64 {
    let (one, other) = (luminance(one) + 0.05, luminance(other) + 0.05);
    one.max(other) / one.min(other)
}

#[test]
fn series_and_words_stand_out_from_their_ground() {
    for palette in palettes() {
        let colour = |name: &str| palette[name];
        for series in 1..=SERIES {
            let found = contrast(colour(&format!("s{series}")), colour("ground"));
            assert!(found >= GRAPHICS, "s{series}: {found}");
        }
        for name in ["ink", "muted"] {
            assert!(contrast(colour(name), colour("ground")) >= TEXT, "{name}");
        }
        assert!(contrast(colour("muted"), colour("band")) >= TEXT, "words on the band");
        for shade in 1..=crate::heat::SHADES {
            let found = contrast(colour(&format!("h{shade}")), colour(&format!("y{shade}")));
            assert!(found >= TEXT, "shade {shade}: {found}");
        }
    }
}

#[test]
fn shades_go_one_way() {
    for palette in palettes() {
        let shades: Vec<f64> =
            (1..=crate::heat::SHADES).map(|shade| luminance(palette[&format!("h{shade}")])).collect();
        assert!(shades.is_sorted() || shades.iter().rev().is_sorted(), "{shades:?}");
    }
}

/// What eyes without one kind of cone have left of a colour: lightness, and blue against yellow (Viénot, Brettel and Mollon,
/// 1999, whose projection leaves red and green the same).
fn left([r, g, b]: Rgb, without_red: bool) -> (f64, f64) {
    let red_green = if without_red { 0.112_38 * r + 0.887_62 * g } else { 0.292_75 * r + 0.707_25 * g };
    let lightness = luminance([red_green, red_green, b]).cbrt();
    (lightness, b.cbrt() - red_green.cbrt())
}

#[test]
fn series_are_told_apart_with_two_kinds_of_cones() {
    for palette in palettes() {
        for without_red in [false, true] {
            for one in 1..=SERIES {
                for other in one + 1..=SERIES {
                    let seen = |series: usize| left(palette[&format!("s{series}")], without_red);
                    let (a, b) = (seen(one), seen(other));
                    let apart = (a.0 - b.0).hypot(a.1 - b.1);
                    assert!(apart >= APART, "s{one} and s{other}, without red {without_red}: {apart}");
                }
            }
        }
    }
}

#[test]
fn every_palette_sets_every_variable() {
    let [light, dark] = palettes();
    assert_eq!(light.keys().collect::<Vec<_>>(), dark.keys().collect::<Vec<_>>());
    let forced = STYLE.split_once("@media (forced-colors").expect("forced colours").1;
    for name in light.keys() {
        assert!(forced.contains(&format!("--c-{name}: ")), "forced colours leave {name}");
        assert!(STYLE.contains(&format!("var(--c-{name})")), "nothing has the colour {name}");
    }
}
