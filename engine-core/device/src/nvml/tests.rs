//! The wrapper over a library that answers as the header says.

use super::{
    fake::{A100, Fake, H200},
    *,
};

const MIB: u64 = 1 << 20;

#[test]
fn what_a_board_tells_is_read_as_the_header_says() {
    let fake = Fake::new(&[]);
    let nvml = fake.open();
    assert_eq!((nvml.driver_version().as_deref(), nvml.cuda_driver_version()), (Ok("570.86.10"), Ok(12080)));
    assert_eq!(nvml.device_count(), Ok(3));
    let board = nvml.device_by_uuid(H200).unwrap();
    assert_eq!(board.uuid(), nvml.device_by_index(0).unwrap().uuid());
    assert_eq!((board.uuid().as_deref(), board.name().as_deref()), (Ok(H200), Ok("NVIDIA H200")));
    assert_eq!(board.board_part_number().as_deref(), Ok("900-21010-0140-030"));
    assert_eq!(board.vbios_version().as_deref(), Ok("96.00.BC.00.02"));
    let pci = Pci { bus_id: "00000000:1B:00.0".into(), device_id: 0x2335_10de, subsystem_id: 0x18be_10de };
    assert_eq!(board.pci(), Ok(pci));
    assert_eq!((board.compute_capability(), board.cores()), (Ok((9, 0)), Ok(16896)));
    assert_eq!(
        (board.memory_bus_bits(), board.max_pcie_width(), board.max_pcie_generation()),
        (Ok(6144), Ok(16), Ok(5))
    );
    assert_eq!((board.clock_mhz(Clock::Sm), board.clock_mhz(Clock::Memory)), (Ok(345), Ok(2619)));
    assert_eq!((board.max_clock_mhz(Clock::Sm), board.max_clock_mhz(Clock::Memory)), (Ok(1980), Ok(3201)));
    assert_eq!(board.application_clock_mhz(Clock::Sm), Ok(1755));
    assert_eq!((board.power_mw(), board.power_limit_mw(), board.temperature_c()), (Ok(112_500), Ok(700_000), Ok(41)));
    assert_eq!(board.utilization_percent(), Ok(37));
    assert_eq!(board.memory(), Ok(Memory { total: 143_771 * MIB, used: 500 * MIB }));
    assert_eq!(board.ecc(), Ok(Ecc { current: true, pending: false }));
    assert_eq!(board.uncorrected_errors(), Ok(5_000_000_000));
    assert_eq!((board.are_pages_pending(), board.is_persistent()), (Ok(true), Ok(true)));
    assert_eq!(board.compute_mode(), Ok(ComputeMode::ExclusiveProcess));
    assert_eq!(board.virtualization(), Ok(Virtualization::PassThrough));
    assert_eq!(board.recovery_action(), Ok(1));
    let reasons = board.throttle_reasons().unwrap();
    assert!(reasons.contains(ThrottleReasons::SW_POWER_CAP) && reasons.contains(ThrottleReasons::SW_THERMAL_SLOWDOWN));
    assert!(!reasons.contains(ThrottleReasons::HW_SLOWDOWN));
}

#[test]
fn slices_tell_their_own_size() {
    let fake = Fake::new(&[]);
    let nvml = fake.open();
    let board = nvml.device_by_uuid(A100).unwrap();
    assert_eq!((board.is_partitioned(), board.slice_slots()), (Ok(true), Ok(3)));
    let slice = board.slice(1).unwrap();
    assert_eq!(slice.name().as_deref(), Ok("NVIDIA A100-SXM4-40GB MIG 3g.20gb"));
    assert_eq!(slice.attributes(), Ok(SliceAttributes { multiprocessors: 42, gpu_slices: 3, memory_mib: 19968 }));
    assert!(board.slice(2).unwrap_err().is_not_found());
    assert!(nvml.device_by_uuid(H200).unwrap().is_partitioned().unwrap_err().is_not_supported());
}

#[test]
fn processes_are_listed_in_every_form_that_drivers_had() {
    for variant in [
        &["PROCESSES=3"][..],
        &["PROCESSES=3", "WIDE", "DRIVER=\"535.54.03\""],
        &["PROCESSES=2", "DRIVER=\"535.98\""],
        &["PROCESSES=2", "DRIVER=\"470.57.02\""],
        &["PROCESSES=1", "DRIVER=\"418.40.04\""],
    ] {
        let fake = Fake::new(variant);
        let nvml = fake.open();
        let device = nvml.device_by_uuid(H200).unwrap();
        // The list grows between the questions for its length and for itself.
        let listed = device.running_compute_processes().unwrap();
        assert_eq!(listed.len(), 40, "{variant:?}");
        for (index, process) in listed.into_iter().enumerate() {
            let used_bytes = (index > 0).then_some(index as u64 * MIB);
            assert_eq!(process, RunningProcess { pid: 2_000_000_000 + index as u32, used_bytes }, "{variant:?}");
        }
        assert_eq!(nvml.device_by_uuid(A100).unwrap().running_compute_processes(), Ok(Vec::new()));
        assert!(device.running_graphics_processes().unwrap_err().is_not_supported(), "{variant:?}");
    }
}

#[test]
fn the_driver_versions_with_the_widest_entries_are_known() {
    assert!(["535.43.02", "535.54.03", "535.86.05", "535.86"].into_iter().all(ffi::wide_processes));
    assert!(!["530.41.03", "535.98", "535.104.05", "550.54.14", "535", "", "x.y"].into_iter().any(ffi::wide_processes));
}

