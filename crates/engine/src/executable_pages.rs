//! The pages of this program's own file: most of what starting it needed is needed no more.

#![allow(unsafe_code, reason = "pages are given back by their address")]

/// Lets the system have the pages of this program's file back; those that are needed again are read
/// from its file.
pub fn release_executable_pages() {
    let Ok(own) = std::fs::read_link("/proc/self/exe") else { return };
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return };
    let own = own.display().to_string();
    for line in maps.lines() {
        // ADDRESS-ADDRESS r-xp OFFSET DEVICE INODE PATH
        let mut fields = line.split_ascii_whitespace();
        let (Some(range), Some(access)) = (fields.next(), fields.next()) else { continue };
        // Some of what is only read was written to while the program was loaded, and is kept by a
        // system that has nowhere else to put it.
        let advice = match access {
            "r-xp" => libc::MADV_DONTNEED,
            "r--p" => libc::MADV_PAGEOUT,
            _ => continue,
        };
        if fields.nth(3) != Some(own.as_str()) {
            continue;
        }
        let parse = |text: &str| usize::from_str_radix(text, 16).ok();
        let Some((start, end)) = range.split_once('-') else { continue };
        let (Some(start), Some(end)) = (parse(start), parse(end)) else { continue };
        let address = std::ptr::with_exposed_provenance_mut(start);
        // SAFETY: code can't be written to, so that what is read again from the file is what was
        // there; what is paged out comes back as it was. Advice that is not taken costs memory and
        // nothing else.
        unsafe { libc::madvise(address, end.saturating_sub(start), advice) };
    }
}
