//! IDX files, the format of the MNIST digits: plain or gzipped.
//!
//! ```text
//! 0 0 | type u8 | dimensions u8 | side u32 x dimensions | data        (big-endian, row-major)
//! ```
//!
//! Nothing is allocated on the word of a header: the sides must multiply to what the file can hold, and memory grows as
//! data comes.

use crate::dataset::Dataset;
use crate::trainee::Fault;
use flate2::read::GzDecoder;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// The element type this reader takes: unsigned bytes.
const UNSIGNED_BYTE: u8 = 0x08;

/// What deflate can make of one byte at the very most; a header that claims more is lying.
const DEFLATE_RATIO_MAX: u64 = 1032;

/// Why an IDX file, or a pair of them, cannot be used.
#[derive(Debug, Error)]
pub enum IdxError {
    /// It cannot be opened or read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// It begins with something else.
    #[error("{} is not an IDX file of bytes: it begins with {found:02x?}, expected [00, 00, 08, number of sides]", path.display())]
    Magic {
        /// The file.
        path: PathBuf,
        /// Its first four bytes.
        found: [u8; 4],
    },
    /// It has another number of dimensions.
    #[error("{} has {found} dimensions, expected {expected}: are images and labels interchanged?", path.display())]
    Dimensions {
        /// The file.
        path: PathBuf,
        /// What was asked for.
        expected: u8,
        /// What it has.
        found: u8,
    },
    /// Its header promises another amount of data than there is.
    #[error("{} promises {promised} bytes of data and has {found}: it is cut off or damaged, fetch it again", path.display())]
    Length {
        /// The file.
        path: PathBuf,
        /// The product of its sides.
        promised: u128,
        /// What it has; "more" and "at most" where the exact number does not matter.
        found: String,
    },
    /// Images and labels do not belong together.
    #[error("{} holds {images} images but {} holds {labels} labels", images_path.display(), labels_path.display())]
    Pair {
        /// The images' file.
        images_path: PathBuf,
        /// Its first side.
        images: u64,
        /// The labels' file.
        labels_path: PathBuf,
        /// Its only side.
        labels: u64,
    },
    /// Neither the plain nor the gzipped file is there.
    #[error("neither {name} nor {name}.gz is in {}", dir.display())]
    Missing {
        /// The folder.
        dir: PathBuf,
        /// The plain file's name.
        name: String,
    },
}

/// An IDX file of bytes in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdxBytes {
    /// The sides, outermost first.
    pub sides: Vec<u32>,
    /// The values, row-major: as many as the sides multiply to.
    pub data: Vec<u8>,
}

/// Reads an IDX file of bytes with `dimensions` sides, gunzipping where it is gzipped (whatever its name).
///
/// # Errors
/// See [`IdxError`]; all but `Pair` and `Missing` may come.
pub fn read_idx(path: &Path, dimensions: u8) -> Result<IdxBytes, IdxError> {
    let failed = |source| IdxError::Read { path: path.to_owned(), source };
    let mut file = File::open(path).map_err(failed)?;
    let size = file.metadata().map_err(failed)?.len();
    let mut start = Vec::new();
    file.by_ref().take(2).read_to_end(&mut start).map_err(failed)?;
    let gzipped = start == [0x1f, 0x8b];
    let whole = std::io::Cursor::new(start).chain(file);
    if gzipped {
        parse(GzDecoder::new(BufReader::new(whole)), path, dimensions, size.saturating_mul(DEFLATE_RATIO_MAX))
    } else {
        parse(BufReader::new(whole), path, dimensions, size)
    }
}

/// Reads header and data; `at_most` bounds what the stream can give.
fn parse(mut stream: impl Read, path: &Path, dimensions: u8, at_most: u64) -> Result<IdxBytes, IdxError> {
    let owned = || path.to_owned();
    let failed = |source| IdxError::Read { path: owned(), source };
    let mut magic = [0; 4];
    stream.read_exact(&mut magic).map_err(failed)?;
    let [0, 0, UNSIGNED_BYTE, found] = magic else { return Err(IdxError::Magic { path: owned(), found: magic }) };
    if found != dimensions {
        return Err(IdxError::Dimensions { path: owned(), expected: dimensions, found });
    }
    let mut sides = Vec::new();
    for _ in 0..dimensions {
        let mut side = [0; 4];
        stream.read_exact(&mut side).map_err(failed)?;
        sides.push(u32::from_be_bytes(side));
    }
    let promised = sides.iter().try_fold(1u128, |product, &side| product.checked_mul(u128::from(side)));
    let promised = promised.unwrap_or(u128::MAX);
    let length = |found: String| IdxError::Length { path: owned(), promised, found };
    let Some(promised_len) = u64::try_from(promised).ok().filter(|&len| len <= at_most) else {
        return Err(length(format!("at most {at_most}")));
    };
    let mut data = Vec::new();
    stream.by_ref().take(promised_len).read_to_end(&mut data).map_err(failed)?;
    if data.len() as u64 != promised_len {
        return Err(length(data.len().to_string()));
    }
    // Reading on to the end also lets the gunzipper check its sum.
    if stream.take(1).read_to_end(&mut Vec::new()).map_err(failed)? != 0 {
        return Err(length("more".to_owned()));
    }
    Ok(IdxBytes { sides, data })
}

