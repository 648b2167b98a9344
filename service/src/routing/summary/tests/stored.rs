//! What torch wrote and numpy computed; restarts, replacements, pages, agreement with priors.

use super::*;

/// Puts a cartridge and what numpy made of it, both as summaries, and checks them.
fn check_fixture(name: &str, block_size: u32, layout: PairLayout, layers: u32, head_dim: u16) {
    let fixture = Fixture::new();
    let frame = KeyFrame {
        layout,
        ..frame(layers, head_dim, block_size)
    };
    let layout = format!("{layout:?}").to_lowercase();
    let numpy = fixture_file(&format!("summary/{name}_{block_size}_{layout}.safetensors"));
    let mut tensors = TensorFile::open(&numpy, None).unwrap();
    let mut read = |name| tensor(&mut tensors, name).unwrap();
    let expected = Expected {
        means: read("key_means"),
        extremes: Some(["key_min", "key_max"].map(&mut read)),
        magnitudes: Some(read("key_magnitudes")),
    };
    let cartridge = fixture_file(&format!("pt/{name}.pt"));
    for file in [cartridge, numpy] {
        let put = fixture.put("p", &frame, &file).unwrap();
        check(&fixture.store, &put.summary, &expected);
        assert_eq!(put.summary.shape.frame, frame);
    }
}

#[test]
fn cartridges_make_what_numpy_makes_of_them() {
    check_fixture("cart_list", 16, PairLayout::Half, 3, 16);
    check_fixture("cart_list", 24, PairLayout::Interleaved, 3, 16);
    check_fixture("cart_trainable", 16, PairLayout::Interleaved, 4, 8);
    check_fixture("cart_trainable", 5, PairLayout::Half, 4, 8);
}

#[test]
fn parameter_lists_and_fixed_keys_make_what_numpy_makes_of_them() {
    check_fixture("cart_modules", 3, PairLayout::Half, 11, 4);
    check_fixture("cart_modules_protocol4", 4, PairLayout::Interleaved, 11, 4);
    check_fixture("cart_fixed", 3, PairLayout::Half, 11, 4);
}

#[test]
fn a_cartridge_that_is_an_object_is_refused_by_name() {
    let refused = Fixture::new().put("p", &frame(2, 8, 16), &fixture_file("pt/cart_object.pt"));
    let message = refused.unwrap_err().to_string();
    assert!(message.contains("__main__.TrainableCache"), "{message}");
}

/// Means alone: two layers, one head, of so many blocks.
fn means_file(blocks: usize) -> Vec<u8> {
    let values: Vec<f32> = (0_u16..).map(f32::from).take(2 * blocks * 4).collect();
    file(&[("key_means", Element::F16, &[2, 1, blocks, 4], &values)])
}

#[test]
fn a_summary_outlives_a_restart_and_is_replaced_whole() {
    let fixture = Fixture::new();
    let frame = frame(2, 4, 16);
    let first = fixture.put("p", &frame, &means_file(3)).unwrap();
    assert!(!first.replaced && first.summary.tables().is_some());
    let files = fixture.blob_files();
    assert_eq!(files.len(), first.summary.blobs.all().count());
    let on_disk: u64 = files
        .iter()
        .map(|file| file.metadata().unwrap().len())
        .sum();
    assert_eq!(first.summary.stored_bytes(), on_disk);

    let fixture = fixture.reopen();
    assert_eq!((fixture.report.loaded, fixture.report.damaged), (1, 0));
    let names: Vec<_> = fixture.blob_files();
    assert_eq!(fixture.report.blobs.len(), names.len());
    let found = fixture.summaries.find("p").unwrap();
    assert!(
        found.tables().is_none(),
        "nothing is read before it is asked for"
    );
    assert_eq!(found.shape, first.summary.shape);
    let expected = Expected {
        means: (0_u16..24).map(f32::from).collect(),
        extremes: None,
        magnitudes: None,
    };
    check(&fixture.store, &found, &expected);
    assert!(fixture.summaries.is_current_generation(found.generation));

    let second = fixture.put("p", &frame, &means_file(5)).unwrap();
    assert!(second.replaced && second.summary.generation > found.generation);
    assert!(!fixture.summaries.is_current_generation(found.generation));
    assert_eq!(fixture.blob_files().len(), names.len());
    check(&fixture.store, &found, &expected);

    assert!(fixture.summaries.delete("p").unwrap());
    assert!(!fixture.summaries.delete("p").unwrap());
    assert!(
        !fixture
            .summaries
            .is_current_generation(second.summary.generation)
    );
    assert_eq!(fixture.blob_files().len(), 0);
    assert!(fixture.reopen().summaries.is_empty());
}

#[test]
fn pages_are_sorted_by_prefix() {
    let fixture = Fixture::new();
    for prefix in ["b1", "a", "b", "c"] {
        fixture
            .put(prefix, &frame(2, 4, 16), &means_file(1))
            .unwrap();
    }
    let list = |begins, after, limit| {
        let found = fixture.summaries.list(begins, after, limit);
        let names = found.iter().map(|summary| summary.prefix_hash.to_string());
        names.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(list("", None, 9), "a b b1 c");
    assert_eq!(list("b", None, 9), "b b1");
    assert_eq!(list("b", Some("b"), 9), "b1");
    assert_eq!(list("", Some("a"), 2), "b b1");
    assert_eq!(list("b", Some("a"), 1), "b");
}

#[test]
fn a_prior_and_a_summary_of_a_prefix_differ_by_one_block_at_most() {
    let mut fixture = Fixture::new();
    let frame = frame(2, 4, 16);
    fixture.put_prior("p", 10).unwrap();
    for blocks in [8, 12] {
        let refused = fixture.put("p", &frame, &means_file(blocks)).unwrap_err();
        assert!(
            matches!(refused, PutSummaryError::BlocksDiffer(_)),
            "{refused}"
        );
        assert!(
            refused
                .to_string()
                .contains(&format!("summary has {blocks} and a prior of it 10"))
        );
        assert_eq!(fixture.blob_files().len(), 0);
    }
    fixture.put("p", &frame, &means_file(9)).unwrap();
    fixture.put("other", &frame, &means_file(1)).unwrap();
    for restarted in [false, true] {
        if restarted {
            fixture = fixture.reopen();
        }
        fixture.put_prior("p", 8).unwrap();
        let refused = fixture.put_prior("p", 11).unwrap_err();
        assert!(
            refused.contains("summary has 9 and a prior of it 11"),
            "{refused}"
        );
    }
    fixture.summaries.delete("p").unwrap();
    fixture.put_prior("p", 11).unwrap();
}
