//! Numbers, shares and times as people read them.

/// With a comma between each three digits.
#[must_use]
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// That so many lines are another program's; nothing of none.
#[must_use]
pub fn connector_lines(count: u64) -> Option<String> {
    let are = match count {
        0 => return None,
        1 => "1 line is".to_owned(),
        _ => format!("{} lines are", grouped(count)),
    };
    Some(format!(
        "{are} of a vLLM connector's own audit, and left out"
    ))
}

/// Three digits and a unit: 1.24 M.
#[must_use]
pub fn short(number: u64) -> String {
    if number < 10_000 {
        return grouped(number);
    }
    scaled(real(number), 1_000.0, &["", " k", " M", " G", " T"])
}

/// As it was given, or with three digits and a unit.
#[must_use]
pub fn number(number: f64) -> String {
    if number < 10_000.0 {
        return number.to_string();
    }
    scaled(number, 1_000.0, &["", " k", " M", " G", " T"])
}

/// A part of a whole: 12.3 %; a dash of nothing.
#[must_use]
pub fn share(some: u64, all: u64) -> String {
    match all {
        0 => "–".into(),
        _ => percent(real(some) / real(all)),
    }
}

#[must_use]
pub fn percent(share: f64) -> String {
    let percent = share * 100.0;
    if percent > 0.0 && percent < 0.1 {
        return "< 0.1 %".into();
    }
    match percent {
        // Nothing but all is shown as all.
        99.95..100.0 => "99.9 %".into(),
        _ => format!("{percent:.1} %"),
    }
}

#[must_use]
pub fn microseconds(us: u64) -> String {
    if us < 1_000 {
        return format!("{us} µs");
    }
    scaled(real(us), 1_000.0, &[" µs", " ms", " s"])
}

/// The two largest units.
#[must_use]
pub fn duration(ms: u64) -> String {
    let s = ms / 1_000;
    match s {
        0 => format!("{ms} ms"),
        1..60 => format!("{s} s"),
        60..3_600 => two(s / 60, "min", s % 60, "s"),
        3_600..86_400 => two(s / 3_600, "h", s % 3_600 / 60, "min"),
        _ => two(s / 86_400, "d", s % 86_400 / 3_600, "h"),
    }
}

#[must_use]
pub fn seconds(seconds: f64) -> String {
    match seconds {
        ..1.0 => format!("{:.0} ms", seconds * 1_000.0),
        1.0..60.0 => format!("{seconds:.1} s"),
        60.0..3_600.0 => format!("{:.1} min", seconds / 60.0),
        _ => format!("{:.1} h", seconds / 3_600.0),
    }
}

#[must_use]
pub fn money(amount: f64, currency: &str) -> String {
    match amount {
        1_000.0.. => format!("{amount:.0} {currency}"),
        _ => format!("{amount:.2} {currency}"),
    }
}

/// `2026-11-30 16:05 UTC`, of unix milliseconds.
#[must_use]
pub fn moment(ms: u64) -> String {
    let (year, month, day) = civil(ms / 86_400_000);
    let minutes = ms / 60_000 % 1_440;
    let (hour, minute) = (minutes / 60, minutes % 60);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
}

/// `11-30 16:05`, or `16:05:09` where all of it is on one day.
#[must_use]
pub fn tick(ms: u64, on_one_day: bool) -> String {
    let (_, month, day) = civil(ms / 86_400_000);
    let seconds = ms / 1_000 % 86_400;
    let (hour, minute, second) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
    if on_one_day {
        format!("{hour:02}:{minute:02}:{second:02}")
    } else {
        format!("{month:02}-{day:02} {hour:02}:{minute:02}")
    }
}

// Year, month and day of a day since 1970, in the Gregorian calendar: Howard Hinnant,
// "chrono-compatible low-level date algorithms", civil_from_days.
fn civil(day: u64) -> (u64, u64, u64) {
    let since_march_0000 = day + 719_468;
    let era = since_march_0000 / 146_097;
    let of_era = since_march_0000 % 146_097;
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    (year, month, day)
}

fn two(large: u64, large_unit: &str, small: u64, small_unit: &str) -> String {
    match small {
        0 => format!("{large} {large_unit}"),
        _ => format!("{large} {large_unit} {small} {small_unit}"),
    }
}

fn scaled(mut number: f64, by: f64, units: &[&str]) -> String {
    let mut units = units.iter();
    let mut unit = units.next().copied().unwrap_or_default();
    for larger in units {
        // What rounds up to the next unit belongs to it.
        if number < by - 0.5 {
            break;
        }
        number /= by;
        unit = larger;
    }
    match number {
        ..9.995 => format!("{number:.2}{unit}"),
        9.995..99.95 => format!("{number:.1}{unit}"),
        _ => format!("{number:.0}{unit}"),
    }
}

#[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
fn real(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_and_a_unit() {
        for (number, text) in [
            (0, "0"),
            (9_999, "9,999"),
            (10_000, "10.0 k"),
            (12_345, "12.3 k"),
            (999_400, "999 k"),
            (999_600, "1.00 M"),
            (1_234_567_890, "1.23 G"),
        ] {
            assert_eq!(short(number), text);
        }
        for (us, text) in [(7, "7 µs"), (1_500, "1.50 ms"), (2_000_000, "2.00 s")] {
            assert_eq!(microseconds(us), text);
        }
    }

    #[test]
    fn shares_never_round_to_nothing_or_to_all() {
        for (some, all, text) in [
            (0, 0, "–"),
            (0, 10, "0.0 %"),
            (1, 100_000, "< 0.1 %"),
            (1, 3, "33.3 %"),
            (99_999, 100_000, "99.9 %"),
            (10, 10, "100.0 %"),
        ] {
            assert_eq!(share(some, all), text);
        }
    }

    #[test]
    fn moments_are_dates() {
        for (ms, text) in [
            (0, "1970-01-01 00:00 UTC"),
            (951_782_400_000, "2000-02-29 00:00 UTC"),
            (1_709_251_199_000, "2024-02-29 23:59 UTC"),
            (4_107_542_400_000, "2100-03-01 00:00 UTC"),
        ] {
            assert_eq!(moment(ms), text);
        }
        assert_eq!(tick(951_782_461_000, true), "00:01:01");
        assert_eq!(tick(951_782_461_000, false), "02-29 00:01");
        for (ms, text) in [
            (5, "5 ms"),
            (61_000, "1 min 1 s"),
            (7_200_000, "2 h"),
            (90_000_000, "1 d 1 h"),
        ] {
            assert_eq!(duration(ms), text);
        }
    }
}