/// Images of one size, each with a label: a classification dataset held in memory as bytes.
#[derive(Clone, Debug)]
pub struct LabelledImages {
    pixels: Vec<u8>,
    labels: Vec<u8>,
    sides: (usize, usize),
}

/// A batch of images.
#[derive(Clone, Debug, PartialEq)]
pub struct ImageBatch {
    /// Grey values 0.0..=1.0, one image after another, row-major.
    pub pixels: Vec<f32>,
    /// One label an image.
    pub labels: Vec<u8>,
}

impl LabelledImages {
    /// Reads a pair of files: images with three sides, labels with one.
    ///
    /// # Errors
    /// See [`IdxError`].
    pub fn read(images: &Path, labels: &Path) -> Result<Self, IdxError> {
        let pixels = read_idx(images, 3)?;
        let marks = read_idx(labels, 1)?;
        let counts = (u64::from(pixels.sides[0]), u64::from(marks.sides[0]));
        if counts.0 != counts.1 {
            return Err(IdxError::Pair {
                images_path: images.to_owned(),
                images: counts.0,
                labels_path: labels.to_owned(),
                labels: counts.1,
            });
        }
        let side = |at: usize| usize::try_from(pixels.sides[at]).unwrap_or(usize::MAX);
        Ok(Self { sides: (side(1), side(2)), pixels: pixels.data, labels: marks.data })
    }

    /// Reads a split of a folder laid out like MNIST's: `{prefix}-images-idx3-ubyte` and `{prefix}-labels-idx1-ubyte`,
    /// plain or with `.gz`. MNIST's prefixes are `train` and `t10k`.
    ///
    /// # Errors
    /// See [`IdxError`].
    pub fn read_split(dir: &Path, prefix: &str) -> Result<Self, IdxError> {
        let find = |what: &str| {
            let name = format!("{prefix}-{what}-ubyte");
            let candidates = [dir.join(&name), dir.join(format!("{name}.gz"))];
            let found = candidates.into_iter().find(|path| path.exists());
            found.ok_or(IdxError::Missing { dir: dir.to_owned(), name })
        };
        Self::read(&find("images-idx3")?, &find("labels-idx1")?)
    }

    /// Only the first `len` samples (all, where there are fewer).
    #[must_use]
    pub fn truncated(mut self, len: usize) -> Self {
        self.labels.truncate(len);
        self.pixels.truncate(self.labels.len() * self.image_len());
        self
    }

    /// Rows and columns of an image.
    #[must_use]
    pub fn sides(&self) -> (usize, usize) {
        self.sides
    }

    /// The labels.
    #[must_use]
    pub fn labels(&self) -> &[u8] {
        &self.labels
    }

    /// The grey values of all images, 0..=255, one image after another, row-major.
    #[must_use]
    pub fn pixels(&self) -> &[u8] {
        &self.pixels
    }

    /// Values in one image.
    #[must_use]
    pub fn image_len(&self) -> usize {
        self.sides.0 * self.sides.1
    }

    /// One more than the largest label; 0 where there are no samples.
    #[must_use]
    pub fn classes(&self) -> usize {
        self.labels.iter().max().map_or(0, |&label| usize::from(label) + 1)
    }
}

impl Dataset for LabelledImages {
    type Batch = ImageBatch;

    fn len(&self) -> u64 {
        self.labels.len() as u64
    }

    fn signature(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        for number in [self.labels.len(), self.sides.0, self.sides.1] {
            hash.update((number as u64).to_le_bytes());
        }
        hash.update(&self.pixels);
        hash.update(&self.labels);
        hash.finalize().into()
    }

