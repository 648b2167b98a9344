//! Tables and queries that are hard to screen: huge, tiny, constant, equal, out of proportion.

use super::*;

#[derive(Clone, Copy, Debug)]
enum Channel {
    Plain,
    Constant,
    Huge,
    Tiny,
    /// Zero but for one block.
    Once,
}

#[derive(Clone, Copy, Debug)]
enum Block {
    Plain,
    Constant,
    Zero,
    Huge,
    Tiny,
    /// As small as the elements get.
    Subnormal,
    /// Of the block before.
    Copy,
    /// Of the block before, with one element a little larger.
    NearCopy,
}

#[derive(Clone, Debug)]
struct Case {
    blocks: Vec<Block>,
    channels: Vec<Channel>,
    is_f16: bool,
    /// Powers of two: what is huge, and the query's size.
    huge: i32,
    query: i32,
    seed: u64,
    spans: Vec<Range<usize>>,
    wanted: Wanted,
}

impl Case {
    fn elements(&self) -> Vec<f32> {
        let mut random = Random(self.seed);
        let width = self.channels.len();
        let once = random.below(self.blocks.len());
        let (huge, tiny) = (2.0_f32.powi(self.huge), 2.0_f32.powi(-self.huge));
        let mut elements: Vec<f32> = Vec::new();
        for (index, block) in self.blocks.iter().enumerate() {
            let before = elements.len().saturating_sub(width);
            let before = elements[before..].to_vec();
            let plain = self.channels.iter().map(|channel| match channel {
                Channel::Plain => random.heavy(),
                Channel::Constant => 0.3,
                Channel::Huge => random.normal() * huge,
                Channel::Tiny => random.normal() * tiny,
                Channel::Once if index == once => huge,
                Channel::Once => 0.0,
            });
            let plain: Vec<f32> = plain.collect();
            let row: Vec<f32> = match block {
                Block::Copy if index > 0 => before,
                Block::NearCopy if index > 0 => {
                    let mut row = before;
                    let column = random.below(width);
                    row[column] *= 1.001;
                    row
                }
                Block::Plain | Block::Copy | Block::NearCopy => plain,
                Block::Constant => vec![random.normal(); width],
                Block::Zero => vec![0.0; width],
                Block::Huge => plain.iter().map(|value| value * huge).collect(),
                Block::Tiny => plain.iter().map(|value| value * tiny).collect(),
                Block::Subnormal => {
                    let least = if self.is_f16 { 6e-8 } else { 1e-45 };
                    plain.iter().map(|value| value.trunc() * least).collect()
                }
            };
            elements.extend(row);
        }
        let largest = if self.is_f16 {
            f16::MAX.to_f32()
        } else {
            f32::MAX
        };
        elements
            .iter()
            .map(|value| value.clamp(-largest, largest))
            .collect()
    }

    fn query(&self) -> RowQuery {
        let mut random = Random(!self.seed);
        let size = 2.0_f32.powi(self.query);
        let columns = self.spans.iter().map(ExactSizeIterator::len).sum();
        RowQuery::new(
            self.spans.clone(),
            (0..columns).map(|_| random.heavy() * size).collect(),
        )
    }
}

fn cases() -> impl Strategy<Value = Case> {
    let blocks = select(vec![
        Block::Plain,
        Block::Plain,
        Block::Plain,
        Block::Constant,
        Block::Zero,
        Block::Huge,
        Block::Tiny,
        Block::Subnormal,
        Block::Copy,
        Block::NearCopy,
    ]);
    let channels = select(vec![
        Channel::Plain,
        Channel::Plain,
        Channel::Plain,
        Channel::Constant,
        Channel::Huge,
        Channel::Tiny,
        Channel::Once,
    ]);
    // Mostly plain, else mixed.
    let blocks = prop_oneof![Just(Block::Plain).boxed(), blocks.boxed()];
    let blocks = prop::collection::vec(blocks, 1..120);
    let channels = prop_oneof![Just(Channel::Plain).boxed(), channels.boxed()];
    let channels = prop::collection::vec(channels, 1..200);
    let sizes = (any::<bool>(), 0_i32..100, -140_i32..100, any::<u64>());
    (blocks, channels, sizes).prop_flat_map(|(blocks, channels, (is_f16, huge, query, seed))| {
        let (rows, width) = (blocks.len(), channels.len());
        let ends = prop::collection::vec(0..=width, 1..5);
        let k = prop_oneof![1..=rows, 1..=rows.div_ceil(8)];
        let among = prop_oneof![Just((0, rows)), (0..=rows, 0..=rows)];
        (Just((blocks, channels)), ends, k, among).prop_map(
            move |((blocks, channels), mut ends, k, among)| {
                ends.sort_unstable();
                let spans = ends.windows(2).map(|ends| ends[0]..ends[1]).step_by(2);
                let mut spans: Vec<_> = spans.filter(|span| !span.is_empty()).collect();
                if spans.is_empty() {
                    spans.push(0..width);
                }
                let among = among.0.min(among.1)..among.0.max(among.1);
                let wanted = wanted(among, k);
                Case {
                    blocks,
                    channels,
                    is_f16,
                    huge,
                    query,
                    seed,
                    spans,
                    wanted,
                }
            },
        )
    })
}

proptest! {
    #[test]
    fn answers_are_those_of_the_full_pass(case in cases(), level in select(&Level::ALL)) {
        let Some(cpu) = Cpu::start_at(level, 2).unwrap() else {
            return Ok(());
        };
        let wide = case.elements();
        let narrow: Vec<f16> = wide.iter().copied().map(f16::from_f32).collect();
        let elements = if case.is_f16 { Elements::F16(&narrow) } else { Elements::F32(&wide) };
        let table = Table::new(elements, case.channels.len());
        let screen = OwnedScreen::new(&table, !case.seed);
        check(&cpu, &table, &screen, &case.query(), &case.wanted);
    }
}
