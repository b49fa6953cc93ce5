//! What a folder lies on.

use super::Root;
use planforge_types::host::StorageFacts;
use std::path::{Path, PathBuf};

/// Of the file system that holds `folder`; `None` where the kernel does not tell.
pub(super) fn facts(root: &Root, folder: &Path) -> Option<StorageFacts> {
    let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    let mount = mount_of(&root.text("/proc/self/mountinfo")?, &folder)?;
    let room = rustix::fs::statvfs(&folder).ok();
    let (drive, rotational) = drive(root, &mount.device);
    Some(StorageFacts {
        filesystem: mount.filesystem,
        source: mount.source,
        total_bytes: room.as_ref().map(|room| room.f_blocks.saturating_mul(room.f_frsize)),
        free_bytes: room.as_ref().map(|room| room.f_bavail.saturating_mul(room.f_frsize)),
        drive,
        rotational,
    })
}

#[derive(Debug, PartialEq, Eq)]
struct Mount {
    /// `259:2`.
    device: String,
    filesystem: String,
    source: String,
}

/// The mount with the longest point that holds `folder`; of two at one point the later one hides the other.
fn mount_of(mountinfo: &str, folder: &Path) -> Option<Mount> {
    let mount = |line: &str| {
        let (before, after) = line.split_once(" - ")?;
        let fields: Vec<&str> = before.split(' ').collect();
        let point = PathBuf::from(unescaped(fields.get(4)?));
        let mut after = after.split(' ');
        let (filesystem, source) = (after.next()?.to_owned(), unescaped(after.next()?));
        let mount = Mount { device: (*fields.get(2)?).to_owned(), filesystem, source };
        folder.starts_with(&point).then(|| (point.components().count(), mount))
    };
    mountinfo.lines().filter_map(mount).max_by_key(|(depth, _)| *depth).map(|(_, mount)| mount)
}

/// Spaces and the like are written as `\040`.
fn unescaped(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        let octal = bytes.get(at + 1..at + 4).filter(|_| bytes[at] == b'\\');
        let value = octal.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        out.push(value.unwrap_or(bytes[at]));
        at += if value.is_some() { 4 } else { 1 };
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Name and kind of the drive behind a device number; a partition's are those of the drive that it is on.
fn drive(root: &Root, device: &str) -> (Option<String>, Option<bool>) {
    let folder = format!("/sys/dev/block/{device}");
    let read =
        |name: &str| root.text(&format!("{folder}/{name}")).or_else(|| root.text(&format!("{folder}/../{name}")));
    (read("device/model"), read("queue/rotational").map(|text| text != "0"))
}

#[cfg(test)]
mod tests {
    use super::{super::tests::system, *};

    const MOUNTS: &str = "22 27 0:21 / /proc rw - proc proc rw\n\
                          27 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw\n\
                          40 27 0:50 / /scratch\\040room rw - tmpfs tmpfs rw,size=1g\n";

    #[test]
    fn a_folder_is_on_the_mount_that_is_nearest() {
        let of = |folder: &str| mount_of(MOUNTS, Path::new(folder)).map(|mount| mount.filesystem);
        assert_eq!(of("/home/a").as_deref(), Some("ext4"));
        assert_eq!(of("/scratch room/job").as_deref(), Some("tmpfs"));
        assert_eq!(of("/scratch rooms").as_deref(), Some("ext4"));
        assert_eq!(mount_of("nonsense\n1 2 - \n", Path::new("/")), None);
    }

    #[test]
    fn a_partitions_drive_is_named() {
        let (_folder, root) = system(&[
            ("/sys/dev/block/259:2/partition", "2\n"),
            ("/sys/dev/block/device/model", "Fast SSD 2TB\n"),
            ("/sys/dev/block/queue/rotational", "0\n"),
        ]);
        // The link to the partition's folder is a folder here, so that its parent is the one around it.
        assert_eq!(drive(&root, "259:2"), (Some("Fast SSD 2TB".into()), Some(false)));
        assert_eq!(drive(&root, "9:9"), (None, None));
    }
}
