//! The driver: that its absence is an error like any other, and the kernels on a device where
//! there is one.

use std::env;
use std::process::Command;

use kvatlas_kernels::cuda::{
    BEST_MAX, BEST_TILE, Chosen, Cuda, CudaError, DeviceChoice, DeviceScales, DeviceTable,
};
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
fn one_thread_may_open_a_device_for_another() {
    fn sent<T: Send>() {}
    fn shared<T: Send + Sync>() {}
    sent::<Cuda>();
    shared::<DeviceTable>();
    shared::<DeviceScales>();
}

#[test]
fn a_device_refuses_what_it_cannot_hold() {
    let elements = [0.0_f32; 16];
    let table = Table::new(Elements::F32(&elements), 8);
    let error = shim::open(0, None).upload(&table).expect_err("f32");
    assert!(matches!(error, CudaError::TableNotF16), "{error}");
}

#[test]
fn a_device_agrees_on_small_cases() {
    let Some(mut cuda) = open() else { return };
    let device = &cuda.device;
    assert!(device.memory().unwrap().0 > 0, "{}", device.name);
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
        for (group, width) in [(1, 64), (4, 256), (8, 128), (5, 20), (9, 300)] {
            let heads = Heads {
                rows: 333,
                width,
                parts: 3,
                asked: &[0, 2],
                group,
                queries: 1,
            };
            check_heads(&mut cuda, 4, heads, (aggregate, group > 4)).unwrap();
        }
    }
    let heads = Heads {
        rows: 77,
        width: 128,
        parts: 2,
        asked: &[0, 1],
        group: 3,
        queries: 2,
    };
    check_calibrated(&mut cuda, 5, heads).unwrap();
    let rows = BEST_TILE + 3;
    check_best(&mut cuda, 6, rows, &[(0..rows, 16), (0..9, 4)]).unwrap();
    // The same with each launch's time noted.
    cuda.device.times = Some(Vec::new());
    check_best(&mut cuda, 7, 99, &[(3..98, 95)]).unwrap();
    assert!(
        cuda.device
            .times
            .unwrap()
            .iter()
            .all(|(_, time)| *time > 0.0)
    );
}

#[test]
fn a_device_agrees_on_a_models_size() {
    let Some(mut cuda) = open() else { return };
    let llama = Heads {
        rows: 1021,
        width: 128,
        parts: 28 * 8,
        asked: &(0..28 * 8).collect::<Vec<_>>(),
        group: 3,
        queries: 2,
    };
    let width = llama.width * llama.parts;
    let spans = [0..width / 2, width / 2..width];
    let rows = Rows {
        rows: llama.rows,
        width,
        queries: &[&spans[..]; 5],
    };
    check_rows(&mut cuda, 1, rows).unwrap();
    for aggregate in [Aggregate::Mean, Aggregate::Max] {
        check_heads(&mut cuda, 3, llama, (aggregate, true)).unwrap();
    }
    check_calibrated(&mut cuda, 5, llama).unwrap();
    let rows = 5 * BEST_TILE - 3;
    let wanted = [(0..rows, 16), (3..rows - 1, BEST_MAX), (0..9, 4)];
    check_best(&mut cuda, 6, rows, &wanted).unwrap();
}

/// All that is said to a driver, said to one that is the shim: by another process, as a library
/// is looked for once.
#[test]
fn a_driver_is_asked_for_what_it_can_give() {
    let output = Command::new(env::current_exe().unwrap())
        .args(["--exact", "device::a_device_agrees_on_small_cases"])
        .env("LD_LIBRARY_PATH", shim::driver_folder())
        .env("KVATLAS_REQUIRE_GPU", "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{said}"
    );
}

fn open() -> Option<Cuda> {
    let opened = Cuda::open(0);
    opened
        .inspect_err(|error| tools::skip(&error.to_string(), "KVATLAS_REQUIRE_GPU"))
        .ok()
}
