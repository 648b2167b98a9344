//! A strict reader of OpenMetrics text: what it takes, every scraper takes.

use std::collections::{BTreeMap, BTreeSet};

type Labels = BTreeMap<String, String>;

/// A metric family as it was exposed.
#[derive(Debug)]
pub(crate) struct Family {
    pub(crate) kind: String,
    pub(crate) samples: Vec<Sample>,
}

#[derive(Debug)]
pub(crate) struct Sample {
    /// With its suffix.
    pub(crate) name: String,
    pub(crate) labels: Labels,
    pub(crate) value: f64,
}

/// Every family by name; panics with the line that is wrong.
pub(crate) fn parse(text: &str) -> BTreeMap<String, Family> {
    let body = text.strip_suffix("# EOF\n").expect("ends with EOF, once");
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let mut current = String::new();
    for line in body.lines() {
        if let Some(rest) = line.strip_prefix("# ") {
            let (what, rest) = rest.split_once(' ').expect(line);
            let (name, value) = rest.split_once(' ').expect(line);
            assert!(is_name(name), "{line}");
            if name != current {
                assert!(!families.contains_key(name), "not in one piece: {line}");
                let (kind, samples) = (String::new(), Vec::new());
                families.insert(name.to_owned(), Family { kind, samples });
                name.clone_into(&mut current);
            }
            let family = families.get_mut(name).unwrap();
            assert!(family.samples.is_empty(), "metadata behind samples: {line}");
            match what {
                "HELP" => assert!(!value.is_empty(), "{line}"),
                "TYPE" => {
                    assert!(family.kind.is_empty(), "a second type: {line}");
                    assert!(
                        ["counter", "gauge", "histogram", "info"].contains(&value),
                        "{line}"
                    );
                    value.clone_into(&mut family.kind);
                }
                "UNIT" => assert!(name.ends_with(&format!("_{value}")), "{line}"),
                _ => panic!("{line}"),
            }
            continue;
        }
        let family = families.get_mut(&current).expect(line);
        let sample = sample(line);
        let suffix = sample.name.strip_prefix(&current).expect(line);
        let suffixes: &[&str] = match family.kind.as_str() {
            "counter" => &["_total"],
            "gauge" => &[""],
            "histogram" => &["_bucket", "_sum", "_count"],
            _ => panic!("no type before: {line}"),
        };
        assert!(suffixes.contains(&suffix), "{line}");
        family.samples.push(sample);
    }
    for (name, family) in &families {
        check(name, family);
    }
    families
}

fn check(name: &str, family: &Family) {
    let mut seen = BTreeSet::new();
    for sample in &family.samples {
        let key = (sample.name.clone(), sample.labels.clone());
        assert!(seen.insert(key), "{name}: a series twice: {sample:?}");
        assert!(sample.value.is_finite(), "{sample:?}");
        let counts = family.kind != "gauge";
        assert!(!counts || sample.value >= 0.0, "{sample:?}");
    }
    if family.kind == "histogram" {
        check_histogram(name, family);
    }
}

fn check_histogram(name: &str, family: &Family) {
    let mut by_labels: BTreeMap<Labels, Vec<(f64, f64)>> = BTreeMap::new();
    let mut counts = BTreeMap::new();
    for sample in &family.samples {
        let mut labels = sample.labels.clone();
        let bound = labels.remove("le");
        match (sample.name.strip_prefix(name), bound) {
            (Some("_bucket"), Some(bound)) => {
                let bound = if bound == "+Inf" {
                    f64::INFINITY
                } else {
                    bound.parse().unwrap()
                };
                by_labels
                    .entry(labels)
                    .or_default()
                    .push((bound, sample.value));
            }
            (Some("_count"), None) => {
                counts.insert(labels, sample.value);
            }
            (Some("_sum"), None) => {}
            other => panic!("{other:?} of {name}"),
        }
    }
    assert_eq!(by_labels.len(), counts.len(), "{name}");
    for (labels, buckets) in by_labels {
        let is_sorted = buckets.is_sorted_by(|left, right| left.0 < right.0 && left.1 <= right.1);
        assert!(is_sorted, "{name} {labels:?}: {buckets:?}");
        let (last, all) = *buckets.last().unwrap();
        assert!(last.is_infinite(), "{name} {labels:?}");
        assert_eq!(Some(&all), counts.get(&labels), "{name} {labels:?}");
    }
}

fn sample(line: &str) -> Sample {
    let (series, value) = line.rsplit_once(' ').expect(line);
    let (name, labels) = match series.split_once('{') {
        None => (series, ""),
        Some((name, labels)) => (name, labels.strip_suffix('}').expect(line)),
    };
    assert!(is_name(name), "{line}");
    let mut found = BTreeMap::new();
    let mut rest = labels;
    while !rest.is_empty() {
        let (label, behind) = rest.split_once("=\"").expect(line);
        assert!(is_name(label), "{line}");
        // Values of ours need no escapes.
        let (value, behind) = behind.split_once('"').expect(line);
        assert!(!value.contains('\\'), "{line}");
        let is_new = found.insert(label.to_owned(), value.to_owned()).is_none();
        assert!(is_new, "{line}");
        rest = match behind.strip_prefix(',') {
            Some(more) => {
                assert!(!more.is_empty(), "{line}");
                more
            }
            None => {
                assert!(behind.is_empty(), "{line}");
                behind
            }
        };
    }
    Sample {
        name: name.to_owned(),
        labels: found,
        value: value.parse().expect(line),
    }
}

fn is_name(name: &str) -> bool {
    let is_inner = |it: char| it.is_ascii_alphanumeric() || it == '_';
    name.starts_with(|it: char| it.is_ascii_alphabetic()) && name.chars().all(is_inner)
}

#[test]
fn the_reader_refuses_what_a_scraper_would() {
    let good = "# HELP a Text.\n# TYPE a counter\na_total{b=\"c\"} 1\n# EOF\n";
    assert_eq!(parse(good).len(), 1);
    for bad in [
        "",
        "# HELP a Text.\n# TYPE a counter\na 1\n# EOF\n",
        "# HELP a Text.\na_total 1\n# EOF\n",
        "# TYPE a counter\na_total 1\na_total 1\n# EOF\n",
        "# TYPE a counter\na_total 1\n# TYPE b gauge\nb 1\n# TYPE a counter\n# EOF\n",
        "# TYPE a counter\na_total{b=\"c\",} 1\n# EOF\n",
        "# TYPE a counter\na_total -1\n# EOF\n",
        "# TYPE a_seconds gauge\n# UNIT a_seconds bytes\n# EOF\n",
        "# TYPE a histogram\na_bucket{le=\"1\"} 1\na_count 1\na_sum 1\n# EOF\n",
        "# TYPE a histogram\na_bucket{le=\"+Inf\"} 2\na_count 1\na_sum 1\n# EOF\n",
        "# TYPE a histogram\na_bucket{le=\"1\"} 3\na_bucket{le=\"+Inf\"} 2\na_count 2\na_sum 1\n\
         # EOF\n",
    ] {
        let read = std::panic::catch_unwind(|| parse(bad));
        assert!(read.is_err(), "{bad}");
    }
}
