//! How often the schedules met what they are to meet: a check that never runs shows nothing.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Met {
    /// Looks at an exact rank, and at one that is to claim all that is there.
    Exact,
    Whole,
    /// Donors in device memory of which something is there.
    LiveDonor,
    DeviceLease,
    HostLease,
    /// Validations.
    DeviceValid,
    DeviceOver,
    HostValid,
    HostOver,
    Restart,
    Removal,
    /// Epochs begun, replays asked for, gaps, and batches that could not be read.
    Epoch,
    Replay,
    Gap,
    Damage,
}

const KINDS: usize = Met::Damage as usize + 1;

#[derive(Debug, Default)]
pub(crate) struct Tally([u64; KINDS]);

impl Tally {
    pub(crate) fn met(&mut self, met: Met) {
        self.many(met, 1);
    }

    pub(crate) fn many(&mut self, met: Met, times: u64) {
        self.0[met as usize] += times;
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine += theirs;
        }
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = (Met, u64)> + '_ {
        use Met::{
            Damage, DeviceLease, DeviceOver, DeviceValid, Epoch, Exact, Gap, HostLease, HostOver,
            HostValid, LiveDonor, Removal, Replay, Restart, Whole,
        };
        let kinds = [
            Exact,
            Whole,
            LiveDonor,
            DeviceLease,
            HostLease,
            DeviceValid,
            DeviceOver,
            HostValid,
            HostOver,
            Restart,
            Removal,
            Epoch,
            Replay,
            Gap,
            Damage,
        ];
        kinds.into_iter().map(|met| (met, self.0[met as usize]))
    }
}
