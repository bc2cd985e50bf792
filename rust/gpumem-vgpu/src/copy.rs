//! Copies between host and devices. What is read from a device is zeros, or what the host wrote there (`contents`), and
//! is counted.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::contents;
use crate::counts::HOST_READS;
use crate::entry::{Failure, Outcome};
use crate::platform::platform;

/// Called with the number of bytes at each read from a device.
pub(crate) type ReadHook = extern "C" fn(u64);

static READ_HOOK: AtomicUsize = AtomicUsize::new(0);

/// Call `hook` at each read from now on; none to stop.
pub(crate) fn set_read_hook(hook: Option<ReadHook>) {
    READ_HOOK.store(hook.map_or(0, |hook| hook as usize), Ordering::Release);
}

/// `cudaMemcpy` in whatever direction the addresses say.
pub(crate) fn copy(destination: usize, source: usize, bytes: usize) -> Outcome {
    copy_rows(destination, bytes, source, bytes, bytes, 1)
}

/// `height` rows of `width` bytes, whose beginnings lie a pitch apart.
///
/// # Errors
/// [`Failure::InvalidValue`] for null addresses, rows that overlap, and those that reach beyond the addresses there are.
pub(crate) fn copy_rows(
    destination: usize,
    destination_pitch: usize,
    source: usize,
    source_pitch: usize,
    width: usize,
    height: usize,
) -> Outcome {
    if width == 0 || height == 0 {
        return Ok(());
    }
    let reaches = |at: usize, pitch: usize| (height - 1).checked_mul(pitch)?.checked_add(width)?.checked_add(at);
    let overlaps = height > 1 && (destination_pitch < width || source_pitch < width);
    if destination == 0
        || source == 0
        || overlaps
        || reaches(destination, destination_pitch).is_none()
        || reaches(source, source_pitch).is_none()
    {
        return Err(Failure::InvalidValue);
    }
    let platform = platform()?;
    let (to_device, from_device) = (platform.is_device_address(destination), platform.is_device_address(source));
    if to_device && from_device && !contents::any() {
        return Ok(());
    }
    for row in 0..height {
        let (to, from) = (destination + row * destination_pitch, source + row * source_pitch);
        match (to_device, from_device) {
            (true, true) => contents::copy(to, from, width),
            // SAFETY: a host address that the caller says holds every row.
            (true, false) => contents::write(to, unsafe { std::slice::from_raw_parts(from as *const u8, width) }),
            (false, true) => {
                // SAFETY: the caller of a copy to the host gives room for every row; it is no device address.
                let row = unsafe {
                    (to as *mut u8).write_bytes(0, width);
                    std::slice::from_raw_parts_mut(to as *mut u8, width)
                };
                for (offset, bytes) in contents::read(from, width) {
                    if let Some(place) = row.get_mut(offset..offset + bytes.len()) {
                        place.copy_from_slice(&bytes);
                    }
                }
            }
            // SAFETY: both are host addresses that the caller says hold every row; they may overlap.
            (false, false) => unsafe { (to as *mut u8).copy_from(from as *const u8, width) },
        }
    }
    if from_device && !to_device {
        count_read((width as u64).saturating_mul(height as u64));
    }
    Ok(())
}

fn count_read(bytes: u64) {
    HOST_READS.fetch_add(1, Ordering::Relaxed);
    let hook = READ_HOOK.load(Ordering::Acquire);
    if hook != 0 {
        // SAFETY: only `set_read_hook` stores there, and it stores a `ReadHook`.
        let hook = unsafe { std::mem::transmute::<usize, ReadHook>(hook) };
        hook(bytes);
    }
}

/// `cudaMemset`: host memory is set; of device memory it is known afterwards that it is not what it was.
///
/// # Errors
/// [`Failure::InvalidValue`] for a null address.
pub(crate) fn fill(destination: usize, value: u8, bytes: usize) -> Outcome {
    if bytes == 0 {
        return Ok(());
    }
    if platform()?.is_device_address(destination) {
        contents::forget(destination, bytes);
        return Ok(());
    }
    if destination == 0 {
        return Err(Failure::InvalidValue);
    }
    // SAFETY: a host address that the caller says holds `bytes`.
    unsafe { (destination as *mut u8).write_bytes(value, bytes) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    static SEEN: AtomicUsize = AtomicUsize::new(0);

    extern "C" fn note(bytes: u64) {
        SEEN.fetch_add(usize::try_from(bytes).unwrap(), Ordering::Relaxed);
    }

    #[test]
    fn host_copies_are_made_and_device_reads_are_known_values_or_zeros_and_counted() {
        let device = usize::try_from(platform().unwrap().symbol_address()).unwrap();
        let source = [1_u8, 2, 3, 4];
        let mut target = [9_u8; 4];
        let at = target.as_mut_ptr() as usize;
        assert_eq!(copy(at, source.as_ptr() as usize, 3), Ok(()));
        assert_eq!(target, [1, 2, 3, 9]);
        assert_eq!(copy(device, at, 4), Ok(()));
        set_read_hook(Some(note));
        assert_eq!(copy_rows(at, 2, device, 3, 1, 2), Ok(()));
        assert_eq!(target, [1, 2, 9, 9]);
        contents::forget_all();
        assert_eq!(copy_rows(at, 2, device, 3, 1, 2), Ok(()));
        set_read_hook(None);
        assert_eq!(target, [0, 2, 0, 9]);
        assert_eq!(SEEN.load(Ordering::Relaxed), 4);
        assert_eq!(fill(at, 5, 2), Ok(()));
        assert_eq!(target, [5, 5, 0, 9]);
    }

    #[test]
    fn nonsense_is_an_error() {
        assert_eq!(copy(0, 8, 1), Err(Failure::InvalidValue));
        assert_eq!(copy(8, usize::MAX, 2), Err(Failure::InvalidValue));
        assert_eq!(copy_rows(8, usize::MAX, 8, 1, 1, 3), Err(Failure::InvalidValue));
        assert_eq!(copy_rows(8, 1, 8, 2, 2, 2), Err(Failure::InvalidValue));
        assert_eq!(copy(0, 0, 0), Ok(()));
        assert_eq!(fill(0, 1, 1), Err(Failure::InvalidValue));
    }
}
