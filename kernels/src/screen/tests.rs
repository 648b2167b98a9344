use half::f16;
use proptest::prelude::*;

use super::*;
use crate::score::{Cpu, Elements, RowQuery, Table, best};

/// The screened answer is the full pass's.
fn check(table: &Table<'_>, query: &RowQuery, wanted: &Wanted, seed: u64) -> Screened {
    let cpu = Cpu::start(1).unwrap();
    let screen = OwnedScreen::new(table, seed);
    screen.view().check().unwrap();
    let screened = screen.view().best(&cpu, table, query, wanted);
    let mut scores = vec![0.0; table.rows()];
    cpu.row_dots(table, &[query], &mut scores);
    assert_eq!(screened.best, best(&scores, wanted.among.clone(), wanted.k));
    screened
}

proptest! {
    #[test]
    fn random_tables(
        values in prop::collection::vec(-1.0_f32..1.0, 100 * 40),
        query in prop::collection::vec(-1.0_f32..1.0, 100),
        seed in any::<u64>(),
        k in 1_usize..40,
    ) {
        let values: Vec<f16> = values.into_iter().map(f16::from_f32).collect();
        let table = Table::new(Elements::F16(&values), 100);
        let query = RowQuery::new(vec![0..100], query);
        let wanted = Wanted { among: 0..40, k, failure_probability: FAILURE_PROBABILITY };
        check(&table, &query, &wanted, seed);
    }
}
