//! Scoring on a CUDA device, where the tables of the summaries in use stay.

use kvatlas_kernels::cuda::{
    Cuda, CudaError, DeviceScales, DeviceScores, DeviceTable, Plane, Selection,
};
use kvatlas_kernels::rank;
use kvatlas_kernels::score::RowQuery;

use super::{Answer, Order, Want, complete, order_by_head, tables};
use crate::routing::query::{Plan, WhichTable};
use crate::routing::summary::KeySummary;

/// Tables that stay on the device; with one more the one that was used longest ago goes. The
/// largest ones take 1.3 GiB, so it is the memory that ends first.
const RESIDENT_MAX: usize = 256;
/// Memory of the device that is left for queries and scores, in bytes.
const FREE_BYTES_MIN: usize = 512 << 20;

#[derive(Debug)]
pub(super) struct CudaScorer {
    cuda: Cuda,
    /// The one that was used last is at the end.
    resident: Vec<(Key, Resident)>,
}

/// A summary's generation, and which of its tables.
type Key = (u64, Part);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Means,
    Extremes,
    Magnitudes,
    InverseNorms,
}

#[derive(Debug)]
enum Resident {
    Table(DeviceTable),
    Scales(DeviceScales),
}

/// `None`: the tables do not fit into the device's memory.
type OnDevice<T> = Result<Option<T>, CudaError>;

impl CudaScorer {
    pub(super) fn new(cuda: Cuda) -> Self {
        Self {
            cuda,
            resident: Vec::new(),
        }
    }

    pub(super) fn rows(
        &mut self,
        summary: &KeySummary,
        which: WhichTable,
        queries: &[&RowQuery],
        want: &Want,
    ) -> OnDevice<Vec<Answer>> {
        let Some(table) = self.table(summary, part(which))? else {
            return Ok(None);
        };
        let mut scores = self.cuda.row_dots(&table, queries)?;
        let planes = (0..queries.len()).map(|query| Plane::Pooled { query });
        let orders = orders(&mut scores, planes.collect(), want)?;
        let answer = |order| Answer {
            order,
            survivors: None,
        };
        Ok(Some(orders.into_iter().map(answer).collect()))
    }

    pub(super) fn heads(
        &mut self,
        summary: &KeySummary,
        plan: &Plan,
        want: &Want,
    ) -> OnDevice<Order> {
        let mut scores = match plan {
            Plan::Rows { .. } => unreachable!("a plan over whole rows goes to `rows`"),
            Plan::Heads {
                table,
                query,
                aggregate,
                cosine,
            } => {
                let Some(table) = self.table(summary, part(*table))? else {
                    return Ok(None);
                };
                let scales = if *cosine {
                    let Some(scales) = self.scales(summary)? else {
                        return Ok(None);
                    };
                    Some(scales)
                } else {
                    None
                };
                let queries = [query];
                self.cuda
                    .head_scores(&table, &queries, *aggregate, scales.as_ref())?
            }
            Plan::Calibrated { means, magnitudes } => {
                let of_means = self.table(summary, Part::Means)?;
                let of_magnitudes = self.table(summary, Part::Magnitudes)?;
                let (Some(of_means), Some(of_magnitudes)) = (of_means, of_magnitudes) else {
                    return Ok(None);
                };
                let (means, magnitudes) = ([means], [magnitudes]);
                self.cuda
                    .calibrated_scores((&of_means, &means), (&of_magnitudes, &magnitudes))?
            }
        };
        if *want != Want::PerHead {
            let planes = vec![Plane::Pooled { query: 0 }];
            return Ok(orders(&mut scores, planes, want)?.pop());
        }
        let per_head = scores.per_head(0)?;
        Ok(Some(order_by_head(per_head, summary)))
    }

    fn table(&mut self, summary: &KeySummary, part: Part) -> OnDevice<DeviceTable> {
        let tables = tables(summary);
        let table = match part {
            Part::Means => tables.means(),
            Part::Extremes => tables.extremes().expect("quest is planned with them"),
            Part::Magnitudes => tables.magnitudes().expect("kri-t is planned with them"),
            Part::InverseNorms => unreachable!("factors are no table"),
        };
        let upload = |cuda: &mut Cuda| cuda.upload(&table).map(Resident::Table);
        let key = (summary.generation, part);
        Ok(match self.resident(key, table.bytes(), upload)? {
            Some(Resident::Table(table)) => Some(table.clone()),
            Some(Resident::Scales(_)) | None => None,
        })
    }

    fn scales(&mut self, summary: &KeySummary) -> OnDevice<DeviceScales> {
        let norms = tables(summary).inverse_norms();
        let parts = norms.len() / summary.shape.blocks as usize;
        let upload = |cuda: &mut Cuda| cuda.upload_scales(norms, parts).map(Resident::Scales);
        let key = (summary.generation, Part::InverseNorms);
        Ok(match self.resident(key, size_of_val(norms), upload)? {
            Some(Resident::Scales(scales)) => Some(scales.clone()),
            Some(Resident::Table(_)) | None => None,
        })
    }

    /// What is under a key, uploaded if need be; others make room.
    fn resident(
        &mut self,
        key: Key,
        bytes: usize,
        upload: impl FnOnce(&mut Cuda) -> Result<Resident, CudaError>,
    ) -> OnDevice<&Resident> {
        if let Some(at) = self.resident.iter().position(|(other, _)| *other == key) {
            let used = self.resident.remove(at);
            self.resident.push(used);
        } else {
            while self.resident.len() >= RESIDENT_MAX || self.is_short_of(bytes)? {
                // The tables of the summary at hand are needed together.
                let (generation, _) = key;
                let oldest = |((other, _), _): &(Key, Resident)| *other != generation;
                let Some(oldest) = self.resident.iter().position(oldest) else {
                    return Ok(None);
                };
                self.resident.remove(oldest);
            }
            let uploaded = upload(&mut self.cuda)?;
            self.resident.push((key, uploaded));
        }
        Ok(self.resident.last().map(|(_, resident)| resident))
    }

    fn is_short_of(&self, bytes: usize) -> Result<bool, CudaError> {
        let (free, _) = self.cuda.device.memory()?;
        Ok(free < bytes.saturating_add(FREE_BYTES_MIN))
    }
}

fn part(which: WhichTable) -> Part {
    match which {
        WhichTable::Means => Part::Means,
        WhichTable::Extremes => Part::Extremes,
    }
}

/// An order for each plane.
fn orders(
    scores: &mut DeviceScores<'_>,
    planes: Vec<Plane>,
    want: &Want,
) -> Result<Vec<Order>, CudaError> {
    let rows = scores.rows;
    let Want::Best { among, k } = want else {
        let planes = planes.into_iter();
        let order = |plane| Ok(Order::Pooled(rank(&scores.plane(plane)?)));
        return planes.map(order).collect();
    };
    let selection = |plane| Selection {
        plane,
        among: among.clone(),
        k: *k,
    };
    let selections: Vec<_> = planes.into_iter().map(selection).collect();
    let best = scores.best(&selections)?;
    let order = |best| Order::Pooled(complete(best, rows));
    Ok(best.into_iter().map(order).collect())
}
