//! Own hashes are equal where, and only where, everything before and in two blocks is.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::event::Adapter;
use crate::view::{Item, OwnHash, tenant_key};

#[derive(Clone, Debug)]
struct Asked {
    namespace: u128,
    adapter: Option<u8>,
    salt: Option<u8>,
    items: Vec<(u8, u32, u32)>,
    tokens: Vec<u32>,
    shape: Shape,
}

const TEXTS: [&str; 3] = ["", "a", "b"];

impl Asked {
    fn names(&self) -> Vec<OwnHash> {
        let text = |at: u8| TEXTS[usize::from(at)];
        let items: Vec<Item<'_>> = self
            .items
            .iter()
            .map(|&(id, start, tokens)| Item {
                id: text(id),
                start,
                tokens,
            })
            .collect();
        let adapter = self.adapter.map(|at| match at {
            0 => Adapter::Id(0),
            at => Adapter::Name(text(at)),
        });
        let tenant = self.salt.map(|salt| tenant_key(text(salt)));
        let prompt = Prompt {
            namespace: Namespace(self.namespace),
            adapter,
            tenant: tenant.as_deref(),
            items: &items,
            tokens: &self.tokens,
        };
        chain(&prompt, self.shape)
    }

    /// What each block is, in words.
    fn stories(&self) -> Vec<String> {
        let Shape {
            block_size,
            lookahead,
        } = self.shape;
        let salt = self.salt.filter(|salt| *salt > 0);
        let mut story = format!(
            "{} {:?} {salt:?} {:?}",
            self.namespace, self.adapter, self.shape
        );
        let mut stories = Vec::new();
        let mut start = 0;
        while start + block_size + lookahead <= self.tokens.len().try_into().expect("few") {
            let end = start + block_size;
            let window = &self.tokens[start as usize..(end + lookahead) as usize];
            let items: Vec<_> = self
                .items
                .iter()
                .filter(|(_, first, tokens)| {
                    (*first..first + tokens).any(|at| start <= at && at < end)
                })
                .collect();
            let items: Vec<_> = items.iter().map(|(id, first, _)| (id, first)).collect();
            story = format!("{story} | {window:?} {items:?}");
            stories.push(story.clone());
            start = end;
        }
        stories
    }
}

fn asked() -> impl Strategy<Value = Asked> {
    let items = prop::collection::vec((0..3_u8, 0..8_u32, 1..5_u32), 0..2);
    let shape = (1..3_u32, 0..2_u32).prop_map(|(block_size, lookahead)| Shape {
        block_size,
        lookahead,
    });
    let extras = (
        0..2_u128,
        prop::option::of(0..3_u8),
        prop::option::of(0..3_u8),
        items,
    );
    let tokens = prop::collection::vec(0..2_u32, 0..7);
    (extras, tokens, shape).prop_map(|((namespace, adapter, salt, items), tokens, shape)| Asked {
        namespace,
        adapter,
        salt,
        items,
        tokens,
        shape,
    })
}

proptest! {
    #[test]
    fn a_name_is_a_story(all in prop::collection::vec(asked(), 1..40)) {
        let (mut stories, mut names) = (HashMap::new(), HashMap::new());
        for one in all {
            prop_assert_eq!(one.names().len(), one.stories().len());
            for (name, story) in one.names().into_iter().zip(one.stories()) {
                prop_assert_eq!(stories.entry(name).or_insert_with(|| story.clone()), &story);
                prop_assert_eq!(*names.entry(story).or_insert(name), name);
            }
        }
    }
}

/// The first two tokens cancel the first eight bytes of the secret that xxh3 uses where it is given
/// none: whatever stands beside them would then count for nothing.
#[test]
fn no_two_blocks_have_one_name_by_arithmetic() {
    let names = |two: [u32; 2]| {
        let asked = Asked {
            namespace: 0,
            adapter: None,
            salt: None,
            items: Vec::new(),
            tokens: [&[0x396c_feb8, 0xbe4b_a423, two[0], two[1]], &[9; 12][..]].concat(),
            shape: Shape {
                block_size: 16,
                lookahead: 0,
            },
        };
        asked.names()
    };
    assert_ne!(names([1, 2]), names([777, 888]));
}
