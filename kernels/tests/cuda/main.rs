//! The device's kernels: against their specification on the processor, and on a device where there
//! is one; and whether the checked-in PTX is theirs.

#[cfg(test)]
mod cases;
#[cfg(test)]
mod checked;
#[cfg(test)]
mod device;
#[cfg(test)]
mod ptx;
#[cfg(test)]
mod shim;
#[cfg(test)]
mod tools;
