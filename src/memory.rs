//! Room for what a call computes. A server survives that there is none.

use crate::error::Error;

/// An empty vector with room for so many entries.
pub(crate) fn room<R>(entries: usize) -> Result<Vec<R>, Error> {
    let mut room = Vec::new();
    room.try_reserve_exact(entries).map_err(|_| Error::Memory)?;
    Ok(room)
}

/// The entries as a vector.
pub(crate) fn collect<R>(entries: impl ExactSizeIterator<Item = R>) -> Result<Vec<R>, Error> {
    try_collect(entries.map(Ok))
}

/// The entries as a vector, or the first error.
pub(crate) fn try_collect<R, E: From<Error>>(
    entries: impl ExactSizeIterator<Item = Result<R, E>>,
) -> Result<Vec<R>, E> {
    let mut collected = room(entries.len())?;
    for entry in entries {
        collected.push(entry?);
    }
    Ok(collected)
}

/// Add an entry to a vector whose length nobody knows yet.
pub(crate) fn push<R>(entries: &mut Vec<R>, entry: R) -> Result<(), Error> {
    entries.try_reserve(1).map_err(|_| Error::Memory)?;
    entries.push(entry);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_memory_is_an_error() {
        assert_eq!(room::<u64>(usize::MAX / 8), Err(Error::Memory));
        assert_eq!(collect((0..usize::MAX / 8).map(|_| 0_u64)), Err(Error::Memory));
    }

    #[test]
    fn entries_keep_their_order() {
        let mut entries = collect([3, 1].into_iter()).expect("memory");
        push(&mut entries, 2).expect("memory");
        assert_eq!(entries, [3, 1, 2]);
        let fails = [Ok(1), Err(Error::Memory), Err(Error::Internal(String::new()))];
        assert_eq!(try_collect(fails.into_iter()), Err(Error::Memory));
    }
}