#[test]
fn samples_and_accounts_of_processes_are_read() {
    let fake = Fake::new(&[]);
    let nvml = fake.open();
    let device = nvml.device_by_uuid(H200).unwrap();
    let samples = device.process_utilization(0).unwrap();
    assert_eq!(samples.len(), 2);
    let first = UtilizationSample {
        pid: 7001,
        timestamp_us: 5_000_000,
        sm_percent: 40,
        memory_percent: 3,
        encoder_percent: 2,
        decoder_percent: 1,
    };
    assert_eq!(samples[0], first);
    assert!(device.process_utilization(5_200_000).unwrap_err().is_not_found(), "nothing since");
    assert_eq!(device.utilization_samples_kept(), Ok(119));
    assert_eq!((device.is_accounting_enabled(), device.accounting_pids()), (Ok(true), Ok(vec![8001, 8002])));
    assert_eq!(device.account_of(8001), Ok(Account { is_running: false, start_us: 7_000_000, time_ms: 300 }));
    assert_eq!(device.account_of(8002).map(|account| account.is_running), Ok(true));
    assert!(device.account_of(1).unwrap_err().is_not_found());
}

#[test]
fn errors_of_a_device_are_taken_once_and_sets_are_given_back() {
    let fake = Fake::new(&[]);
    let nvml = fake.open();
    let events = XidEvents::of(&nvml.device_by_uuid(H200).unwrap()).unwrap();
    // It holds the library by itself.
    drop(nvml);
    assert_eq!((fake.count("fake_initialised"), fake.count("fake_event_sets")), (1, 1));
    assert_eq!([events.take(), events.take(), events.take()], [Some(31), Some(79), None]);
    // Registering with a device that reports nothing leaves no set behind.
    let nvml = fake.open();
    let refused = XidEvents::of(&nvml.device_by_uuid(A100).unwrap()).unwrap_err();
    assert!(refused.is_not_supported());
    assert_eq!((fake.count("fake_initialised"), fake.count("fake_event_sets")), (2, 1));
}

#[test]
fn every_opening_of_the_library_is_shut_down() {
    let fake = Fake::new(&[]);
    // Keeps the library loaded, so that there is something to look at.
    let kept = fake.open();
    {
        let (first, second) = (fake.open(), kept.clone());
        let events = XidEvents::of(&first.device_by_uuid(H200).unwrap()).unwrap();
        assert_eq!((fake.count("fake_initialised"), fake.count("fake_event_sets")), (2, 1));
        drop((first, second, events));
    }
    assert_eq!((fake.count("fake_initialised"), fake.count("fake_event_sets")), (1, 0));
}

#[test]
fn an_old_driver_answers_what_it_can() {
    let fake = Fake::new(&["OLD", "PROCESSES=1", "DRIVER=\"418.40.04\""]);
    let nvml = fake.open();
    let device = nvml.device_by_uuid(H200).unwrap();
    assert_eq!(device.memory(), Ok(Memory { total: 143_771 * MIB, used: 1100 * MIB }), "by the first form");
    assert!(device.throttle_reasons().unwrap().contains(ThrottleReasons::SW_POWER_CAP), "by the first name");
    let missing = device.recovery_action().unwrap_err();
    assert!(missing.is_not_supported());
    assert_eq!(missing.to_string(), "nvmlDeviceGetFieldValues: not supported, the driver's library does not have it");
}

#[test]
fn errors_name_the_function_and_say_what_was_wrong() {
    let missing = Nvml::open_at("/nonexistent/libnvidia-ml.so.1".as_ref()).unwrap_err().to_string();
    assert!(missing.starts_with("/nonexistent/libnvidia-ml.so.1 cannot be loaded: "), "{missing}");
    let unloaded = Nvml::open_at(Fake::new(&["NO_DRIVER"]).path().as_os_str()).unwrap_err();
    assert_eq!(unloaded.to_string(), "nvmlInit_v2: the driver is not loaded");
    let fake = Fake::new(&[]);
    let nvml = fake.open();
    assert_eq!(nvml.device_by_uuid("GPU-none").unwrap_err().to_string(), "nvmlDeviceGetHandleByUUID: not found");
    assert_eq!(nvml.device_by_uuid("a\0b").unwrap_err().to_string(), "nvmlDeviceGetHandleByUUID: invalid argument");
    let lost = nvml.device_by_index(2).unwrap().uuid().unwrap_err();
    assert_eq!(lost.to_string(), "nvmlDeviceGetUUID: the GPU is lost");
    let sliced = nvml.device_by_uuid(A100).unwrap();
    assert_eq!(
        sliced.compute_mode().unwrap_err().to_string(),
        "nvmlDeviceGetComputeMode answered with the unknown value 77"
    );
    // The call succeeds, the field does not.
    assert!(sliced.recovery_action().unwrap_err().is_not_supported());
    assert_eq!(NvmlError::of("nvmlX", 999).unwrap_err().to_string(), "nvmlX: unknown error 999");
}

#[test]
fn numbers_of_fields_are_read_by_their_type() {
    let field =
        |value_type: u32, value: [u8; 8]| ffi::FieldValue { value_type, value, ..ffi::FieldValue::default() }.number();
    let word = 7u32.to_ne_bytes();
    let beside = [word[0], word[1], word[2], word[3], 0xff, 0xff, 0xff, 0xff];
    assert_eq!([field(1, beside), field(5, beside)], [Some(7); 2]);
    assert_eq!(
        [field(2, 9u64.to_ne_bytes()), field(3, 9u64.to_ne_bytes()), field(4, 9i64.to_ne_bytes())],
        [Some(9); 3]
    );
    assert_eq!(
        [field(4, (-1i64).to_ne_bytes()), field(5, [0xff; 8]), field(0, 1f64.to_ne_bytes()), field(99, [0; 8])],
        [None; 4]
    );
    let half = 3u16.to_ne_bytes();
    assert_eq!(field(6, [half[0], half[1], 9, 9, 9, 9, 9, 9]), Some(3));
}
