//! Tags that name policies, and many that do not.

use proptest::prelude::*;

use super::*;

fn ark(anchor: u32, recent: u32, middle: u32) -> Policy {
    Policy::AnchorRecentMiddle {
        anchor,
        recent,
        middle,
    }
}

#[test]
fn tags_and_their_canonical_spelling() {
    for (tag, policy, canonical) in [
        ("", Policy::TopK, "top-k"),
        ("top-k", Policy::TopK, "top-k"),
        ("Top-K", Policy::TopK, "top-k"),
        ("A1R2K13", ark(1, 2, 13), "A1R2K13"),
        ("a1r2k13", ark(1, 2, 13), "A1R2K13"),
        ("a1R0k0", ark(1, 0, 0), "A1R0K0"),
        ("A0R0K1048576", ark(0, 0, 1 << 20), "A0R0K1048576"),
        (
            "hybrid",
            Policy::Hybrid {
                anchor: 2,
                recent: 6,
            },
            "hybrid:2,6",
        ),
        (
            "HYBRID:0,4",
            Policy::Hybrid {
                anchor: 0,
                recent: 4,
            },
            "hybrid:0,4",
        ),
        ("recency", Policy::Recency, "recency"),
        (
            "anchor-recency-spread:1,2",
            Policy::AnchorRecencySpread {
                anchor: 1,
                recent: 2,
            },
            "anchor-recency-spread:1,2",
        ),
        (
            "random-middle:1,2,18446744073709551615",
            Policy::RandomMiddle {
                anchor: 1,
                recent: 2,
                seed: u64::MAX,
            },
            "random-middle:1,2,18446744073709551615",
        ),
        (
            "segment-quota:1,2,8",
            Policy::SegmentQuota {
                anchor: 1,
                recent: 2,
                segments: 8,
            },
            "segment-quota:1,2,8",
        ),
        ("per-head", Policy::PerHead, "per-head"),
    ] {
        assert_eq!(Policy::parse(tag), Ok(policy), "{tag}");
        assert_eq!(policy.to_string(), canonical);
    }
}

#[test]
fn budgets() {
    let budget = |tag| Policy::parse(tag).unwrap().fixed_budget();
    assert_eq!(budget("A1R2K13"), Some(16));
    assert_eq!(budget("hybrid"), Some(8));
    assert_eq!(budget("top-k"), None);
    assert_eq!(budget("segment-quota:1,2,8"), None);
}

/// (tag, part of its message)
const MALFORMED: &[(&str, &str)] = &[
    ("A1R2", "A<a>R<r>K<k>"),
    ("A1", "A<a>R<r>K<k>"),
    ("A1K13", "A<a>R<r>K<k>"),
    ("R2K13", "A<a>R<r>K<k>"),
    ("K13", "A<a>R<r>K<k>"),
    ("R2A1K13", "A<a>R<r>K<k>"),
    ("A1K13R2", "A<a>R<r>K<k>"),
    ("A1R2K13A1", "A<a>R<r>K<k>"),
    ("A1A1R2K13", "A<a>R<r>K<k>"),
    ("A1R2K13K13", "A<a>R<r>K<k>"),
    ("A1R2K", "A<a>R<r>K<k>"),
    ("AR2K13", "A<a>R<r>K<k>"),
    ("A1RK13", "A<a>R<r>K<k>"),
    ("A1R2K13 ", "A<a>R<r>K<k>"),
    (" A1R2K13", "unknown"),
    ("A1 R2 K13", "A<a>R<r>K<k>"),
    ("A1R2K13x", "A<a>R<r>K<k>"),
    ("xA1R2K13", "unknown"),
    ("A-1R2K13", "A<a>R<r>K<k>"),
    ("A+1R2K13", "A<a>R<r>K<k>"),
    ("A1.0R2K13", "A<a>R<r>K<k>"),
    ("A01R2K13", "A<a>R<r>K<k>"),
    ("A1R2K1048577", "from 0 to 1048576"),
    ("A1R2K99999999999999999999999", "from 0 to 1048576"),
    ("A1R2K\u{661}", "A<a>R<r>K<k>"),
    ("\u{410}1R2K13", "unknown"),
    ("A1R2K13\n", "A<a>R<r>K<k>"),
    ("A1R2K13:1", "A<a>R<r>K<k>"),
    ("A0R0K0", "budget of A/R/K is 0"),
    ("A1048576R1K0", "1 to 1048576"),
    ("A1048576R1048576K1048576", "budget of A/R/K is 3145728"),
    ("topk", "unknown"),
    ("top-k:", "top-k takes no arguments"),
    ("top-k:3", "top-k takes no arguments"),
    ("recency:4", "recency takes no arguments"),
    ("per-head:", "per-head takes no arguments"),
    ("hybrid:", "hybrid takes nothing or two"),
    ("hybrid:2", "hybrid takes nothing or two"),
    ("hybrid:2,", "hybrid takes nothing or two"),
    ("hybrid:,6", "hybrid takes nothing or two"),
    ("hybrid:2,6,1", "hybrid takes nothing or two"),
    ("hybrid:2;6", "hybrid takes nothing or two"),
    ("hybrid:2, 6", "hybrid takes nothing or two"),
    ("hybrid:-2,6", "hybrid takes nothing or two"),
    ("hybrid:2,6:1", "hybrid takes nothing or two"),
    ("hybrid:0,0", "budget of hybrid is 0"),
    ("hybrid:1048576,1", "budget of hybrid is 1048577"),
    ("hybrid(2,6)", "unknown"),
    ("anchor-recency-spread", "two whole numbers"),
    ("anchor-recency-spread:1", "two whole numbers"),
    (
        "anchor-recency-spread:1048576,1",
        "budget of anchor-recency-spread",
    ),
    ("random-middle:1,2", "three whole numbers"),
    ("random-middle:1,2,18446744073709551616", "below 2^64"),
    ("random-middle:1,2,-1", "three whole numbers"),
    ("random-middle:1,2,0x10", "three whole numbers"),
    ("segment-quota:1,2", "three whole numbers"),
    ("segment-quota:1,2,0", "1 to 4096 segments, not 0"),
    ("segment-quota:1,2,4097", "1 to 4096 segments, not 4097"),
    ("segment-quota:1,2,8,", "three whole numbers"),
    ("kri-q", "unknown"),
    (":", "unknown"),
    ("\0", "unknown"),
];