    fn batch(&self, indices: &[u64]) -> Result<ImageBatch, Fault> {
        let size = self.image_len();
        let mut batch =
            ImageBatch { pixels: Vec::with_capacity(size * indices.len()), labels: Vec::with_capacity(indices.len()) };
        for &index in indices {
            let at = usize::try_from(index).ok().filter(|&at| at < self.labels.len());
            let at = at.ok_or_else(|| format!("sample {index} was asked for, there are {}", self.labels.len()))?;
            batch.pixels.extend(self.pixels[at * size..][..size].iter().map(|&grey| f32::from(grey) / 255.0));
            batch.labels.push(self.labels[at]);
        }
        Ok(batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use std::io::Write;

    fn idx(sides: &[u32], data: &[u8]) -> Vec<u8> {
        let mut file = vec![0, 0, 8, sides.len() as u8];
        file.extend(sides.iter().flat_map(|side| side.to_be_bytes()));
        file.extend(data);
        file
    }

    fn gz(plain: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(plain).unwrap();
        encoder.finish().unwrap()
    }

    fn read_bytes(bytes: &[u8], dimensions: u8) -> Result<IdxBytes, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        let name = file.path().display().to_string();
        read_idx(file.path(), dimensions).map_err(|error| error.to_string().replace(&name, "FILE"))
    }

    #[test]
    fn plain_and_gzipped_files_read_the_same() {
        let plain = idx(&[2, 1, 3], &[1, 2, 3, 4, 5, 6]);
        let expect = Ok(IdxBytes { sides: vec![2, 1, 3], data: vec![1, 2, 3, 4, 5, 6] });
        assert_eq!(read_bytes(&plain, 3), expect);
        assert_eq!(read_bytes(&gz(&plain), 3), expect);
        assert_eq!(read_bytes(&idx(&[0], &[]), 1), Ok(IdxBytes { sides: vec![0], data: vec![] }));
    }

    #[test]
    fn damaged_files_are_refused_in_a_sentence() {
        let good = idx(&[2, 2], &[1, 2, 3, 4]);
        let mut flipped = gz(&good);
        let sum_at = flipped.len() - 8;
        flipped[sum_at] ^= 1;
        let zeros = gz(&idx(&[u32::MAX, u32::MAX], &[0; 9]));
        let bound = zeros.len() * 1032;
        let cases: Vec<(Vec<u8>, String)> = vec![
            (vec![], "cannot read FILE: failed to fill whole buffer".into()),
            (vec![0, 0, 8], "cannot read FILE: failed to fill whole buffer".into()),
            (b"hello".to_vec(), "FILE is not an IDX file of bytes: it begins with [68, 65, 6c, 6c]".into()),
            (vec![0, 0, 13, 2, 0, 0], "FILE is not an IDX file of bytes: it begins with [00, 00, 0d, 02]".into()),
            (idx(&[4], &[1, 2, 3, 4]), "FILE has 1 dimensions, expected 2".into()),
            (good[..good.len() - 1].to_vec(), "FILE promises 4 bytes of data and has 3".into()),
            ([&good[..], &[9]].concat(), "FILE promises 4 bytes of data and has more".into()),
            (
                idx(&[u32::MAX, u32::MAX], &[0; 9]),
                "FILE promises 18446744065119617025 bytes of data and has at most 21".into(),
            ),
            (zeros, format!("FILE promises 18446744065119617025 bytes of data and has at most {bound}")),
            (flipped, "cannot read FILE: corrupt gzip stream does not have a matching checksum".into()),
        ];
        for (bytes, expect) in cases {
            let error = read_bytes(&bytes, 2).unwrap_err();
            assert!(error.starts_with(&expect), "{error}\n{expect}");
        }
        let many_sides = [vec![0, 0, 8, 255], vec![0xff; 255 * 4]].concat();
        assert!(read_bytes(&many_sides, 255).unwrap_err().contains("promises"));
    }

    #[test]
    fn batches_hold_the_samples_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("train-images-idx3-ubyte"), idx(&[3, 1, 2], &[0, 51, 102, 153, 204, 255]))
            .unwrap();
        let missing = LabelledImages::read_split(dir.path(), "train").unwrap_err().to_string();
        assert!(
            missing.starts_with("neither train-labels-idx1-ubyte nor train-labels-idx1-ubyte.gz is in "),
            "{missing}"
        );
        std::fs::write(dir.path().join("train-labels-idx1-ubyte.gz"), gz(&idx(&[3], &[7, 8, 9]))).unwrap();
        let set = LabelledImages::read_split(dir.path(), "train").unwrap();
        assert_eq!((set.len(), set.image_len(), set.classes()), (3, 2, 10));
        let batch = set.batch(&[2, 0]).unwrap();
        assert_eq!(batch, ImageBatch { pixels: vec![0.8, 1.0, 0.0, 0.2], labels: vec![9, 7] });
        assert_eq!(set.batch(&[3]).unwrap_err().to_string(), "sample 3 was asked for, there are 3");

        let whole = set.signature();
        let cut = set.clone().truncated(2);
        assert_eq!((cut.len(), cut.pixels.len()), (2, 4));
        assert_ne!(cut.signature(), whole);
        assert_eq!(set.truncated(99).signature(), whole);
    }

    #[test]
    fn unequal_pairs_are_named() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("t10k-images-idx3-ubyte"), idx(&[2, 1, 1], &[0, 1])).unwrap();
        std::fs::write(dir.path().join("t10k-labels-idx1-ubyte"), idx(&[1], &[0])).unwrap();
        let error = LabelledImages::read_split(dir.path(), "t10k").unwrap_err().to_string();
        assert!(error.contains("holds 2 images but") && error.contains("holds 1 labels"), "{error}");
    }
}
