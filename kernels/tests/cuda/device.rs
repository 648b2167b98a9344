//! The driver: that its absence is an error like any other, and the kernels on a device where
//! there is one.

use kvatlas_kernels::cuda::{BEST_MAX, BEST_TILE, Chosen, Cuda, CudaError, DeviceChoice};
use kvatlas_kernels::score::{Aggregate, Elements, Table};

use crate::cases::{Heads, Rows, check_best, check_calibrated, check_heads, check_rows};
use crate::{shim, tools};

#[test]
fn without_a_driver_there_is_an_error_and_no_panic() {
    // A device that no machine has: also where there is a driver.
    let error = Cuda::open(4096).expect_err("no such device");
    assert!(
        matches!(
            error,
            CudaError::NoDriver | CudaError::NoDevice { .. } | CudaError::Driver { .. }
        ),
        "{error}"
    );
    assert!(DeviceChoice::Cuda(4096).open().is_err());
    match DeviceChoice::Auto.open().unwrap() {
        Chosen::Cpu(why) => assert!(why.is_some(), "auto says why it is not the device"),
        Chosen::Cuda(cuda) => assert!(!cuda.device.name.is_empty()),
    }
}

#[test]
fn a_device_refuses_what_it_cannot_hold() {
    let elements = [0.0_f32; 16];
    let table = Table::new(Elements::F32(&elements), 8);
    let error = shim::open(0, None).upload(&table).expect_err("f32");
    assert!(matches!(error, CudaError::TableNotF16), "{error}");
}

#[test]
fn a_device_agrees() {
    let mut cuda = match Cuda::open(0) {
        Ok(cuda) => cuda,
        Err(error) => return tools::skip(&error.to_string(), "KVATLAS_REQUIRE_GPU"),
    };
    let llama = Heads {
        rows: 1021,
        width: 128,
        parts: 28 * 8,
        asked: &(0..28 * 8).collect::<Vec<_>>(),
        group: 3,
        queries: 2,
    };
    let width = llama.width * llama.parts;
    let spans = [0..width];
    let queries: [&[_]; 5] = [&spans; 5];
    check_rows(
        &mut cuda,
        1,
        Rows {
            rows: 1021,
            width,
            queries: &queries,
        },
    )
    .unwrap();
    check_rows(
        &mut cuda,
        2,
        Rows {
            rows: 37,
            width: 100,
            queries: &[&[3..9, 11..71]],
        },
    )
    .unwrap();
    for aggregate in [Aggregate::Mean, Aggregate::Max] {
        check_heads(&mut cuda, 3, llama, (aggregate, true)).unwrap();
        for (group, width) in [(1, 64), (4, 256), (8, 128), (5, 20), (9, 300)] {
            let heads = Heads {
                rows: 333,
                width,
                parts: 3,
                asked: &[0, 2],
                group,
                queries: 1,
            };
            check_heads(&mut cuda, 4, heads, (aggregate, false)).unwrap();
        }
    }
    check_calibrated(&mut cuda, 5, llama).unwrap();
    let rows = 5 * BEST_TILE - 3;
    check_best(
        &mut cuda,
        6,
        rows,
        &[(0..rows, 16), (3..rows - 1, BEST_MAX), (0..9, 4)],
    )
    .unwrap();
}