/// The message never repeats the value: a caller may put anything there.
#[test]
fn malformed_tags_are_refused_without_being_repeated() {
    for (tag, says) in MALFORMED {
        let error = Policy::parse(tag).expect_err(tag).to_string();
        assert!(error.contains(says), "{tag:?}: {error}");
    }
    for tag in [
        "secret",
        "A1R2K13secret",
        "hybrid:secret",
        "segment-quota:1,2,secret",
    ] {
        assert!(
            !Policy::parse(tag)
                .unwrap_err()
                .to_string()
                .contains("secret"),
            "{tag}"
        );
    }
    let secret = "s".repeat(TAG_BYTES_MAX + 1);
    let error = Policy::parse(&secret).unwrap_err();
    assert_eq!(error.to_string(), "a tag has at most 64 bytes, not 65");
    assert!(Policy::parse(&"9".repeat(1 << 20)).is_err());
}

pub(crate) fn any_policy() -> impl Strategy<Value = Policy> {
    let pins = (0u32..40, 0u32..40);
    prop_oneof![
        Just(Policy::TopK),
        Just(Policy::Recency),
        Just(Policy::PerHead),
        (pins.clone(), 1u32..40).prop_map(|((a, r), k)| ark(a, r, k)),
        (pins.clone(), 1u32..40)
            .prop_map(|((anchor, _), recent)| Policy::Hybrid { anchor, recent }),
        pins.clone()
            .prop_map(|(anchor, recent)| Policy::AnchorRecencySpread { anchor, recent }),
        (pins.clone(), any::<u64>()).prop_map(|((anchor, recent), seed)| {
            Policy::RandomMiddle {
                anchor,
                recent,
                seed,
            }
        }),
        (pins, prop_oneof![1u32..12, 1..=SEGMENTS_MAX]).prop_map(|((anchor, recent), segments)| {
            Policy::SegmentQuota {
                anchor,
                recent,
                segments,
            }
        }),
    ]
}

proptest! {
    #[test]
    fn the_canonical_spelling_is_read_back(policy in any_policy()) {
        let tag = policy.to_string();
        prop_assert!(tag.len() <= TAG_BYTES_MAX);
        prop_assert_eq!(Policy::parse(&tag), Ok(policy));
        prop_assert_eq!(Policy::parse(&tag.to_lowercase()), Ok(policy));
    }

    #[test]
    fn no_text_makes_it_panic(tag in "[ARKark0-9:,\\-a-z]{0,70}|\\PC{0,30}") {
        if let Ok(policy) = Policy::parse(&tag) {
            prop_assert_eq!(Policy::parse(&policy.to_string()), Ok(policy));
        }
    }
}
