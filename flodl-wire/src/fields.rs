//! Fixed fields, one behind the other: how every header and handshake message is written and read.

/// Writes fields one behind the other.
pub(crate) struct Writer<'a> {
    rest: &'a mut [u8],
}

impl<'a> Writer<'a> {
    /// Writes from the beginning of `out`, which must have room for all.
    pub(crate) fn new(out: &'a mut [u8]) -> Writer<'a> {
        Writer { rest: out }
    }

    pub(crate) fn put(&mut self, field: &[u8]) -> &mut Self {
        let (place, rest) = core::mem::take(&mut self.rest).split_at_mut(field.len());
        place.copy_from_slice(field);
        self.rest = rest;
        self
    }
}

/// Reads fields one behind the other. Whoever makes one has checked that there are bytes for all of them.
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { rest: bytes }
    }

    pub(crate) fn take<const N: usize>(&mut self) -> [u8; N] {
        let (field, rest) =
            self.rest.split_first_chunk().expect("the length was checked, and is the sum of the fields");
        self.rest = rest;
        *field
    }

    pub(crate) fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.take())
    }

    pub(crate) fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    pub(crate) fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }
}

/// Moves bytes from the front of `input` to the beginning of `space`, as many as fit, and says how many.
pub(crate) fn pour(input: &mut &[u8], space: &mut [u8]) -> usize {
    let n = space.len().min(input.len());
    let (bytes, rest) = input.split_at(n);
    space.split_at_mut(n).0.copy_from_slice(bytes);
    *input = rest;
    n
}
